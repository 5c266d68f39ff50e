//! A failed step, as init reports it to its parent, and its remedy.

use std::borrow::Cow;
use std::path::Path;

use rustix::io::Errno;

use crate::plan::inside::HOME;
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

/// A requirement of a step, of the machine or the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Another directory to start in.
    OtherDirectory,
    /// A `/proc` without mounts over it.
    UncoveredProc,
    /// Unprivileged user namespaces.
    UserNamespaces,
    /// Overlays in a user namespace, with extended attributes on tmpfs files.
    Overlay,
    /// The modules that redirect packets.
    Redirect,
    /// A place inside at which something can be made.
    PlaceOfItsOwn,
    /// A place inside at which nothing is.
    FreePlace,
    /// A place inside that no symbolic link leads to.
    PlaceWithoutLinks,
    /// More room for the run's own files.
    MoreRoom,
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

    /// Returns the failure of a step of a plan. `errno` is the kernel's, if it was the kernel that refused.
    pub(crate) fn of_step(step: &Step, all: &[Step], cause: String, errno: Option<i32>) -> Self {
        let is = |known: Errno| errno == Some(known.raw_os_error());
        let need = match step {
            Step::Show(_) | Step::Copy { .. } if is(Errno::LOOP) => Some(Need::PlaceWithoutLinks),
            Step::Copy { .. } if is(Errno::EXIST) => Some(Need::FreePlace),
            Step::Copy { .. } if is(Errno::NOSPC) => Some(Need::MoreRoom),
            Step::Show(Visible { target, .. }) | Step::Copy { target, .. }
                if is_of_this_machine(target, all) =>
            {
                Some(Need::PlaceOfItsOwn)
            }
            Step::MountProc => Some(Need::UncoveredProc),
            Step::MountImage { .. } => Some(Need::Overlay),
            Step::WireNetwork => Some(Need::Redirect),
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

impl Need {
    const ALL: [Self; 9] = [
        Self::OtherDirectory,
        Self::UncoveredProc,
        Self::UserNamespaces,
        Self::Overlay,
        Self::Redirect,
        Self::PlaceOfItsOwn,
        Self::FreePlace,
        Self::PlaceWithoutLinks,
        Self::MoreRoom,
    ];

    /// Returns the remedy, for who has not asked `lockgate doctor` yet.
    pub(crate) fn remedy(self) -> String {
        match self {
            Self::OtherDirectory
            | Self::PlaceOfItsOwn
            | Self::FreePlace
            | Self::PlaceWithoutLinks
            | Self::MoreRoom => self.means().into_owned(),
            Self::UncoveredProc | Self::UserNamespaces | Self::Overlay | Self::Redirect => {
                format!("{}; `lockgate doctor` tells what is missing", self.means())
            }
        }
    }

    /// Returns what meets the requirement.
    pub(crate) fn means(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::OtherDirectory => "name another: --workdir DIR, or `workdir` in the policy file",
            Self::PlaceOfItsOwn => {
                return Cow::Owned(format!(
                    "there it is this machine's own: choose a place below {HOME}, or one that nothing has"
                ));
            }
            Self::FreePlace => {
                "nothing is written over what is there: take it away, or copy to a place outside the workspace, where each run \
                 has its own"
            }
            Self::PlaceWithoutLinks => {
                "a part of that path is a symbolic link, and none is followed: name a place without one"
            }
            Self::MoreRoom => {
                "what a run has of its own is in memory, within `limits.disk` and half of `limits.memory`: raise them, or use \
                 --mount, which copies nothing"
            }
            Self::UncoveredProc => {
                "in a container, start it with an unmasked /proc (`--security-opt systempaths=unconfined`)"
            }
            Self::UserNamespaces => {
                "allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1 \
                 kernel.apparmor_restrict_unprivileged_userns=0`"
            }
            Self::Overlay => {
                "images need overlayfs in user namespaces, with attributes on files in memory: `modprobe overlay`, \
                 on Linux 6.6 or later"
            }
            Self::Redirect => {
                "the kernel needs nf_tables with nft_tproxy, or with nft_redir and nf_nat: `modprobe nft_tproxy`"
            }
        })
    }

    /// Encodes a requirement as one character of a message.
    pub(crate) fn sign(need: Option<Self>) -> char {
        match need {
            None => '-',
            Some(Self::OtherDirectory) => 'd',
            Some(Self::UncoveredProc) => 'p',
            Some(Self::UserNamespaces) => 'u',
            Some(Self::Overlay) => 'o',
            Some(Self::Redirect) => 'r',
            Some(Self::PlaceOfItsOwn) => 'h',
            Some(Self::FreePlace) => 'f',
            Some(Self::PlaceWithoutLinks) => 'l',
            Some(Self::MoreRoom) => 'm',
        }
    }

    /// Decodes a requirement.
    pub(crate) fn of_sign(sign: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|need| sign.chars().eq([Self::sign(Some(*need))]))
    }
}

#[cfg(test)]
mod tests {
    use policy::MountMode;

    use super::*;

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
        for (errno, need) in [
            (Errno::EXIST, Some(Need::FreePlace)),
            (Errno::NOSPC, Some(Need::MoreRoom)),
            (Errno::LOOP, Some(Need::PlaceWithoutLinks)),
            (Errno::IO, None),
        ] {
            let failure = Failure::of_step(&copy, &all, String::new(), Some(errno.raw_os_error()));
            assert_eq!(failure.need, need, "{errno}");
        }
    }

    #[test]
    fn every_need_has_its_sign() {
        for need in Need::ALL {
            assert_eq!(Need::of_sign(&Need::sign(Some(need)).to_string()), Some(need));
        }
    }
}
