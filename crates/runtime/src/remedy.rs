//! Remedies: what a person can do about an error of this crate.

use std::io;

use credential::{EnvelopeError, VaultError};
use egress::GateError;
use policy::OrganisationName;

use crate::error::Error;

impl Error {
    /// Returns what the person can do about it, if that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Settings(error) => error.hint.clone(),
            Self::NotAPolicy { .. } => Some(
                "a policy is a file of text, of at most 1 MiB; --no-project leaves out what lies in a project".into(),
            ),
            Self::Files(egress::FilesError::Bundle { .. }) => Some(
                "name a file of certificates in PEM, or unset SSL_CERT_FILE to trust this machine's".into(),
            ),
            Self::NoCommand { remedy, .. } => Some((*remedy).to_owned()),
            Self::Image(error) => error.remedy(),
            Self::Sandbox(error) => error.remedy(),
            Self::Companion { remedy, .. } | Self::SidecarFailed { remedy, .. } => remedy.clone(),
            Self::Unprotected { .. } => Some(
                "see that it says what you wrote, for the command may have written into the new one; then start the run again".into(),
            ),
            Self::GoesOn { run, .. } => Some(format!("lockgate runs stop {run} ends it")),
            Self::TakeOver { .. } => Some("what was done before it stays; mend that and apply again".into()),
            Self::WrittenBy { .. } => Some("apply it once that run is over, or leave it out with --path".into()),
            Self::Inbound { .. } => Some("name another `host_port` in that [[inbound]]".into()),
            Self::NoCredential { provider, organisation } => {
                let whose = OrganisationName::flag(organisation.as_ref());
                let mut remedy = format!("lockgate creds set {provider}{whose}");
                if let Ok(searches) = policy::web_searches()
                    && searches.contains(provider)
                {
                    let others: Vec<&str> =
                        searches.iter().filter(|it| *it != provider).map(String::as_str).collect();
                    remedy += &format!("; with --web-search, one of {} will do as well", others.join(", "));
                }
                Some(remedy)
            }
            Self::VaultKey { .. } => Some(
                "a key is 32 octets in base64 or hexadecimal; several are separated by commas, and the first one encrypts"
                    .into(),
            ),
            Self::Vault(VaultError::Decrypt { source: EnvelopeError::UnknownKey { .. }, .. }) => Some(
                "give the key that it was encrypted with as well, behind a comma in CONNECTION_ENCRYPTION_KEY; a key that \
                 Lockgate made is in `keys/vault.key` of its state directory"
                    .into(),
            ),
            Self::KeyFile { .. } => Some(
                "put that file back as it was, or see whose it is and whether it may be read; what was sealed with it needs it"
                    .into(),
            ),
            Self::KeyOfOthers { path, .. } => Some(format!(
                "if it is yours, make it so: chown \"$(id -u)\" {}; if it is not, move it away",
                path.display()
            )),
            Self::KeyShared { path, .. } => Some(format!(
                "chmod 600 {}; where somebody may have read or changed it, set a new key and run `lockgate keys rotate`",
                path.display()
            )),
            Self::VaultKeyGone { vault, .. } => Some(format!(
                "put that file back, or set CONNECTION_ENCRYPTION_KEY to the key they were sealed with; without it their \
                 values are lost: move {} away, with those of organisations, and set them again",
                vault.display()
            )),
            Self::OrganisationBesidePlatform { platform, .. } => {
                Some(format!("leave the organisation out (--org, `org`, LOCKGATE_ORG), or unset {platform}"))
            }
            Self::HalfPlatform { set, lacks } => {
                Some(format!("set {lacks} as well, or unset {set} to use a vault of this machine"))
            }
            Self::NoRun { .. } => Some("lockgate runs ls names them".into()),
            Self::NothingKept { .. } => {
                Some("lockgate run --workspace-mode overlay -- CMD keeps them apart".into())
            }
            Self::Expose { remedy, .. } | Self::StateOfOthers { remedy, .. } => Some(remedy.clone()),
            Self::NoStateDirectory => {
                Some("set HOME, or name a place with XDG_STATE_HOME; runs are recorded there".into())
            }
            Self::NoDataDirectory => {
                Some("set HOME, or name a place with XDG_DATA_HOME; images are kept there".into())
            }
            Self::Changes { .. } => Some(
                "see that the workspace is still there and may be read; lockgate discard drops what is kept, unread".into(),
            ),
            Self::State { source, .. } if is_about_room(source) => Some(
                "free some space, or name another place with XDG_STATE_HOME; runs are recorded there".into(),
            ),
            Self::Gate(GateError::Bind { source, .. }) => bound_otherwise(source).map(str::to_owned),
            Self::Gate(GateError::Unwritten { source, .. }) if is_about_room(source) => Some(
                "free some space; `lockgate audit verify FILE` says how far the records that are there reach"
                    .into(),
            ),
            Self::Write { source, .. } if is_about_room(source) => {
                Some("free some space, or name a file elsewhere".into())
            }
            Self::Write { .. } => Some("name a file in a folder that you may write to".into()),
            Self::State { .. } => Some(
                "see whose it is and whether it may be written, or name another place with XDG_STATE_HOME; runs are recorded there"
                    .into(),
            ),
            _ => None,
        }
    }
}

/// What to do about a socket that cannot be bound.
fn bound_otherwise(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, InvalidInput, PermissionDenied};
    Some(match error.kind() {
        AddrInUse => "something is there already: end it, or name another place; port 0 takes a free one",
        AddrNotAvailable => {
            "name an address of this machine's, as `ip address` shows them; 127.0.0.1 is for this machine alone"
        }
        // The library's own, for a Unix socket alone.
        InvalidInput => "the path of a Unix socket has 107 octets at most: name a shorter one",
        PermissionDenied => "name a port from 1024 up, or a path in a folder that you may write to",
        _ => return None,
    })
}

/// Whether what failed is that there is no room.
fn is_about_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use sandbox::Caller;

    use crate::images::Images;
    use crate::state::StateDirectory;

    #[test]
    fn a_place_that_no_variable_names_is_asked_for_by_its_own() {
        let (home, directory, environment) = (None, "/".into(), Vec::new());
        let caller = Caller { uid: 0, gid: 0, superuser: false, home, directory, environment };
        for (error, place, other) in [
            (StateDirectory::of(&caller).map(drop).unwrap_err(), "XDG_STATE_HOME", "XDG_DATA_HOME"),
            (Images::of(&caller).map(drop).unwrap_err(), "XDG_DATA_HOME", "XDG_STATE_HOME"),
        ] {
            let remedy = error.remedy().unwrap();
            assert!(error.to_string().contains(place) && remedy.contains(place), "{error}: {remedy}");
            assert!(!remedy.contains(other), "{error}: {remedy}");
        }
    }
}
