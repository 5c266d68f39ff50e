//! A failed step, as init reports it to its parent, and what it needs.

use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::need::Need;
use crate::step::{Step, Visible};

/// A failed step, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The text of the step.
    pub step: String,
    /// The error of the kernel or the engine.
    pub cause: String,
    /// What the step needs, if that is known.
    pub need: Option<Need>,
}

impl Failure {
    /// Returns a failure without a known remedy.
    #[must_use]
    pub fn new(step: impl Into<String>, cause: impl ToString) -> Self {
        Self { step: step.into(), cause: cause.to_string(), need: None }
    }

    /// Returns what makes the failure of this step from its cause.
    pub(crate) fn at<E: ToString>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |cause| Self::new(step, cause)
    }

    /// Returns what makes the failure of this step from the kernel's error. `need` tells what the error says that it needs.
    pub(crate) fn of_kernel(
        step: &'static str,
        need: fn(&io::Error) -> Option<Need>,
    ) -> impl FnOnce(io::Error) -> Self {
        move |error| Self { need: need(&error), ..Self::new(step, error) }
    }

    /// Returns the failure of a step of a plan. `errno` is the kernel's, if it was the kernel that refused.
    pub(crate) fn of_step(step: &Step, all: &[Step], cause: String, errno: Option<i32>) -> Self {
        let is = |known: Errno| errno == Some(known.raw_os_error());
        let need = match step {
            _ if is(Errno::NOSYS) => Some(Need::NewerKernel),
            Step::Show(_) | Step::Copy { .. } if is(Errno::LOOP) => Some(Need::PlaceWithoutLinks),
            Step::ShowWorkspace(..) | Step::OverlayWorkspace { .. } if is(Errno::LOOP) => {
                Some(Need::WorkspaceWithoutLinks)
            }
            Step::OverlayWorkspace { .. } | Step::MountImage { .. } | Step::ShowUnder { .. }
                if is(Errno::NODEV) =>
            {
                Some(Need::OverlayModule)
            }
            Step::Copy { .. } if is(Errno::EXIST) => Some(Need::FreePlace),
            Step::Copy { target, .. }
                if (is(Errno::NOSPC) || is(Errno::DQUOT)) && room_on_disk(target, all).is_some() =>
            {
                room_on_disk(target, all)
            }
            Step::Copy { .. } | Step::ReadAuthorities(_) | Step::TrustAuthorities(..) if is(Errno::NOSPC) => {
                Some(Need::MoreRoom)
            }
            // The private root is in memory and the sources are only opened, so no disk is full.
            Step::MountProc if is(Errno::NOSPC) => Some(Need::MoreNamespaces),
            Step::OpenSources | Step::MountRoot { .. } | Step::ShowSystem(_) | Step::EnterRoot => {
                errno.map(io::Error::from_raw_os_error).and_then(|error| Need::of_mounts(&error))
            }
            Step::MakeDevices if is(Errno::NOSPC) => Some(Need::MoreTerminals),
            Step::Show(Visible { target, .. }) | Step::Copy { target, .. }
                if is_of_this_machine(target, all) =>
            {
                Some(Need::PlaceOfItsOwn)
            }
            // Without the kernel's error, the image is to blame.
            Step::MountProc if errno.is_some() => Some(Need::UncoveredProc),
            Step::MountImage { .. } => Some(Need::Overlay),
            Step::WireNetwork => Some(Need::of_redirect(errno.map(Errno::from_raw_os_error))),
            _ => None,
        };
        Self { step: step.to_string(), cause, need }
    }

    /// Sets the requirement.
    pub(crate) fn needing(self, need: Need) -> Self {
        Self { need: Some(need), ..self }
    }
}

/// Whether a place inside is in a directory of the host, in which nothing can be made.
fn is_of_this_machine(target: &Path, steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::ShowSystem(path) | Step::Link { path, .. } => target.starts_with(path),
        Step::ShowEtc => target.starts_with("/etc"),
        _ => false,
    })
}

/// Returns where room is needed for what is written to a place inside, if it is written to a disk of this machine.
fn room_on_disk(target: &Path, steps: &[Step]) -> Option<Need> {
    let shown = steps.iter().filter_map(|step| match step {
        Step::ShowWorkspace(path, _) | Step::Show(Visible { target: path, .. }) => {
            Some((path, Need::RoomOnDisk))
        }
        Step::OverlayWorkspace { workspace, .. } => Some((workspace, Need::RoomForChanges)),
        _ => None,
    });
    let around = shown.filter(|(path, _)| target.starts_with(path));
    around.max_by_key(|(path, _)| path.components().count()).map(|(_, need)| need)
}

#[cfg(test)]
mod tests {
    use policy::MountMode;

    use super::*;
    use crate::further_authorities::FurtherAuthorities;

