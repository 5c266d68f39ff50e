//! `cargo xtask bench`: measures the product beside what a user would otherwise pick, on this machine.
//!
//! It is not a test: a slow machine fails nothing. A subject that fails ends its whole section, because the figures of a failure
//! are worth nothing. Peers come from `PATH`; those that are not installed are skipped by name.

mod containers;
mod dns;
mod docker;
mod engine;
mod held;
mod hudsucker;
mod images;
pub(crate) mod machine;
mod person;
mod plain;
mod processes;
pub(crate) mod proxies;
mod report;
mod sample;
mod sandlock;
mod server;
mod splice;
mod starts;
mod subject;
mod terminate;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::workspace::Workspace;
use machine::Machine;
use person::Person;
use sample::Section;

/// Where a bench keeps its files: on a disk, which `/tmp` often is not.
const FOLDER: &str = "/var/tmp";
/// When a bench that hangs is killed.
const LIMIT: Duration = Duration::from_secs(40 * 60);

/// What is measured, and how thoroughly.
#[derive(Args)]
pub(crate) struct Options {
    /// A few minutes: fewer samples, no idle starts, and the page is left as it is
    #[arg(long)]
    quick: bool,
    /// Only these; the page is left as it is
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// A release build to measure, in place of building one
    #[arg(long, value_name = "PATH")]
    lockgate: Option<PathBuf>,
    /// The load generator, in place of building it
    #[arg(long, value_name = "PATH")]
    load: Option<PathBuf>,
}

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Cold,
    Concurrent,
    Container,
    Docker,
    Splice,
    Terminate,
    Plain,
    Dns,
    Memory,
}

const PARTS: [Part; 9] = [
    Part::Cold,
    Part::Concurrent,
    Part::Container,
    Part::Docker,
    Part::Splice,
    Part::Terminate,
    Part::Plain,
    Part::Dns,
    Part::Memory,
];

/// How many samples are taken.
pub(crate) struct Pace {
    /// Starts of each subject, one after the other.
    pub(crate) starts: usize,
    /// Starts of each subject after a rest.
    pub(crate) idle_starts: usize,
    pub(crate) idle: Duration,
    /// Starts of each subject by an engine: each takes as long as a hundred others. Odd, so that the median is a sample.
    pub(crate) engine_starts: usize,
    /// How many starts at once, and how many in all.
    pub(crate) bursts: [(usize, usize); 2],
    /// How often each load is repeated, and how long it lasts.
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
}

const THOROUGH: Pace = Pace {
    starts: 200,
    idle_starts: 8,
    idle: Duration::from_secs(10),
    engine_starts: 21,
    bursts: [(50, 500), (200, 600)],
    rounds: 3,
    seconds: 1.0,
};
const QUICK: Pace = Pace {
    starts: 30,
    idle_starts: 0,
    idle: Duration::ZERO,
    engine_starts: 5,
    bursts: [(50, 100), (200, 200)],
    rounds: 1,
    seconds: 0.4,
};

/// What every measurement needs: programs, people, a folder and the pace.
pub(crate) struct Bench {
    pub(crate) lockgate: PathBuf,
    pub(crate) load: PathBuf,
    pub(crate) pace: &'static Pace,
    pub(crate) people: Vec<Person>,
    /// The bench's own folder, removed at its end.
    pub(crate) folder: PathBuf,
}

/// Runs `cargo xtask bench`.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workspace = Workspace::locate()?;
    let built = |given: &Option<PathBuf>, name: &str, args: &[&str]| match given {
        Some(path) => path.canonicalize().with_context(|| format!("failed to find {}", path.display())),
        None => workspace.build(name, args),
    };
    let lockgate = built(&options.lockgate, "lockgate", &["--release", "-p", "lockgate-cli"])?;
    let load = built(&options.load, "lockgate-load", &["--release", "-p", "lockgate-load"])?;
    let machine = Machine::look();
    if let Some(sentence) = machine.busy() {
        eprintln!("note: {sentence}");
    }
    let bench = Bench::prepare(&lockgate, &load, if options.quick { &QUICK } else { &THOROUGH })?;
    bench.watch_the_time();
    let parts = if options.only.is_empty() { &PARTS[..] } else { &options.only };
    eprintln!("{}", report::machine_line(&machine));
    let (mut sections, mut failures) = (Vec::new(), Vec::new());
    for part in parts {
        let began = Instant::now();
        match bench.measure(*part) {
            Ok(section) => {
                let took = began.elapsed().as_secs_f64();
                eprint!("\n{} ({took:.0} s)\n{}", section.title, report::plain(&section));
                sections.push(section);
            }
            Err(error) => failures.push(format!("{error:#}")),
        }
    }
    let raw = report::write_raw(&workspace.root, &machine, &sections)?;
    eprintln!("\nsamples: {}", raw.display());
    if !failures.is_empty() {
        bail!("not all could be measured, and the page is left as it is:\n  {}", failures.join("\n  "));
    }
    if !options.quick && options.only.is_empty() {
        eprintln!("page: {}", report::write_page(&workspace.root, &machine, &sections)?.display());
    }
    Ok(())
}

impl Bench {
    /// Copies both programs to where every person can start them.
    fn prepare(lockgate: &Path, load: &Path, pace: &'static Pace) -> Result<Self> {
        let folder = Path::new(FOLDER).join(format!("lockgate-bench-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
        // From here on, dropping it removes the folder.
        let mut bench = Self {
            lockgate: folder.join("lockgate"),
            load: folder.join("lockgate-load"),
            pace,
            people: Vec::new(),
            folder,
        };
        fs::copy(lockgate, &bench.lockgate).context("failed to copy lockgate")?;
        fs::copy(load, &bench.load).context("failed to copy the load generator")?;
        bench.people = Person::all(&bench.folder)?;
        Ok(bench)
    }

    fn measure(&self, part: Part) -> Result<Section> {
        match part {
            Part::Cold => starts::cold(self),
            Part::Concurrent => starts::concurrent(self),
            Part::Container => containers::measure(self),
            Part::Docker => docker::measure(self),
            Part::Splice => splice::measure(self),
            Part::Terminate => terminate::measure(self),
            Part::Plain => plain::measure(self),
            Part::Dns => dns::measure(self),
            Part::Memory => held::measure(self),
        }
    }

    /// Kills the whole bench if something hangs; servers and runs end by limits of their own.
    fn watch_the_time(&self) {
        let folder = self.folder.clone();
        std::thread::spawn(move || {
            std::thread::sleep(LIMIT);
            eprintln!("error: the bench took longer than {} s and was ended", LIMIT.as_secs());
            let _ = fs::remove_dir_all(folder);
            std::process::exit(1);
        });
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
