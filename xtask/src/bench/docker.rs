//! Measures a start of `/bin/true` by backend `docker`, beside the same done by hand with docker's client: a network for the run, a
//! waiting sidecar on it, the command, and their removal. Both use the bench's own daemon.
//!
//! The product ends before everything is removed. The bench measures that time as well, and starts the next turn only after it.
//!
//! In a cold start nothing of the previous run is left but images and what the product makes once for an engine. In a warm start a
//! sidecar waits on a network of its own; by hand it is made beforehand, and the product makes it behind the previous run. Neither
//! is measured.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Bench;
use super::engine::Engine;
use super::images::{self, SMALL};
use super::person::owned;
use super::sample::{self, Better, Role, Row, Section, Series, Target};
use super::subject::COMMAND;

/// The most that a start may take, as a part of the time by hand.
const TARGET: f64 = 0.6;
/// The workspace's owner. When root starts a run, the command has this user, and is never root.
const OWNER: u32 = 65534;
const NETWORK: &str = "bench-network";
const SIDECAR: &str = "bench-sidecar";
const POOL: &str = "bench-pool";
/// The sidecar made by hand. It lives as long as a server of the bench, and is cold or in a pool.
const COLD: &[&str] = &["run", "-d", "--name", SIDECAR, SMALL, "sleep", "900"];
const WARM: &[&str] = &["run", "-d", "--name", SIDECAR, "--network", POOL, SMALL, "sleep", "900"];
/// The network made by hand, what is started on it, and how everything is removed.
const NETWORKED: &[&str] = &["network", "create", "--internal", NETWORK];
const STARTED: [&[&str]; 2] = [
    &["network", "connect", "--alias", "sidecar", NETWORK, SIDECAR],
    &["run", "--rm", "--network", NETWORK, SMALL, COMMAND],
];
const TAKEN_AWAY: [&[&str]; 2] = [&["rm", "-f", SIDECAR], &["network", "rm", NETWORK]];
/// The variable for the pool's size: 1 for warm starts, 0 for cold ones.
const POOL_SIZE: &str = "SIDECAR_POOL_SIZE";
/// Lists the product's waiting sidecars.
const WAITS: &[&str] =
    &["ps", "--quiet", "--filter", "network=lockgate-sidecar-pool", "--filter", "status=running"];
/// How long the pool may take to have a waiting sidecar.
const FILLED: Duration = Duration::from_secs(30);
/// Lists what the product has during a run and must have removed after it.
const LEFT: [&[&str]; 3] = [
    &["ps", "--all", "--quiet", "--filter", "label=dev.lockgate.run"],
    &["ps", "--all", "--quiet", "--filter", "network=lockgate-egress"],
    &["network", "ls", "--quiet", "--filter", "label=dev.lockgate.run"],
];
/// How long the removal may take.
const GONE: Duration = Duration::from_secs(30);

/// Whether a sidecar waits in a pool before the start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Cold,
    Warm,
}

/// Measures all rows, as root: nobody else can start a daemon.
pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("An engine's containers");
    let (Some(small), Some(person)) = (images::readable(bench, SMALL)?, bench.people.first()) else {
        section.skipped.push(images::absent(SMALL));
        return Ok(section);
    };
    let engine = match Engine::start(bench, person, &small, "engine") {
        Ok(engine) if engine.has_bridge() => engine,
        Ok(_) => {
            section.skipped.push("docker: without its bridge no container is on two networks".into());
            return Ok(section);
        }
        Err(error) => {
            section.skipped.push(format!("docker: {error:#}"));
            return Ok(section);
        }
    };
    section.about = about(&engine);
    let starts = Starts::prepare(bench, engine)?;
    for (kind, name) in [(Kind::Cold, "cold"), (Kind::Warm, "a sidecar waits")] {
        // Not measured: once for an engine, the product makes the sidecar's image and its networks.
        starts.ours(kind)?;
        let mut subjects = vec![Series::new("lockgate", Role::Ours)];
        match starts.by_hand(kind) {
            Ok(_) => subjects.push(Series::new("docker", Role::Peer)),
            Err(error) => section.skipped.push(format!("{error:#}")),
        }
        starts.gone.take();
        let series = sample::in_turns(subjects, bench.pace.engine_starts, |index| {
            let took = if index == 0 { starts.ours(kind)? } else { starts.by_hand(kind)? };
            Ok(took.as_secs_f64() * 1000.0)
        })?;
        let what = |part: &str| format!("{}, {name}, one after the other, {part}", person.name);
        let target = Some(Target::Best(TARGET));
        let row = Row { what: what("p50"), unit: "ms", better: Better::Less, part: 0.5, target, series };
        let fastest = row.at(0.0, &what("min"));
        // By hand, the end of the last program is also the end of the removal.
        let gone = Series { samples: starts.gone.take(), ..Series::new("lockgate", Role::Ours) };
        let by_hand = row.series.iter().filter(|one| one.role == Role::Peer).cloned();
        let series = std::iter::once(gone).chain(by_hand).collect();
        let gone = Row { series, ..row.at(0.5, &what("until nothing is left, p50")) };
        section.rows.extend([row, fastest, gone]);
    }
    Ok(section)
}

