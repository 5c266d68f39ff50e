//! Refuses workspaces that may be none, and plans that show the socket of a container engine, which makes its user root on this machine
//! (S3.10), a protected path of the workspace at a second place, where it could be written, or something that hides what is shown before.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use policy::{Backend, MountMode, RunSpec, WorkspaceMode};

use super::engine::{self, SOCKET};
use super::inside::GATEWAY_SOCKET;
use super::{Plan, holds, session};
use crate::alias::Aliases;
use crate::caller::Caller;
use crate::error::Error;
use crate::mounted::{Mounts, MountsOnceRead, Place, mount_of};
use crate::need::Need;
use crate::path_identity::PathIdentity;
use crate::step::{Step, Visible};
use crate::{process_files, protect};

/// Refuses a `/proc` that does not tell of the processes of this pid namespace.
///
/// # Errors
/// When it is that of another one, or is not there.
pub fn refuse_foreign_process_files() -> Result<(), Error> {
    match process_files::are_of_this_namespace() {
        true => Ok(()),
        false => Err(Error::Refused {
            what: process_files::FOREIGN.into(),
            remedy: Some(Need::ProcessFiles.remedy()),
        }),
    }
}

/// The usual sockets of engines, beside the one that the caller names.
const USUAL: [&str; 3] = [SOCKET, "/run/podman/podman.sock", "/run/containerd/containerd.sock"];
/// The usual sockets of rootless engines, below the session's runtime directory.
const OF_A_SESSION: [&str; 2] = ["docker.sock", "podman/podman.sock"];

/// Directories of the system that are no workspaces; what is in the kernel's own is none either.
const SYSTEM_DIRECTORIES: [&str; 13] =
    ["/", "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/home", "/tmp", "/run", "/var"];

/// The directories from which the machine is run or configured. What lies in `/usr/share` is read and executed by programs of root's as
/// well.
const OBEYED: [&str; 14] = [
    "/usr",
    "/etc",
    "/boot",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/libexec",
    "/var/spool/cron",
    "/var/lib/apt",
    "/var/lib/dpkg",
    "/var/lib/systemd",
];
/// What of them is there for users.
const FOR_USERS: [&str; 2] = ["/usr/src", "/usr/local/src"];

/// Whether a path is, or is in, a directory from which the machine is run or configured.
fn is_obeyed_by_the_system(path: &Path) -> bool {
    let is_in = |directory: &&str| path.starts_with(directory);
    OBEYED.iter().any(is_in) && !FOR_USERS.iter().any(is_in)
}

/// Whether a path is, or is in, such a directory under another name, such as that of a bind mount, or contains such a directory.
fn is_obeyed_by_another_name(path: &Path, mounts: &Mounts) -> bool {
    let Some(place) = mounts.place_of(path) else { return false };
    let place_of = |directory: &&str| mounts.place_of(Path::new(directory));
    let obeyed: Vec<Place> = OBEYED.iter().filter_map(place_of).collect();
    let is_in = |obeyed: &Place| place.is_in(obeyed);
    let holds_any = obeyed.iter().chain(&place_of(&"/")).any(|it| it.is_in(&place));
    let is_for_users = || FOR_USERS.iter().filter_map(place_of).any(|it| is_in(&it));
    holds_any || obeyed.iter().any(is_in) && !is_for_users()
}

/// Refuses a plan that shows an engine's socket, or could show a second name of it.
pub(super) fn refuse_engines(plan: &Plan, caller: &Caller, mounts: &MountsOnceRead) -> Result<(), Error> {
    let known = plan.engine.as_ref().map(|engine| engine.at.socket.clone());
    let named = known.or_else(|| engine::socket(caller).ok());
    let sessions = session::folders(caller);
    let of_sessions = sessions.iter().flat_map(|folder| OF_A_SESSION.map(|name| folder.join(name)));
    for socket in named.into_iter().chain(USUAL.map(PathBuf::from)).chain(of_sessions) {
        let is_ours = plan.engine.as_ref().is_some_and(|engine| engine.at.socket == socket);
        let presence = match socket.try_exists() {
            Ok(true) => Presence::There,
            Err(error) if !is_ours && is_shut(&error, &socket, plan.backend, caller) => continue,
            Err(_) => Presence::Unknown,
            Ok(false) if is_ours => Presence::There,
            // A usual socket that does not exist now need not be hidden.
            Ok(false) => continue,
        };
        refuse(plan, &socket, presence)?;
        if let Ok(socket) = socket.canonicalize() {
            let mounts = mounts.get().map_err(|error| untold(&plan.workspace, &error))?;
            refuse_mounted(plan, &socket, &mounts)?;
        }
    }
    Ok(())
}

