//! The image of runs that need one: a Debian made by `cargo xtask setup`. For the backend `container` it is imported into a store of the
//! tests' own, once per user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use lockgate_needs::{made_by_setup, program};
use rustix::fs::FlockOperation;

/// The name of the image.
pub(crate) const NAME: &str = "debian";

/// Returns the `XDG_DATA_HOME` that contains the image.
pub(crate) fn store() -> Result<PathBuf, String> {
    static STORE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    STORE.get_or_init(prepare).clone()
}

/// Returns the archive of the image, found from where these tests were built.
pub(crate) fn archive() -> Result<PathBuf, String> {
    made_by_setup("images/debian.tar")
}

fn prepare() -> Result<PathBuf, String> {
    let archive = archive()?;
    let user = rustix::process::geteuid().as_raw();
    let store = Path::new("/var/tmp").join(format!("lockgate-test-images-{user}"));
    let fail = |error: std::io::Error| format!("the image cannot be taken in: {error}");
    fs::create_dir_all(&store).map_err(fail)?;
    // Tests are separate processes, and the first one imports the image.
    let lock = File::create(store.join("lock")).map_err(fail)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|e| fail(e.into()))?;
    let stamp = store.join("stamp");
    let wanted = format!("{:?}", fs::metadata(&archive).and_then(|m| m.modified()).map_err(fail)?);
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(store);
    }
    let mut import = Command::new(program("lockgate")?);
    import.args(["image", "import", "--name", NAME]).arg(&archive).env("XDG_DATA_HOME", &store);
    let done = import.output().map_err(fail)?;
    if !done.status.success() {
        return Err(format!("the image was refused: {}", String::from_utf8_lossy(&done.stderr)));
    }
    fs::write(&stamp, wanted).map_err(fail)?;
    Ok(store)
}
