//! The requirements of a test with real clients. Where one is missing, the test is skipped by the rule of `lockgate_needs`.

use std::env;
use std::path::{Path, PathBuf};

use lockgate_needs::{met, program};

/// A requirement that this machine may lack.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// A program in a system directory, which a sandbox sees.
    Program(&'static str),
    /// The virtual environment with the Python clients, named by `LOCKGATE_TEST_VENV`.
    Venv,
    /// A path below the home directory of the user who runs the tests.
    Home(&'static str),
    /// The right to become another user and to mount.
    Root,
}

/// The directories in which a sandbox finds programs.
const SYSTEM: [&str; 6] = ["/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// Returns whether the product and all of `needs` are here. Otherwise it prints the reason, and the test must return.
///
/// # Panics
/// When something is missing and everything is required.
#[must_use]
pub fn ready(needs: &[Need]) -> bool {
    met(product().and_then(|_| needs.iter().try_for_each(|need| have(*need)))).is_some()
}

/// Returns the path of the product: from `LOCKGATE_BIN`, or beside this test.
///
/// # Errors
/// A message that says what is missing.
pub fn product() -> Result<PathBuf, String> {
    program("lockgate")
}

/// Returns a path below the home directory of the user who runs the tests, if it exists.
#[must_use]
pub fn home_has(path: &str) -> Option<PathBuf> {
    env::var_os("HOME").map(|home| Path::new(&home).join(path)).filter(|path| path.exists())
}

fn have(need: Need) -> Result<(), String> {
    match need {
        Need::Program(name) => {
            let found = SYSTEM.iter().any(|folder| Path::new(folder).join(name).is_file());
            if found { Ok(()) } else { Err(format!("{name} is not in a system directory")) }
        }
        Need::Venv => match env::var_os("LOCKGATE_TEST_VENV") {
            Some(path) if Path::new(&path).join("bin/python").exists() => Ok(()),
            Some(path) => Err(format!("LOCKGATE_TEST_VENV has no Python: {}", path.display())),
            None => Err("LOCKGATE_TEST_VENV names no virtual environment".to_owned()),
        },
        Need::Root => {
            use std::os::unix::fs::MetadataExt;
            let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
            if root { Ok(()) } else { Err("it needs to be root".to_owned()) }
        }
        Need::Home(path) => home_has(path).map(drop).ok_or_else(|| format!("~/{path} is not there")),
    }
}
