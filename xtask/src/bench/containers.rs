//! Measures starts of `/bin/true` in an image, beside crun on the same files and `docker run --rm` with a daemon of the bench's
//! own; and how long importing an image takes.
//!
//! Images come from `cargo xtask setup`; none is fetched. Stores and the daemon are in the bench's folder. A peer that does not
//! start is skipped, with its error; if the product does not start, the section fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::engine::Engine;
use super::images::{self, LARGE, SMALL};
use super::person::{Person, owned, shown};
use super::sample::{self, Better, Role, Row, Section, Series, Target};
use super::subject::COMMAND;
use super::{Bench, machine, starts};

/// How many starts `docker run` gets: each takes about fifty times as long as the others. Odd, so that the median is a sample.
const DOCKER_STARTS: usize = 11;
/// How many times faster than `docker run --rm` a start must be.
const DOCKER_TARGET: f64 = 40.0;
const IMPORTS: usize = 3;
/// The error of crun 1.8 where a machine mounts cgroup v2 with controllers beside v1, and the variable that makes it start anyway.
const HYBRID: &str = "hybrid mode not supported";
const WITHOUT_HYBRID: &str =
    "; start the bench by `unshare --mount sh -c 'umount /sys/fs/cgroup/unified && exec cargo xtask bench'`";

/// Measures all rows, as root and unprivileged; docker and concurrent starts as root alone.
pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("Containers");
    section.about = vec![
        "From fork to the end of the starting program. lockgate does all it does by default: sidecar, redirect, seccomp, \
         landlock, limits, ids of the run's own (as root), files in memory over the image, audit and run record."
            .into(),
        "crun starts the same files unpacked as a bundle, by `crun spec` (or `crun spec --rootless`) and a new name each time: \
         no network but loopback, no seccomp, no limits, and the files themselves are written to."
            .into(),
    ];
    let Some(small) = images::readable(bench, SMALL)? else {
        section.skipped.push(images::absent(SMALL));
        return Ok(section);
    };

    let mut pairs = Vec::new();
    for person in &bench.people {
        let pair = pair(bench, person, &small, &mut section)?;
        let what = format!("{}, one after the other", person.name);
        section.rows.extend(sequence(&pair, bench.pace.starts, &what, Some(Target::Best(1.0)))?);
        pairs.push(pair);
    }
    let Some(pair) = pairs.first() else { return Ok(section) };
    section.rows.push(at_once(bench, pair)?);
    let engine = Engine::start(bench, pair[0].person, &small, "docker")
        .map_err(|error| section.skipped.push(format!("docker: {error:#}")))
        .ok();
    if let Some(engine) = &engine {
        section.about.push(engine.about());
        section.rows.extend(beside_docker(&pair[0], engine)?);
    }
    match images::archive(LARGE)? {
        Some(large) => section.rows.push(imports(bench, engine.as_ref(), [&small, &large])?),
        None => section.skipped.push(images::absent(LARGE)),
    }
    Ok(section)
}

/// A program that starts the command in a container, and the person who runs it.
#[derive(Clone)]
struct Launcher<'a> {
    name: &'static str,
    role: Role,
    person: &'a Person,
    program: PathBuf,
    args: Vec<String>,
    /// Each start needs a container name of its own, as the last argument.
    is_named: bool,
}

impl Launcher<'_> {
    /// Returns the arguments of the next start.
    fn args(&self) -> Vec<String> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let next = || STARTED.fetch_add(1, Ordering::Relaxed);
        let name = || format!("lockgate-bench-{}-{}", std::process::id(), next());
        self.args.iter().cloned().chain(self.is_named.then(name)).collect()
    }

    /// Starts once; an error carries the program's own message.
    fn try_once(&self) -> Result<()> {
        self.person
            .told(&self.program, &self.args())
            .map(|_| ())
            .with_context(|| format!("{} as {}", self.name, self.person.name))
    }

    /// Starts once, and waits for the end.
    fn start(&self) -> Result<Duration> {
        let mut command = self.person.command(&self.program, &self.args());
        let began = Instant::now();
        let status = command.spawn().and_then(|mut child| child.wait());
        let took = began.elapsed();
        let status = status.with_context(|| format!("failed to start {}", self.name))?;
        if !status.success() {
            bail!("{} as {} ended with {status}", self.name, self.person.name);
        }
        Ok(took)
    }
}

