//! The requirements of a test, and the only place where it is skipped. A skip prints its reason, and is a failure if
//! `LOCKGATE_TEST_REQUIRE` is `all`; no skip is silent.

use std::env;
use std::path::{Path, PathBuf};

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
/// When something is missing and `LOCKGATE_TEST_REQUIRE` is `all`.
#[must_use]
pub fn ready(needs: &[Need]) -> bool {
    let missing = product().and_then(|_| needs.iter().try_for_each(|need| have(*need)));
    let Err(reason) = missing else { return true };
    assert!(env::var("LOCKGATE_TEST_REQUIRE").as_deref() != Ok("all"), "this test cannot run: {reason}");
    eprintln!("skipped: {reason}");
    false
}

/// Returns the path of the product: from `LOCKGATE_BIN`, or beside this test.
///
/// # Errors
/// A message that says what is missing.
pub fn product() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os("LOCKGATE_BIN") {
        let path = PathBuf::from(path);
        let missing = || format!("LOCKGATE_BIN names no file: {}", path.display());
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let own = env::current_exe().map_err(|error| format!("this test's own path is unknown: {error}"))?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join("lockgate"));
    beside
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| "`lockgate` is not built; build it, or name it in LOCKGATE_BIN".to_owned())
}

/// Returns another program of the same build, from beside the product or this test; prints a message and returns `None` if it is not built.
///
/// # Panics
/// When it is missing and `LOCKGATE_TEST_REQUIRE` is `all`.
#[must_use]
pub(crate) fn beside_product(name: &str) -> Option<PathBuf> {
    let variable = format!("LOCKGATE_{}_BIN", name.to_uppercase().replace('-', "_"));
    let named = env::var_os(variable).map(PathBuf::from);
    let own = env::current_exe().ok();
    let folders = product().ok().into_iter().chain(own).flat_map(|path| {
        path.ancestors().skip(1).take(2).map(|folder| folder.join(name)).collect::<Vec<_>>()
    });
    let found = named.into_iter().chain(folders).find(|path| path.is_file());
    if found.is_none() {
        let reason = format!("`{name}` is not built");
        assert!(env::var("LOCKGATE_TEST_REQUIRE").as_deref() != Ok("all"), "this test cannot run: {reason}");
        eprintln!("skipped: {reason}");
    }
    found
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
