//! A failed step, as init reports it to its parent, and its remedy.

use std::borrow::Cow;
use std::path::Path;

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

    /// Returns the failure of a step of a plan.
    pub(crate) fn of_step(step: &Step, all: &[Step], cause: String) -> Self {
        let need = match step {
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
    const ALL: [Self; 6] = [
        Self::OtherDirectory,
        Self::UncoveredProc,
        Self::UserNamespaces,
        Self::Overlay,
        Self::Redirect,
        Self::PlaceOfItsOwn,
    ];

    /// Returns the remedy, for who has not asked `lockgate doctor` yet.
    pub(crate) fn remedy(self) -> String {
        match self {
            Self::OtherDirectory | Self::PlaceOfItsOwn => self.means().into_owned(),
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
            let failure = Failure::of_step(&show(target), &all, String::new());
            assert_eq!(failure.need, need, "{target}");
        }
    }

    #[test]
    fn every_need_has_its_sign() {
        for need in Need::ALL {
            assert_eq!(Need::of_sign(&Need::sign(Some(need)).to_string()), Some(need));
        }
    }
}