    #[test]
    fn what_is_put_among_this_machines_own_needs_another_place() {
        let show = |target: &str| {
            Step::Show(Visible { source: "/srv/x".into(), target: target.into(), mode: MountMode::ReadOnly })
        };
        let all = [
            Step::ShowSystem("/usr".into()),
            Step::Link { path: "/bin".into(), to: "usr/bin".into() },
            Step::ShowEtc,
        ];
        for (target, need) in [
            ("/usr/local/bin/x", Some(Need::PlaceOfItsOwn)),
            ("/bin/x", Some(Need::PlaceOfItsOwn)),
            ("/etc/x", Some(Need::PlaceOfItsOwn)),
            ("/home/agent/x", None),
        ] {
            let failure = Failure::of_step(&show(target), &all, String::new(), None);
            assert_eq!(failure.need, need, "{target}");
        }
        let copy = Step::Copy { source: "/srv/x".into(), target: "/home/agent/x".into() };
        let no_terminal = Some(Errno::NOSPC.raw_os_error());
        let devices = Failure::of_step(&Step::MakeDevices, &all, String::new(), no_terminal);
        assert_eq!(devices.need, Some(Need::MoreTerminals));
        let covered = Some(Errno::PERM.raw_os_error());
        for (errno, need) in [(covered, Some(Need::UncoveredProc)), (None, None)] {
            let proc = Failure::of_step(&Step::MountProc, &all, String::new(), errno);
            assert_eq!(proc.need, need, "{errno:?}");
        }
        for (errno, need) in [
            (Errno::EXIST, Some(Need::FreePlace)),
            (Errno::NOSPC, Some(Need::MoreRoom)),
            (Errno::LOOP, Some(Need::PlaceWithoutLinks)),
            (Errno::IO, None),
        ] {
            let failure = Failure::of_step(&copy, &all, String::new(), Some(errno.raw_os_error()));
            assert_eq!(failure.need, need, "{errno}");
        }
        let shown = [Step::ShowWorkspace("/home/agent".into(), policy::WorkspaceMode::ReadWrite)];
        let full = Some(Errno::NOSPC.raw_os_error());
        let failure = Failure::of_step(&copy, &shown, String::new(), full);
        assert_eq!(failure.need, Some(Need::RoomOnDisk));
        let (workspace, changes) = ("/home/agent".into(), "/state/w".into());
        let mut apart = vec![show("/home"), Step::OverlayWorkspace { workspace, changes }];
        let failure = Failure::of_step(&copy, &apart, String::new(), full);
        assert_eq!(failure.need, Some(Need::RoomForChanges));
        apart.insert(0, show("/home/agent/x"));
        let failure = Failure::of_step(&copy, &apart, String::new(), full);
        assert_eq!(failure.need, Some(Need::RoomOnDisk));
    }

    #[test]
    fn a_link_of_an_image_on_the_way_to_the_workspace_needs_another_folder() {
        let (workspace, changes) = ("/tmp/w".into(), "/state/w".into());
        for step in [
            Step::ShowWorkspace("/tmp/w".into(), policy::WorkspaceMode::ReadWrite),
            Step::OverlayWorkspace { workspace, changes },
        ] {
            let failure = Failure::of_step(&step, &[], String::new(), Some(Errno::LOOP.raw_os_error()));
            assert_eq!(failure.need, Some(Need::WorkspaceWithoutLinks));
        }
    }

    #[test]
    fn a_kernel_without_overlayfs_needs_its_module_alone() {
        let layers = vec!["/state/layer".into()];
        let image =
            Step::MountImage { layers, size: policy::ByteSize::from_mib(1), inodes: 1024, written: None };
        let (workspace, changes) = ("/srv/w".into(), "/state/w".into());
        for step in [image, Step::OverlayWorkspace { workspace, changes }] {
            let failure = Failure::of_step(&step, &[], String::new(), Some(Errno::NODEV.raw_os_error()));
            let remedy = failure.need.unwrap().remedy();
            assert!(remedy.ends_with("`modprobe overlay`"), "{remedy}");
        }
    }

    #[test]
    fn a_step_that_lacks_room_or_a_call_needs_what_the_kernel_lacks() {
        let root = Step::MountRoot { size: policy::ByteSize::from_mib(1), inodes: 1024 };
        let copy = Step::Copy { source: "/srv/x".into(), target: "/home/agent/x".into() };
        let full = Some(Errno::NOSPC.raw_os_error());
        for (step, need) in [
            (Step::OpenSources, Need::MoreNamespaces),
            (root.clone(), Need::MoreNamespaces),
            (copy, Need::MoreRoom),
            (Step::ReadAuthorities("/etc/ssl/certs/bundle.pem".into()), Need::MoreRoom),
            (Step::TrustAuthorities(None, FurtherAuthorities::default()), Need::MoreRoom),
        ] {
            assert_eq!(Failure::of_step(&step, &[], String::new(), full).need, Some(need), "{step}");
        }
        for step in [root, Step::ShowSystem("/usr".into()), Step::EnterRoot] {
            let forbidden = Failure::of_step(&step, &[], String::new(), Some(Errno::PERM.raw_os_error()));
            assert_eq!(forbidden.need, Some(Need::Mounts), "{step}");
        }
        let lacks = Failure::of_step(&Step::ShowEtc, &[], String::new(), Some(Errno::NOSYS.raw_os_error()));
        assert_eq!(lacks.need, Some(Need::NewerKernel));
    }
}
