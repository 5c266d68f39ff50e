//! The engines that all tests of root's share, one of Docker's and one of Podman's: to start one takes longer than most tests at it.
//!
//! Tests that cannot share them start their own, and so does each test where none is given.

use std::path::Path;
use std::time::Duration;

use crate::bounded::Bounded;
use crate::setup;
use crate::workspace::Workspace;

/// How long one may take to start and to end again.
const LIMIT: Duration = Duration::from_secs(60);

/// A kind of engine: the programs it consists of, what `engine` of `tests/world` is told, and where tests look for its address.
struct Kind {
    programs: [&'static str; 3],
    flags: &'static [&'static str],
    variable: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind { programs: ["dockerd", "containerd", "iptables"], flags: &[], variable: "LOCKGATE_TEST_DOCKER" },
    Kind { programs: ["podman", "runc", "iptables"], flags: &["--podman"], variable: "LOCKGATE_TEST_PODMAN" },
];

/// Returns the words that give a command behind them these engines, for as long as it runs: none without root, and none for an engine
/// that does not start here. The tests that need it say why.
pub(crate) fn words(workspace: &Workspace, engine: &Path) -> Vec<String> {
    let image = workspace.target.join(setup::ENGINES_IMAGE);
    if !setup::is_root() || !image.is_file() {
        return Vec::new();
    }
    let all = KINDS.iter().filter(|kind| kind.programs.iter().all(|it| setup::program(it).is_some()));
    all.map(|kind| kind.words(engine, &image)).filter(|words| starts(words)).flatten().collect()
}

impl Kind {
    fn words(&self, engine: &Path, image: &Path) -> Vec<String> {
        let shown = |path: &Path| path.display().to_string();
        let flags = self.flags.iter().map(|word| (*word).to_owned());
        let image = ["--archive".to_owned(), shown(image)];
        let rest = ["--as", self.variable, "--"].map(str::to_owned);
        [shown(engine)].into_iter().chain(flags).chain(image).chain(rest).collect()
    }
}

/// Whether the engine of these words can be started. With one that cannot, no test would run.
fn starts(words: &[String]) -> bool {
    let [engine, flags @ ..] = words else { return false };
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["true"]).collect();
    match Bounded::new(engine, &flags, LIMIT).run() {
        Ok(()) => true,
        Err(error) => {
            eprintln!("    each test at an engine starts its own: {error:#}");
            false
        }
    }
}
