//! The parts of a guest, and the only place where a test is skipped. A skip prints its reason, and is a failure if `LOCKGATE_TEST_REQUIRE`
//! is `all`; no skip is silent.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The virtual machine.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// The files of a guest.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The product.
    pub(crate) product: PathBuf,
    /// The program that reports from inside a sandbox.
    pub(crate) probe: PathBuf,
    /// A distribution's kernel.
    pub(crate) kernel: PathBuf,
    /// The folder of its modules.
    pub(crate) modules: PathBuf,
    /// A shell and its tools, static.
    pub(crate) busybox: PathBuf,
}

impl Parts {
    /// Returns all parts, if they are here. Otherwise it prints the reason, and the test must return.
    ///
    /// # Panics
    /// When a part is missing and `LOCKGATE_TEST_REQUIRE` is `all`.
    #[must_use]
    pub fn find() -> Option<Self> {
        let reason = match Self::look() {
            Ok(parts) => return Some(parts),
            Err(reason) => reason,
        };
        assert!(env::var("LOCKGATE_TEST_REQUIRE").as_deref() != Ok("all"), "this test cannot run: {reason}");
        eprintln!("skipped: {reason}");
        None
    }

    fn look() -> Result<Self, String> {
        let (product, probe) = (program("lockgate")?, program("probe")?);
        let asked = Command::new(QEMU).arg("--version").stdin(Stdio::null()).output();
        if !asked.is_ok_and(|output| output.status.success()) {
            return Err(format!("{QEMU} does not start; `cargo xtask setup` installs it"));
        }
        // Setup keeps them in the target directory, which contains this test as well.
        let own = own_path()?;
        let missing = || "no guest/kernel in the target directory; `cargo xtask setup` gets it".to_owned();
        let folder = own.ancestors().map(|above| above.join("guest")).find(|it| it.join("kernel").is_file());
        let folder = folder.ok_or_else(missing)?;
        let [kernel, modules, busybox] = ["kernel", "modules", "busybox"].map(|name| folder.join(name));
        Ok(Self { product, probe, kernel, modules, busybox })
    }
}

/// Returns the path of one of our programs: from its variable, or from where this test was built.
fn program(name: &str) -> Result<PathBuf, String> {
    let variable = match name {
        "lockgate" => "LOCKGATE_BIN".to_owned(),
        other => format!("LOCKGATE_{}_BIN", other.to_uppercase()),
    };
    if let Some(path) = env::var_os(&variable).map(PathBuf::from) {
        let missing = format!("{variable} names no file: {}", path.display());
        return if path.is_file() { Ok(path) } else { Err(missing) };
    }
    let own = own_path()?;
    let beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    beside
        .into_iter()
        .find(|path: &PathBuf| Path::is_file(path))
        .ok_or_else(|| format!("`{name}` is not built; build it, or name it in {variable}"))
}

fn own_path() -> Result<PathBuf, String> {
    env::current_exe().map_err(|error| format!("this test's own path is unknown: {error}"))
}