/// What is known of a socket.
#[derive(Clone, Copy)]
enum Presence {
    There,
    /// Its folder cannot be looked into.
    Unknown,
}

impl Presence {
    fn told(self) -> &'static str {
        match self {
            Self::There => "the engine's socket is there",
            Self::Unknown => "the engine's socket may be there: it cannot be looked at",
        }
    }
}

/// Whether a socket is behind a folder of root's that a plain user's run cannot pass either. An engine may run its containers as root, and
/// the caller's own folder can be opened by its mode.
fn is_shut(error: &io::Error, socket: &Path, backend: Backend, caller: &Caller) -> bool {
    let folder = || socket.ancestors().skip(1).find_map(|above| std::fs::metadata(above).ok());
    error.kind() == io::ErrorKind::PermissionDenied
        && backend != Backend::Docker
        && caller.uid != 0
        && folder().is_some_and(|folder| folder.uid() == 0)
}

/// Refuses to show anything at or below a held name of the workspace: a placeholder with something in it would look like the user's own
/// folder.
pub(super) fn refuse_below_held(spec: &RunSpec, plan: &Plan) -> Result<(), Error> {
    let targets = spec.mounts.iter().map(|mount| &mount.target);
    for target in targets.chain(spec.copies.iter().map(|copy| &copy.target)) {
        let Ok(within) = target.strip_prefix(&plan.workspace) else { continue };
        if let Some(held) = holds(spec, &plan.workspace, within)? {
            return Err(Error::Refused {
                what: format!(
                    "nothing can be shown at `{}`: `{}` is protected, and is not there in the workspace",
                    target.display(),
                    held.display()
                ),
                remedy: Some(format!("make it first, show it elsewhere, or use --open {}", held.display())),
            });
        }
    }
    Ok(())
}

/// Refuses a workspace that is a directory of the system or the sandbox, that this machine obeys, or that holds the caller's home.
pub(super) fn refuse_workspace(
    path: &Path,
    spec: &RunSpec,
    caller: &Caller,
    mounts: &MountsOnceRead,
) -> Result<(), Error> {
    let refuse = |why: &str, remedy: &str| {
        let what = format!("`{}` cannot be a {why}", path.display());
        Err(Error::Refused { what, remedy: Some(remedy.into()) })
    };
    let is_kernels = ["/proc", "/sys", "/dev"].iter().any(|own| path.starts_with(own));
    if is_kernels || SYSTEM_DIRECTORIES.iter().any(|own| path == Path::new(own)) {
        return Err(Error::Impossible {
            what: format!("`{}` cannot be a workspace: it is a directory of the system", path.display()),
            remedy: "start in a folder of your own, or name one with --workspace".into(),
        });
    }
    if session::is_of_a_session(path, caller) {
        return refuse(
            "workspace: your login session keeps its sockets there, by which programs outside can be started",
            "start in a folder of your own, or name one with --workspace",
        );
    }
    let is_obeyed = || match is_obeyed_by_the_system(path) {
        true => Ok(true),
        false => {
            let mounts = mounts.get().map_err(|error| untold(path, &error))?;
            Ok(is_obeyed_by_another_name(path, &mounts))
        }
    };
    if spec.workspace_mode == WorkspaceMode::ReadWrite && is_obeyed()? {
        return refuse(
            "writable workspace: what is there, this machine executes or is configured by",
            "use --workspace-mode overlay, and apply what you want of it; or ro",
        );
    }
    if caller.home.as_ref().is_some_and(|home| PathIdentity::of(home).is_in(path)) {
        return Err(Error::Impossible {
            what: format!(
                "`{}` cannot be a workspace: it holds your home, with your keys and this program's own",
                path.display()
            ),
            remedy: "start in the folder of a project, or name one with --workspace".into(),
        });
    }
    Ok(())
}

