//! Describes the machine a bench ran on, and the versions of its peers: without them a figure means nothing.
//!
//! Where something cannot be found out it says `unknown`, and never guesses.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::bounded::Bounded;

const UNKNOWN: &str = "unknown";
/// How long a program may take to print its version.
const PATIENCE: Duration = Duration::from_secs(10);
/// The peers, and the flag that prints each one's version.
const PEERS: [(&str, &str); 6] = [
    ("bwrap", "--version"),
    ("crun", "--version"),
    ("haproxy", "-v"),
    ("nginx", "-v"),
    ("sandlock", "--version"),
    ("unbound", "-V"),
];

/// The description of the machine.
#[derive(Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// UTC, to the minute, ISO 8601.
    pub(crate) time: String,
    /// The load average of the last minute: above half a core, the figures are those of a busy machine.
    pub(crate) load: f64,
    pub(crate) peers: Vec<(String, String)>,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let peers = PEERS.iter().filter_map(|(name, flag)| Some(((*name).to_owned(), version(name, flag)?)));
        Self {
            processor: model.map_or(UNKNOWN, |(_, model)| model.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.split('-').next().unwrap_or(UNKNOWN).trim().to_owned(),
            time: Bounded::new("date", &["-u", "+%Y-%m-%dT%H:%MZ"], PATIENCE)
                .stdout()
                .unwrap_or_default()
                .trim()
                .to_owned(),
            load: load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN),
            peers: peers.collect(),
        }
    }

    /// Returns the date, as in `2026-11-22`.
    pub(crate) fn date(&self) -> &str {
        self.time.split('T').next().unwrap_or(UNKNOWN)
    }

    /// Returns a sentence about other work on the machine, if there was much.
    pub(crate) fn busy(&self) -> Option<String> {
        (self.load > self.cores as f64 / 2.0).then(|| {
            format!(
                "The machine was busy with other work (load {:.1}): read the ratios, not the figures.",
                self.load
            )
        })
    }
}

/// Returns the first number in the version that a program prints.
fn version(name: &str, flag: &str) -> Option<String> {
    let path = find(name)?;
    let output = Bounded::new(path.to_str()?, &[flag], PATIENCE).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let is_number =
        |word: &&str| word.starts_with(|letter: char| letter.is_ascii_digit()) && word.contains('.');
    let word = text.split([' ', '/', '\n']).find(is_number).unwrap_or(UNKNOWN);
    Some(word.to_owned())
}

/// Finds a program on `PATH`, or in the administrators' folders, which a user's `PATH` may leave out.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_folders_are_none() {
        assert!(find("sh").is_some_and(|path| path.is_absolute()));
        assert!(find("no-such-program").is_none());
        assert!(!is_program(Path::new("/tmp")));
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_date() {
        let machine = Machine::look();
        assert!(machine.kernel.starts_with(|letter: char| letter.is_ascii_digit()), "{}", machine.kernel);
        assert_eq!(machine.date().len(), 10, "{}", machine.time);
    }
}
