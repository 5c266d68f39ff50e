//! Who else than the caller and root may have written what is obeyed. Owners and modes tell it; nothing here looks at content.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::StatVfsMountFlags;

use crate::private_group::is_private;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// Whom a user namespace shows as the owner of what belongs to nobody in it, user_namespaces(7).
const UNMAPPED: u32 = 65534;
/// A list of who else may do what. With one the group's bits of a mode are the most that anybody on it may do, acl(5).
const LIST: &str = "system.posix_acl_access";

/// Somebody else who may have written to a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Stranger {
    /// Its owner, by user id.
    #[error("it belongs to user {0}, and neither to you nor to root")]
    Owner(u32),
    /// Whom its mode lets write.
    #[error("others may write to it (mode {0:04o})")]
    Writer(u32),
}

impl Stranger {
    /// Returns who else may put another file in the folder to which a link leads. A group may, as in the store of Nix.
    pub(crate) fn beside_link(folder: &Path, about: &Metadata, own: u32) -> Option<Self> {
        let owner = Self::known_owner(about, own);
        owner.or_else(|| Self::writer(about, OTHERS_WRITE).filter(|_| !is_read_only(folder)))
    }

    /// Returns who else may have written what only this program writes, as user `own`.
    pub(crate) fn beside_program(about: &Metadata, own: u32) -> Option<Self> {
        Self::owner(about, own).or_else(|| Self::writer(about, GROUP_WRITES | OTHERS_WRITE))
    }

    /// Returns who else may have written what user `own` keeps by hand: with umask 002 it is all for a private group to write.
    pub(crate) fn beside_person(path: &Path, about: &Metadata, own: u32) -> Option<Self> {
        let owner = Self::known_owner(about, own);
        let group = if has_private_group(path, about, own) { 0 } else { GROUP_WRITES };
        owner.or_else(|| Self::writer(about, group | OTHERS_WRITE).filter(|_| !is_read_only(path)))
    }

    /// Returns who else may have written what lies where only root puts anything. Root may have given it to a user, or to a group.
    pub(crate) fn beside_root(path: &Path, about: &Metadata) -> Option<Self> {
        Self::writer(about, OTHERS_WRITE).filter(|_| !is_read_only(path))
    }

    /// Returns who else may write, beside a group, to what user `own` named. Of a pipe or a device the mode says who may use it.
    pub(crate) fn beside_group(about: &Metadata, own: u32) -> Option<Self> {
        Self::owner(about, own).or_else(|| Self::writer(about, OTHERS_WRITE).filter(|_| about.is_file()))
    }

    fn owner(about: &Metadata, own: u32) -> Option<Self> {
        (![own, 0].contains(&about.uid())).then_some(Self::Owner(about.uid()))
    }

    /// The same, but for whom a user namespace does not tell: it may be root.
    fn known_owner(about: &Metadata, own: u32) -> Option<Self> {
        Self::owner(about, own).filter(|_| about.uid() != UNMAPPED || knows_every_user())
    }

    fn writer(about: &Metadata, bits: u32) -> Option<Self> {
        (about.mode() & bits != 0).then_some(Self::Writer(about.mode() & 0o7777))
    }
}

fn has_private_group(path: &Path, about: &Metadata, own: u32) -> bool {
    let has_list = rustix::fs::getxattr(path, LIST, &mut [0_u8; 0]).is_ok();
    !has_list && [own, about.uid()].iter().any(|user| is_private(about.gid(), *user))
}

fn knows_every_user() -> bool {
    sandbox::maps_every_id().unwrap_or(true)
}

/// Whether a file system is mounted read-only, as the volumes of Kubernetes are: their folders have the mode 0777.
fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::RDONLY))
}
