//! Starts of `/bin/true` in an image, beside crun on the same files and `docker run --rm` with a daemon of the bench's own;
//! and how long an image takes to get in.
//!
//! Images come from `cargo xtask setup`, stores and daemon are in the bench's folder, and no image is fetched. A peer that
//! does not start is skipped with its own words; the product that does not start ends the section.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::person::Person;
use super::sample::{Better, Role, Row, Section, Series};
use super::server::Server;
use super::{Bench, machine, starts};
use crate::workspace::Workspace;

const COMMAND: &str = "/bin/true";
/// What is started, and what is taken in: of the images that `cargo xtask setup` makes.
const SMALL: &str = "busybox";
const LARGE: &str = "debian";
/// How often `docker run` is started: each takes about fifty times as long as the others. Odd, so that one is the middle.
const DOCKER_STARTS: usize = 11;
/// How much faster than `docker run --rm` a start has to be.
const DOCKER_TARGET: f64 = 40.0;
const IMPORTS: usize = 3;
/// How long a program may take that is not measured, in seconds, and a daemon until it answers.
const PATIENCE: &str = "120";
const READY: Duration = Duration::from_secs(30);
const SOCKET: &str = "docker.sock";
/// How crun 1.8 says that version 2 of control groups has a controller beside version 1, and how to start it all the same.
const HYBRID: &str = "hybrid mode not supported";
const WITHOUT_HYBRID: &str =
    "; start the bench by `unshare --mount sh -c 'umount /sys/fs/cgroup/unified && exec cargo xtask bench'`";

/// All rows, as root and unprivileged; docker's and those of many at once as root alone.
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
    let images = Workspace::locate()?.target.join("images");
    let archive = |name: &str| images.join(name).with_extension("tar");
    let absent = |name: &str| format!("{name}.tar is not there: `cargo xtask setup` makes it as root");
    if !archive(SMALL).is_file() {
        section.skipped.push(absent(SMALL));
        return Ok(section);
    }
    // Where everybody can read it.
    let small = bench.folder.join(SMALL).with_extension("tar");
    fs::copy(archive(SMALL), &small).context("failed to copy the image")?;

    let mut pairs = Vec::new();
    for person in &bench.people {
        let pair = pair(bench, person, &small, &mut section)?;
        let what = format!("{}, one after the other", person.name);
        section.rows.extend(sequence(&pair, bench.pace.starts, &what, Some(1.0))?);
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
    if archive(LARGE).is_file() {
        section.rows.push(imports(bench, engine.as_ref(), [&small, &archive(LARGE)])?);
    } else {
        section.skipped.push(absent(LARGE));
    }
    Ok(section)
}

/// Something that starts the command in a container, as somebody.
#[derive(Clone)]
struct Launcher<'a> {
    name: &'static str,
    role: Role,
    person: &'a Person,
    program: PathBuf,
    args: Vec<String>,
    /// Each container has to have a name of its own, and it comes last.
    is_named: bool,
}

impl Launcher<'_> {
    /// The arguments of the next start.
    fn args(&self) -> Vec<String> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let next = || STARTED.fetch_add(1, Ordering::Relaxed);
        let name = || format!("lockgate-bench-{}-{}", std::process::id(), next());
        self.args.iter().cloned().chain(self.is_named.then(name)).collect()
    }

    /// One start whose failure is told with its own words.
    fn try_once(&self) -> Result<()> {
        told(self.person, &self.program, &self.args())
            .map(|_| ())
            .with_context(|| format!("{} as {}", self.name, self.person.name))
    }

    /// One start, to its end.
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

/// The product with the image in this person's own store, and crun with the image as a bundle if it starts here.
fn pair<'a>(
    bench: &Bench,
    person: &'a Person,
    archive: &Path,
    section: &mut Section,
) -> Result<Vec<Launcher<'a>>> {
    told(person, &bench.lockgate, &import(archive)?)?;
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

/// How an archive is taken in by its own name.
fn import(archive: &Path) -> Result<Vec<String>> {
    let name = archive.file_stem().and_then(|name| name.to_str()).context("an archive has no name")?;
    Ok(["image", "import", shown(archive)?, "--name", name].map(str::to_owned).to_vec())
}