/// Returns the product with the image in this person's own store, and crun with the image as a bundle if it starts here.
fn pair<'a>(
    bench: &Bench,
    person: &'a Person,
    archive: &Path,
    section: &mut Section,
) -> Result<Vec<Launcher<'a>>> {
    person.told(&bench.lockgate, &import(archive)?)?;
    let mut args = starts::subjects(bench, person, &mut section.about)?.swap_remove(0).args;
    args.splice(args.len() - 1.., ["--image", SMALL, "--", COMMAND].map(str::to_owned));
    let program = bench.lockgate.clone();
    let ours = Launcher { name: "lockgate", role: Role::Ours, person, program, args, is_named: false };
    ours.try_once()?;
    let mut pair = vec![ours];
    let program = machine::find("crun").context("crun is not installed");
    match program.and_then(|program| crun(bench, person, archive, program)) {
        Ok(crun) => pair.push(crun),
        Err(error) => {
            let words = format!("{error:#}");
            let hint = if words.contains(HYBRID) { WITHOUT_HYBRID } else { "" };
            section.skipped.push(words + hint);
        }
    }
    Ok(pair)
}

/// Returns the arguments that import an archive under its own name.
fn import(archive: &Path) -> Result<Vec<String>> {
    let name = archive.file_stem().and_then(|name| name.to_str()).context("an archive has no name")?;
    Ok(["image", "import", shown(archive)?, "--name", name].map(str::to_owned).to_vec())
}

fn crun<'a>(bench: &Bench, person: &'a Person, archive: &Path, program: PathBuf) -> Result<Launcher<'a>> {
    let home = bench.folder.join(person.name);
    let (bundle, state) = (home.join("bundle"), home.join("crun"));
    let rootfs = bundle.join("rootfs");
    person.told(Path::new("mkdir"), &owned(&["--parents", shown(&rootfs)?, shown(&state)?]))?;
    let unpack = ["--extract", "--file", shown(archive)?, "--directory", shown(&rootfs)?];
    person.told(Path::new("tar"), &owned(&unpack))?;
    let spec = ["spec", "--bundle", shown(&bundle)?, "--rootless"];
    let is_root = person.name == "root";
    person.told(&program, &owned(&spec[..spec.len() - usize::from(is_root)]))?;
    adjust(&bundle.join("config.json"))?;
    let args = owned(&["--root", shown(&state)?, "run", "--bundle", shown(&bundle)?]);
    let crun = Launcher { name: "crun", role: Role::Peer, person, program, args, is_named: true };
    crun.try_once().map(|()| crun)
}

/// Makes crun's example configuration start the command, without a terminal and on a writable root.
fn adjust(path: &Path) -> Result<()> {
    let text = fs::read_to_string(path).context("crun made no config.json")?;
    let mut config: Value = serde_json::from_str(&text).context("failed to read crun's config.json")?;
    let changes = [
        ("/process/terminal", json!(false)),
        ("/process/args", json!([COMMAND])),
        ("/root/readonly", json!(false)),
    ];
    for (place, value) in changes {
        *config.pointer_mut(place).with_context(|| format!("crun's config.json has no {place}"))? = value;
    }
    fs::write(path, config.to_string()).context("failed to write crun's config.json")
}

/// Returns a series without samples for each subject.
fn series(subjects: &[Launcher]) -> Vec<Series> {
    subjects.iter().map(|one| Series::new(one.name, one.role)).collect()
}

