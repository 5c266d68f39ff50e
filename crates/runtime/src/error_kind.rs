//! What kind of an error each is: whose matter it is, for the exit code of a command.

use crate::error::Error;
use crate::given_file::NotTaken;

/// What kind of an error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The command line or the policy is wrong, or what it names is not there: nothing was done.
    Usage,
    /// The answer is no, or nothing was found.
    Nothing,
    /// A signal asked for the end.
    Interrupted(i32),
    /// Lockgate itself failed: it could not make the sandbox, or read or write its own files.
    Failed,
}

impl Error {
    /// Returns what kind of an error it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Write { source, .. } if NotTaken::in_error(source).is_some() => ErrorKind::Usage,
            Self::ReadSettings { .. }
            | Self::ReadLayer { .. }
            | Self::NotAPolicy { .. }
            | Self::ParseSettings { .. }
            | Self::Settings(_)
            | Self::NoRun { .. }
            | Self::NoCredential(_)
            | Self::Expose { .. }
            | Self::OrganisationBesidePlatform { .. }
            | Self::Value { .. }
            | Self::ReadValue { .. }
            | Self::NoCommand { .. }
            | Self::Image(
                image::Error::Reference { .. }
                | image::Error::NoSource { .. }
                | image::Error::NoName { .. }
                | image::Error::NothingToRemove { .. },
            )
            | Self::Sandbox(sandbox::Error::Unknown { .. } | sandbox::Error::Impossible { .. }) => {
                ErrorKind::Usage
            }
            Self::Record { .. }
            | Self::GoesOn { .. }
            | Self::BeingApplied(..)
            | Self::LeftBehind { .. }
            | Self::Stop { .. }
            | Self::AlreadyEnded { .. }
            | Self::WrittenBy { .. }
            | Self::NothingKept { .. } => ErrorKind::Nothing,
            Self::Interrupted { signal } | Self::TakeOverEnded { signal, .. } => {
                ErrorKind::Interrupted(*signal)
            }
            Self::NoStateDirectory
            | Self::NoDataDirectory
            | Self::State { .. }
            | Self::StateOfOthers { .. }
            | Self::Approval { .. }
            | Self::Write { .. }
            | Self::Changes { .. }
            | Self::TakeOver { .. }
            | Self::HalfPlatform { .. }
            | Self::VaultKey { .. }
            | Self::KeyFile { .. }
            | Self::KeyOfOthers { .. }
            | Self::KeyShared { .. }
            | Self::VaultKeyGone { .. }
            | Self::Vault(_)
            | Self::Image(_)
            | Self::Sandbox(_)
            | Self::Gate(_)
            | Self::Files(_)
            | Self::SidecarLost
            | Self::SidecarUntold { .. }
            | Self::SidecarFailed { .. }
            | Self::SandboxLost
            | Self::Unprotected { .. }
            | Self::Unwritten { .. }
            | Self::Companion { .. }
            | Self::Inbound { .. }
            | Self::Plumbing { .. } => ErrorKind::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_can_do_is_the_specs_matter() {
        let impossible = sandbox::Error::Impossible { what: String::new(), remedy: String::new() };
        assert_eq!(Error::Sandbox(impossible).kind(), ErrorKind::Usage);
        let refused = sandbox::Error::Refused { what: String::new(), remedy: None };
        assert_eq!(Error::Sandbox(refused).kind(), ErrorKind::Failed);
    }

    #[test]
    fn an_apply_that_breaks_off_is_no_answer() {
        for kind in [std::io::ErrorKind::StorageFull, std::io::ErrorKind::PermissionDenied] {
            let broken_off = Error::TakeOver { path: "a".into(), source: kind.into() };
            assert_eq!(broken_off.kind(), ErrorKind::Failed);
        }
        assert_eq!(Error::TakeOverEnded { path: "a".into(), signal: 2 }.kind(), ErrorKind::Interrupted(2));
    }

    #[test]
    fn an_image_to_remove_is_named_as_a_run_or_a_credential_is() {
        let nothing = image::Error::NothingToRemove { name: "nope".into() };
        assert_eq!(Error::Image(nothing).kind(), ErrorKind::Usage);
        let no_source = image::Error::NoSource { path: "/nope".into() };
        assert_eq!(Error::Image(no_source).kind(), ErrorKind::Usage);
        // A run asks for more than it names.
        let absent = image::Error::NoImage { name: "nope".into(), advice: String::new() };
        assert_eq!(Error::Image(absent).kind(), ErrorKind::Failed);
    }
}