fn about(engine: &Engine) -> Vec<String> {
    let steps: Vec<String> = [NETWORKED, COLD]
        .iter()
        .chain(&STARTED)
        .chain(&TAKEN_AWAY)
        .map(|args| format!("`docker {}`", args.join(" ")))
        .collect();
    vec![
        format!(
            "From fork to the end of the starting program, which is `lockgate run --backend docker --image {SMALL} -- \
             {COMMAND}` with all it does by default: the sidecar serves before the command begins. At the end both containers \
             have ended, and they and the network are taken away behind the program, until its client lists none of them: a row \
             of its own, and nobody's next turn begins earlier. Its own image was made beforehand."
        ),
        format!(
            "By hand, from the first fork to the end of the last: {}. That sidecar only waits.",
            steps.join(", ")
        ),
        format!(
            "Where a sidecar waits, it was started before, by hand as `docker {}` and by the product behind another run \
             ({POOL_SIZE}=1); it is taken, used once and taken away, and the next one is not measured. Cold is {POOL_SIZE}=0.",
            WARM.join(" ")
        ),
        format!(
            "Both have docker {} do it, a daemon of the bench's own in a network namespace of its own.",
            engine.version().unwrap_or_default()
        ),
    ]
}

/// The two ways to start the command.
struct Starts<'a> {
    engine: Engine<'a>,
    lockgate: PathBuf,
    workspace: PathBuf,
    /// The standard error of the last program.
    complaint: PathBuf,
    /// How long each removal took, in milliseconds.
    gone: RefCell<Vec<f64>>,
}

impl<'a> Starts<'a> {
    fn prepare(bench: &Bench, engine: Engine<'a>) -> Result<Self> {
        let workspace = bench.folder.join("engine-workspace");
        fs::create_dir(&workspace).context("failed to make a workspace")?;
        chown(&workspace, Some(OWNER), Some(OWNER)).context("failed to give the workspace an owner")?;
        let complaint = bench.folder.join("engine-complaint");
        Ok(Self { engine, lockgate: bench.lockgate.clone(), workspace, complaint, gone: RefCell::default() })
    }

    fn ours(&self, kind: Kind) -> Result<Duration> {
        self.settle(kind)?;
        let size = if kind == Kind::Warm { "1" } else { "0" };
        let words = ["run", "--backend", "docker", "--image", SMALL, "--", COMMAND];
        let began = Instant::now();
        self.step(&self.lockgate, &words, size)?;
        let took = began.elapsed();
        while self.is_anything_left()? {
            ensure!(began.elapsed() < GONE, "something of a run is still there");
        }
        self.gone.borrow_mut().push(began.elapsed().as_secs_f64() * 1000.0);
        Ok(took)
    }

    fn is_anything_left(&self) -> Result<bool> {
        for list in LEFT {
            if !self.engine.ask(list)?.trim().is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits for a waiting sidecar in a warm start. If none appears, a run that is not measured makes it.
    fn settle(&self, kind: Kind) -> Result<()> {
        let deadline = Instant::now() + FILLED;
        let mut asked = false;
        while kind == Kind::Warm && self.engine.ask(WAITS)?.trim().is_empty() {
            ensure!(Instant::now() < deadline, "no sidecar waits in the pool");
            if !asked && Instant::now() + FILLED / 2 > deadline {
                asked = true;
                self.step(
                    &self.lockgate,
                    &["run", "--backend", "docker", "--image", SMALL, "--", COMMAND],
                    "1",
                )?;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn by_hand(&self, kind: Kind) -> Result<Duration> {
        // Keeps what the product does behind its own run out of this measurement.
        self.settle(kind)?;
        let docker = |args: &&[&str]| self.step(&self.engine.docker, args, "0");
        if kind == Kind::Warm {
            // It fails from the second time on, because the network exists.
            let _ = docker(&&["network", "create", "--internal", POOL][..]);
            docker(&WARM)?;
        }
        let began = Instant::now();
        let cold = Some(COLD).filter(|_| kind == Kind::Cold);
        let made = [NETWORKED].iter().chain(&cold).chain(&STARTED).try_for_each(docker);
        // Also after a failure: the daemon would wait for containers that are left.
        let taken_away = TAKEN_AWAY.iter().try_for_each(docker);
        let took = began.elapsed();
        made.and(taken_away).map(|()| took)
    }

    /// Runs one program to its end; an error carries the program's own message.
    fn step(&self, program: &Path, args: &[&str], pool: &str) -> Result<()> {
        let mut command = self.engine.person.command(program, &owned(args));
        command.current_dir(&self.workspace).env("DOCKER_HOST", self.engine.host());
        command.env(POOL_SIZE, pool);
        command.stderr(File::create(&self.complaint)?);
        let status = command.spawn().and_then(|mut child| child.wait());
        let status = status.with_context(|| format!("failed to start {}", program.display()))?;
        if !status.success() {
            let words = fs::read_to_string(&self.complaint).unwrap_or_default();
            bail!("`{} {}` ended with {status}: {}", program.display(), args.join(" "), words.trim());
        }
        Ok(())
    }
}
