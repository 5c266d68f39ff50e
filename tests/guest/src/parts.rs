//! The parts of a guest. Where one is missing, a test is skipped by the rule of `lockgate_needs`.

use std::path::PathBuf;
use std::process::Command;

use lockgate_needs::{made_by_setup, met, program, succeeds};

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
    /// When a part is missing and everything is required.
    #[must_use]
    pub fn find() -> Option<Self> {
        met(Self::look())
    }

    fn look() -> Result<Self, String> {
        let (product, probe) = (program("lockgate")?, program("probe")?);
        let qemu = format!("{QEMU} does not start; `cargo xtask setup` installs it");
        succeeds(Command::new(QEMU).arg("--version"), &qemu)?;
        let folder = made_by_setup("guest/kernel")?.with_file_name("");
        let [kernel, modules, busybox] = ["kernel", "modules", "busybox"].map(|name| folder.join(name));
        Ok(Self { product, probe, kernel, modules, busybox })
    }
}
