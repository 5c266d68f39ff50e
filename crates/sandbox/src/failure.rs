//! A step that failed, as init tells it to its parent, and what would mend it.

use std::path::Path;

use crate::plan::inside::HOME;
use crate::step::{Step, Visible};

/// A step that failed, in words for the person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The step, in the words of the plan.
    pub step: String,
    /// What the kernel or the engine said.
    pub cause: String,
    /// What the step needs of the machine, where that is known.
    pub need: Option<Need>,
}

/// What a step needs of the machine or the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A directory to begin in.
    OtherDirectory,
    /// A `/proc` that nothing covers.
    UncoveredProc,
    /// User namespaces without root.
    UserNamespaces,
    /// Overlays in a user namespace, with attributes on files in memory.
    Overlay,
    /// Redirected packets.
    Redirect,
    /// A place inside where something can be made.
    PlaceOfItsOwn,
}

impl Failure {
    /// Of which nobody knows what would help.
    #[must_use]
    pub fn new(step: impl Into<String>, cause: impl ToString) -> Self {
        Self { step: step.into(), cause: cause.to_string(), need: None }
    }

    /// Of a step of a plan.
    pub(crate) fn of_step(step: &Step, all: &[Step], cause: String) -> Self {
        let need = match step {
            Step::Show(Visible { target, .. }) | Step::Copy(_, target) if is_of_this_machine(target, all) => {
                Some(Need::PlaceOfItsOwn)
            }
            Step::MountProc => Some(Need::UncoveredProc),
            Step::MountImage { .. } => Some(Need::Overlay),
            Step::WireNetwork => Some(Need::Redirect),
            _ => None,
        };
        Self { step: step.to_string(), cause, need }
    }

    /// With what it needs.
    pub(crate) fn needing(self, need: Need) -> Self {
        Self { need: Some(need), ..self }
    }
}

/// Whether a place inside lies in a directory of this machine's, in which nothing can be made.
fn is_of_this_machine(target: &Path, steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::ShowSystem(path) | Step::Link(path, _) => target.starts_with(path),
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

    /// What a person can do.
    pub(crate) fn remedy(self) -> String {
        let text = match self {
            Self::OtherDirectory => {
                return "name another: --workdir DIR, or `workdir` in the policy file".into();
            }
            Self::PlaceOfItsOwn => {
                return format!(
                    "there it is this machine's own: choose a place below {HOME}, or one that nothing has"
                );
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
        };
        format!("{text}; `lockgate doctor` tells what is missing")
    }

    /// As one character of a message.
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

    /// The same back.
    pub(crate) fn of_sign(sign: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|need| sign.chars().eq([Self::sign(Some(*need))]))
    }
}

#[cfg(test)]
mod tests {
    use policy::MountMode;

    use super::*;
    use crate::step::Source;

    #[test]
    fn what_is_put_among_this_machines_own_needs_another_place() {
        let show = |target: &str| {
            let source = Source::Host("/srv/x".into());
            Step::Show(Visible { source, target: target.into(), mode: MountMode::ReadOnly })
        };
        let all =
            [Step::ShowSystem("/usr".into()), Step::Link("/bin".into(), "usr/bin".into()), Step::ShowEtc];
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