/// Refuses to show something where it would hide what is shown before it: the workspace, a mount or a tool. What shows the same files at the
/// same place hides nothing, and a copy is merged into what is there. An engine mounts the outer of two first, whatever their order.
pub(super) fn refuse_hidden(plan: &Plan) -> Result<(), Error> {
    let shown: Vec<(&Path, &Path)> = plan.steps.iter().filter_map(shown_at).collect();
    let is_hidden = |inner: &(&Path, &Path), outer: &(&Path, &Path)| {
        let is_below = match plan.backend {
            Backend::Docker => inner.1 == outer.1,
            Backend::Linux | Backend::Container | Backend::Process => inner.1.starts_with(outer.1),
        };
        // The workspace is protected as it was shown.
        let is_same = |below: &Path| outer.0.join(below) == inner.0 && inner.1 != plan.workspace;
        is_below && !inner.1.strip_prefix(outer.1).is_ok_and(is_same)
    };
    for (number, outer) in shown.iter().enumerate() {
        let Some((_, hidden)) = shown[..number].iter().find(|inner| is_hidden(inner, outer)) else {
            continue;
        };
        let hidden = if *hidden == plan.workspace { "the workspace" } else { &hidden.to_string_lossy() };
        return Err(Error::Impossible {
            what: format!(
                "what is shown at `{}` would hide {hidden}, which is shown before it",
                outer.1.display()
            ),
            remedy: "show each at a place of its own, and the outer of two before the inner".into(),
        });
    }
    Ok(())
}

/// Refuses to make anything where the gateway's socket is made inside.
pub(super) fn refuse_in_place_of_the_gateway(plan: &Plan) -> Result<(), Error> {
    let made_at = |step: &Step| match step {
        Step::Show(Visible { target, .. }) | Step::Copy { target, .. } => Some(target.clone()),
        Step::ShowWorkspace(path, _)
        | Step::OverlayWorkspace { workspace: path, .. }
        | Step::Directory(path, _) => Some(path.clone()),
        _ => None,
    };
    let has_socket = matches!(plan.backend, Backend::Linux | Backend::Container);
    let taken = plan.steps.iter().filter_map(made_at).find(|place| place.starts_with(GATEWAY_SOCKET));
    match taken.filter(|_| has_socket) {
        None => Ok(()),
        Some(place) => Err(Error::Refused {
            what: format!(
                "nothing can be at `{}`: {GATEWAY_SOCKET} is the gateway's socket",
                place.display()
            ),
            remedy: Some("name another place".into()),
        }),
    }
}

/// Returns the source and the place of what a step shows of the host, if the policy names it.
fn shown_at(step: &Step) -> Option<(&Path, &Path)> {
    match step {
        Step::ShowWorkspace(path, _) | Step::OverlayWorkspace { workspace: path, .. } => Some((path, path)),
        Step::Show(Visible { source, target, .. }) => Some((source, target)),
        _ => None,
    }
}

/// Refuses to show the workspace, or a protected path in it, a second time for writing, whatever its name there.
pub(super) fn refuse_second_names(plan: &Plan, mounts: &MountsOnceRead) -> Result<(), Error> {
    let workspace = &plan.workspace;
    let writable: Vec<_> = plan.steps.iter().filter_map(shown_for_writing).collect();
    if writable.is_empty() {
        return Ok(());
    }
    let into = writable.iter().filter_map(|(path, _)| mount_of(path));
    let mounts = mounts.with(into).map_err(|error| untold(workspace, &error))?;
    let aliases = Aliases::of(workspace, &plan.open, &mounts);
    for (path, is_mount) in writable {
        let within = path.strip_prefix(workspace).ok();
        let by_name = within.is_some_and(|within| protect::shows_protected(within, &plan.open));
        let refused = |why: String, remedy: &str| Error::Refused {
            what: format!("`{}` cannot be shown for writing: {why}", path.display()),
            remedy: Some(remedy.into()),
        };
        if is_mount && (by_name || aliases.shows_protected(path)) {
            return Err(refused(
                format!("what is protected in the workspace {} could be written there", workspace.display()),
                "show it read-only, or a folder in which nothing is protected",
            ));
        }
        if let Some(place) = aliases.first_below(path) {
            return Err(refused(
                format!(
                    "what is protected in the workspace {} is mounted at `{}` as well, and could be written there",
                    workspace.display(),
                    place.display()
                ),
                if is_mount {
                    "unmount that, mount it read-only, or show the folder read-only"
                } else {
                    "unmount that, mount it read-only, or use --workspace-mode ro"
                },
            ));
        }
    }
    Ok(())
}