fn crun<'a>(bench: &Bench, person: &'a Person, archive: &Path, program: PathBuf) -> Result<Launcher<'a>> {
    let home = bench.folder.join(person.name);
    let (bundle, state) = (home.join("bundle"), home.join("crun"));
    let rootfs = bundle.join("rootfs");
    told(person, Path::new("mkdir"), &owned(&["--parents", shown(&rootfs)?, shown(&state)?]))?;
    let unpack = ["--extract", "--file", shown(archive)?, "--directory", shown(&rootfs)?];
    told(person, Path::new("tar"), &owned(&unpack))?;
    let spec = ["spec", "--bundle", shown(&bundle)?, "--rootless"];
    let is_root = person.name == "root";
    told(person, &program, &owned(&spec[..spec.len() - usize::from(is_root)]))?;
    adjust(&bundle.join("config.json"))?;
    let args = owned(&["--root", shown(&state)?, "run", "--bundle", shown(&bundle)?]);
    let crun = Launcher { name: "crun", role: Role::Peer, person, program, args, is_named: true };
    crun.try_once().map(|()| crun)
}

/// Has crun's own example start the command, without a terminal, and over files that can be written to.
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

/// Samples of each subject. The order turns with each round: nobody always comes after the same neighbour.
fn in_turns(
    subjects: &[Launcher],
    rounds: usize,
    sample: impl Fn(&Launcher) -> Result<f64>,
) -> Result<Vec<Series>> {
    let mut series: Vec<Series> = subjects.iter().map(|one| Series::new(one.name, one.role)).collect();
    for round in 0..rounds {
        for turn in 0..subjects.len() {
            let index = (round + turn) % subjects.len();
            series[index].samples.push(sample(&subjects[index])?);
        }
    }
    Ok(series)
}

/// One after the other: the row of medians, and that of the fastest.
fn sequence(subjects: &[Launcher], count: usize, what: &str, target: Option<f64>) -> Result<[Row; 2]> {
    let series = in_turns(subjects, count, |one| Ok(one.start()?.as_secs_f64() * 1000.0))?;
    let what = |part: &str| format!("{what}, {part}");
    let row = Row { what: what("p50"), unit: "ms", better: Better::Less, part: 0.5, target, series };
    Ok([row.clone(), row.at(0.0, &what("min"))])
}

/// Many at once, as the first row of [`starts::concurrent`].
fn at_once(bench: &Bench, subjects: &[Launcher]) -> Result<Row> {
    let (width, count) = bench.pace.bursts[0];
    let series = in_turns(subjects, bench.pace.rounds, |one| burst(one, width, count))?;
    let what = format!("{}, {width} at once, {count} in all", subjects[0].person.name);
    Ok(Row { what, unit: "1/s", better: Better::More, part: 0.5, target: Some(1.0), series })
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

/// Times beside docker's, and the same samples as starts a second, whose ratio is how many times as fast a start is.
fn beside_docker(ours: &Launcher, engine: &Engine) -> Result<Vec<Row>> {
    let (person, program, run) = (engine.person, engine.docker.clone(), engine.network.run.join(" "));
    let mut args = engine.client(engine.network.run);
    args.extend([SMALL, COMMAND].map(str::to_owned));
    let docker = Launcher { name: "docker", role: Role::Peer, person, program, args, is_named: false };
    let what = format!("{}, beside `docker {run}`", person.name);
    let [row, fastest] = sequence(&[ours.clone(), docker], DOCKER_STARTS, &what, None)?;
    let mut speed = row.clone();
    speed.what = format!("{}, ≥ {DOCKER_TARGET:.0} × faster than `docker {run}`", person.name);
    (speed.unit, speed.better, speed.target) = ("1/s", Better::More, Some(DOCKER_TARGET));
    for sample in speed.series.iter_mut().flat_map(|one| &mut one.samples) {
        *sample = 1000.0 / *sample;
    }
    Ok(vec![row, fastest, speed])
}

/// An image into a store that has none, by the product and by `docker import`. Nothing is removed in between: ext4 passes
/// over every inode that was removed in the minutes before, and that would be most of what is measured.
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
            // What was written before is not for this one to wait for.
            told(person, Path::new("sync"), &[])?;
            let began = Instant::now();
            match engine.as_ref().filter(|_| index > 0) {
                Some(engine) => engine.ask(&["import", shown(large)?, LARGE])?,
                None => told(person, Path::new("env"), &ours)?,
            };
            series[index].samples.push(began.elapsed().as_secs_f64());
        }
    }
    let size = fs::metadata(large)?.len() >> 20;
    let what = format!("{}, {LARGE}.tar ({size} MiB) into an empty store, p50", person.name);
    Ok(Row { what, unit: "s", better: Better::Less, part: 0.5, target: None, series })
}