/// Starts one after the other: a row of medians, and a row of the fastest.
fn sequence(subjects: &[Launcher], count: usize, what: &str, target: Option<Target>) -> Result<[Row; 2]> {
    let series = sample::in_turns(series(subjects), count, |index| {
        Ok(subjects[index].start()?.as_secs_f64() * 1000.0)
    })?;
    let what = |part: &str| format!("{what}, {part}");
    let row = Row { what: what("p50"), unit: "ms", better: Better::Less, part: 0.5, target, series };
    Ok([row.clone(), row.at(0.0, &what("min"))])
}

/// Starts many at once, as in the first row of [`starts::concurrent`].
fn at_once(bench: &Bench, subjects: &[Launcher]) -> Result<Row> {
    let (width, count) = bench.pace.bursts[0];
    let rounds = bench.pace.rounds;
    let series = sample::in_turns(series(subjects), rounds, |index| burst(&subjects[index], width, count))?;
    let what = format!("{}, {width} at once, {count} in all", subjects[0].person.name);
    Ok(Row { what, unit: "1/s", better: Better::More, part: 0.5, target: Some(Target::Best(1.0)), series })
}

fn burst(subject: &Launcher, width: usize, count: usize) -> Result<f64> {
    let taken = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let worker = || {
            while taken.fetch_add(1, Ordering::Relaxed) < count {
                subject.start()?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let workers: Vec<_> = (0..width).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// Measures the product beside docker: times, and the same samples as starts a second, whose ratio says how many times faster a
/// start is.
fn beside_docker(ours: &Launcher, engine: &Engine) -> Result<Vec<Row>> {
    let (person, program, run) = (engine.person, engine.docker.clone(), engine.network.run.join(" "));
    let mut args = engine.client(engine.network.run);
    args.extend([SMALL, COMMAND].map(str::to_owned));
    let docker = Launcher { name: "docker", role: Role::Peer, person, program, args, is_named: false };
    let what = format!("{}, beside `docker {run}`", person.name);
    let [row, fastest] = sequence(&[ours.clone(), docker], DOCKER_STARTS, &what, None)?;
    let mut speed = row.clone();
    speed.what = format!("{}, ≥ {DOCKER_TARGET:.0} × faster than `docker {run}`", person.name);
    (speed.unit, speed.better, speed.target) = ("1/s", Better::More, Some(Target::Best(DOCKER_TARGET)));
    for sample in speed.series.iter_mut().flat_map(|one| &mut one.samples) {
        *sample = 1000.0 / *sample;
    }
    Ok(vec![row, fastest, speed])
}

/// Measures the import of an image into an empty store, by the product and by `docker import`. Nothing is removed in between: ext4
/// passes over every inode that was removed in the last minutes, which would dominate the figures.
fn imports(bench: &Bench, engine: Option<&Engine>, [small, large]: [&Path; 2]) -> Result<Row> {
    let person = &bench.people[0];
    let mut series = vec![Series::new("lockgate", Role::Ours)];
    series.extend(engine.map(|_| Series::new("docker", Role::Peer)));
    for round in 0..IMPORTS {
        let store = bench.folder.join(format!("store-{round}"));
        let env = [format!("XDG_DATA_HOME={}", shown(&store)?), shown(&bench.lockgate)?.to_owned()];
        let ours = [env.to_vec(), import(large)?].concat();
        let name = format!("docker-{round}");
        let engine = engine.map(|_| Engine::start(bench, person, small, &name)).transpose()?;
        for turn in 0..series.len() {
            let index = (round + turn) % series.len();
            // Earlier writes must not slow this import down.
            person.told(Path::new("sync"), &[])?;
            let began = Instant::now();
            match engine.as_ref().filter(|_| index > 0) {
                Some(engine) => engine.ask(&["import", shown(large)?, LARGE])?,
                None => person.told(Path::new("env"), &ours)?,
            };
            series[index].samples.push(began.elapsed().as_secs_f64());
        }
    }
    let size = fs::metadata(large)?.len() >> 20;
    let what = format!("{}, {LARGE}.tar ({size} MiB) into an empty store, p50", person.name);
    Ok(Row { what, unit: "s", better: Better::Less, part: 0.5, target: None, series })
}