/// Returns the source of what a step shows for writing, and whether it is a mount and not the workspace.
pub(super) fn shown_for_writing(step: &Step) -> Option<(&Path, bool)> {
    match step {
        Step::ShowWorkspace(path, WorkspaceMode::ReadWrite) => Some((path, false)),
        Step::Show(Visible { source, mode: MountMode::ReadWrite, .. }) => Some((source, true)),
        _ => None,
    }
}

pub(super) fn untold(folder: &Path, error: &io::Error) -> Error {
    let source = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
    Error::Unlisted { path: folder.into(), source }
}

/// Refuses an overlay over a workspace with a mount below it. The overlay does not cross into the mount: it would show, and take over, what
/// the mount covers.
pub(super) fn refuse_mounts_below(plan: &Plan, mounts: &MountsOnceRead) -> Result<(), Error> {
    if !plan.steps.iter().any(|step| matches!(step, Step::OverlayWorkspace { .. })) {
        return Ok(());
    }
    let workspace = &plan.workspace;
    let mounts = mounts.get().map_err(|error| untold(workspace, &error))?;
    mounts.first_below(workspace).map_or(Ok(()), |place| {
        Err(Error::Refused {
            what: format!(
                "what is written in the workspace {} cannot be kept apart: something is mounted below it, at `{}`",
                workspace.display(),
                place.display()
            ),
            remedy: Some("use --workspace-mode rw or ro, or start in a folder without it and show it with --mount".into()),
        })
    })
}

fn refuse(plan: &Plan, socket: &Path, presence: Presence) -> Result<(), Error> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let at = real(socket);
    let about = std::fs::metadata(socket).ok().filter(|about| about.file_type().is_socket());
    let is_it = |path: &Path| match (&about, std::fs::metadata(path)) {
        // Bound to another name, say.
        (Some(about), Ok(shown)) => (about.dev(), about.ino()) == (shown.dev(), shown.ino()),
        _ => false,
    };
    if let Some(path) = plan.shown().find(|path| at.starts_with(real(path)) || is_it(path)) {
        return Err(Error::Refused {
            what: format!("`{}` cannot be shown inside: {}", path.display(), presence.told()),
            remedy: Some("show a path beside it, or have the engine listen elsewhere".into()),
        });
    }
    let Some(about) = about else { return Ok(()) };
    let is_beside = |path: &&Path| std::fs::metadata(path).is_ok_and(|shown| shown.dev() == about.dev());
    match plan.shown().find(is_beside) {
        Some(path) if about.nlink() > 1 => Err(Error::Refused {
            what: format!(
                "`{}` cannot be shown inside: the engine's socket {} has a second name, which may be there",
                path.display(),
                socket.display()
            ),
            remedy: Some("remove that name; `find / -samefile` with the socket tells it".into()),
        }),
        _ => Ok(()),
    }
}

/// Refuses to show a folder below which the socket, or a folder that it is in, is mounted: it would be shown as well. The socket's path is
/// resolved.
pub(super) fn refuse_mounted(plan: &Plan, socket: &Path, mounts: &Mounts) -> Result<(), Error> {
    let Some(place) = mounts.place_of(socket) else { return Ok(()) };
    let mounted = |path: &Path| {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        mounts.first_that_shows(&place, &real).map(Path::to_path_buf)
    };
    match plan.shown().find_map(|path| Some((path, mounted(path)?))) {
        None => Ok(()),
        Some((path, at)) => Err(Error::Refused {
            what: format!(
                "`{}` cannot be shown inside: {}, mounted at `{}`",
                path.display(),
                Presence::There.told(),
                at.display()
            ),
            remedy: Some("unmount that, show a path beside it, or have the engine listen elsewhere".into()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_behind_a_folder_that_the_run_cannot_pass_either_is_not_looked_for() {
        let closed = io::Error::from(io::ErrorKind::PermissionDenied);
        let of_root = Path::new("/nonesuch/docker.sock"); // `/` is root's
        let (user, root) = (Caller::new(1000, 1000, "/"), Caller::new(0, 0, "/"));
        for backend in [Backend::Linux, Backend::Container] {
            assert!(is_shut(&closed, of_root, backend, &user) && !is_shut(&closed, of_root, backend, &root));
            assert!(!is_shut(&io::Error::from(io::ErrorKind::NotADirectory), of_root, backend, &user));
        }
        assert!(!is_shut(&closed, of_root, Backend::Docker, &user));
        assert!(Presence::Unknown.told().contains("may be there"));
    }
}
