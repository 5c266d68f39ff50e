//! Paths that are the same in every sandbox.

use std::path::{Component, Path, PathBuf};

use policy::Backend;

use crate::caller::Caller;
use crate::image::RootImage;

/// The sandbox's own home.
pub(crate) const HOME: &str = "/home/agent";
/// The gateway's Unix socket.
pub(crate) const GATEWAY_SOCKET: &str = "/run/lockgate.sock";

/// The directories for everybody's temporary files.
pub(crate) const EVERYBODYS: [&str; 2] = ["/tmp", "/var/tmp"];

/// The folder of the run's own files of configuration.
pub(crate) const OURS: &str = "/.lockgate-etc";

/// Returns the home inside: the sandbox's own, or that of the image's user if it is not root.
pub(super) fn home(backend: Backend, caller: &Caller, image: Option<&RootImage>) -> PathBuf {
    match backend {
        Backend::Linux | Backend::Docker => HOME.into(),
        Backend::Container => image.and_then(RootImage::home).unwrap_or(Path::new(HOME)).into(),
        Backend::Process => caller.home.clone().unwrap_or_else(|| "/".into()),
    }
}

/// Whether a path is absolute, not the root, and without `..`.
pub(super) fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.as_os_str().len() > 1
        && parts.all(|part| matches!(part, Component::Normal(_)))
}