/// How docker's containers reach others: what the daemon is told, and each start.
struct Network {
    daemon: &'static [&'static str],
    run: &'static [&'static str],
}

const BRIDGE: Network = Network { daemon: &[], run: &["run", "--rm"] };
/// For a machine on which the default fails.
const ALONE: Network =
    Network { daemon: &["--bridge=none", "--iptables=false"], run: &["run", "--rm", "--network", "none"] };

/// A docker daemon of the bench's own, with the small image in it. It is in network and mount namespaces of its own, so that
/// its bridge, its rules and its mounts end with it.
struct Engine<'a> {
    person: &'a Person,
    docker: PathBuf,
    folder: PathBuf,
    network: Network,
    /// Its control groups, which it leaves behind.
    group: String,
    /// There until the end.
    server: Option<Server>,
}

impl<'a> Engine<'a> {
    fn start(bench: &Bench, person: &'a Person, archive: &Path, name: &str) -> Result<Self> {
        ensure!(person.name == "root", "only root can start a daemon");
        let daemon = machine::find("dockerd").context("dockerd is not installed")?;
        let docker = machine::find("docker").context("docker is not installed")?;
        let attempt = |name: &str, network| {
            let folder = bench.folder.join(name);
            Self::attempt(folder, person, archive, [&daemon, &docker], network)
        };
        attempt(name, BRIDGE).or_else(|_| attempt(&format!("{name}-alone"), ALONE))
    }

    fn attempt(
        folder: PathBuf,
        person: &'a Person,
        archive: &Path,
        [daemon, docker]: [&Path; 2],
        network: Network,
    ) -> Result<Self> {
        fs::create_dir(&folder).context("failed to make docker's folder")?;
        let group = format!("lockgate-bench-{}", std::process::id());
        let mut args = owned(&["--net", "--mount", "--", shown(daemon)?]);
        let own =
            [("host=unix://", SOCKET), ("data-root=", "data"), ("exec-root=", "exec"), ("pidfile=", "pid")];
        args.extend(own.map(|(option, name)| format!("--{option}{}", folder.join(name).display())));
        args.push(format!("--cgroup-parent=/{group}"));
        args.extend(owned(network.daemon));
        let server = Some(Server::start("dockerd", Path::new("unshare"), &args, &folder)?);
        let engine = Self { person, docker: docker.to_owned(), folder, network, group, server };
        let deadline = Instant::now() + READY;
        while let Err(error) = engine.ask(&["version"]) {
            if Instant::now() > deadline {
                let log = fs::read_to_string(engine.folder.join("dockerd.log")).unwrap_or_default();
                return Err(error.context(log.lines().last().unwrap_or_default().to_owned()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        engine.ask(&["import", shown(archive)?, SMALL])?;
        engine.ask(&[engine.network.run, &[SMALL, COMMAND]].concat())?;
        Ok(engine)
    }

    /// What docker is given to reach this daemon, and to do something.
    fn client(&self, args: &[&str]) -> Vec<String> {
        let host = format!("--host=unix://{}", self.folder.join(SOCKET).display());
        [host].into_iter().chain(owned(args)).collect()
    }

    fn ask(&self, args: &[&str]) -> Result<String> {
        told(self.person, &self.docker, &self.client(args))
    }

    fn about(&self) -> String {
        let version = self.ask(&["version", "--format", "{{.Server.Version}}"]).unwrap_or_default();
        let (version, run) = (version.trim(), self.network.run.join(" "));
        format!(
            "docker is {version} with a daemon of the bench's own, in a network namespace of its own, and starts by \
             `docker {run}`; it takes images in by `docker import`."
        )
    }
}

impl Drop for Engine<'_> {
    fn drop(&mut self) {
        self.server = None;
        // Of version 2, and of each hierarchy of version 1.
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup").join(&self.group));
        for hierarchy in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let _ = fs::remove_dir(hierarchy.path().join(&self.group));
        }
    }
}

/// What a program of this person's says, within bounds; or its failure, with its own words.
fn told(person: &Person, program: &Path, args: &[String]) -> Result<String> {
    let args = [owned(&["--kill-after=5", PATIENCE, shown(program)?]), args.to_vec()].concat();
    let output =
        person.command(Path::new("timeout"), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` ended with {}: {}", args[2..].join(" "), output.status, words.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

fn shown(path: &Path) -> Result<&str> {
    path.to_str().context("a path is no UTF-8")
}
