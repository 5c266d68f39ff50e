//! What every sandbox has inside at the same place.

use std::path::{Component, Path, PathBuf};

use policy::Backend;

use crate::caller::Caller;
use crate::image::RootImage;

/// The home inside.
pub(crate) const HOME: &str = "/home/agent";
/// Ports inside: the redirect's, which no program asks for (S2's 9999 belongs to the literal wiring, and a program of the
/// agent's own may want it), the explicit proxy's (S0.15) and DNS.
pub(crate) const TRANSPARENT_PORT: u16 = 41999;
pub(crate) const FORWARD_PORT: u16 = 8081;
pub(crate) const GATEWAY_PORT: u16 = 8080;
/// The gateway's Unix socket.
pub(crate) const GATEWAY_SOCKET: &str = "/run/lockgate.sock";
pub(crate) const DNS_PORT: u16 = 53;

/// The home inside: the sandbox's own, or that of the image's user where there is one that is not root.
pub(super) fn home(backend: Backend, caller: &Caller, image: Option<&RootImage>) -> PathBuf {
    match backend {
        Backend::Linux | Backend::Docker => HOME.into(),
        Backend::Container => image.and_then(RootImage::home).unwrap_or(Path::new(HOME)).into(),
        Backend::Process => caller.home.clone().unwrap_or_else(|| "/".into()),
    }
}

/// Whether a path is absolute, and leads down alone.
pub(super) fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.as_os_str().len() > 1
        && parts.all(|part| matches!(part, Component::Normal(_)))
}
