//! Decides who owns an image's files on disk, by the caller's rights and the image's user.

use crate::account::Account;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::malformed;
use crate::store::{Store, failed};
use crate::unpack::{self, Lent, LentIds, Ownership};

/// Who can own files of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// Anybody: the caller is root.
    Anybody,
    /// The caller only.
    Caller,
    /// The subordinate ids of the caller; this runs in a user namespace that has them.
    Lent(LentIds),
}

impl Owners {
    /// Returns the ownership of one image's files, by its configured user. A command that runs as root, or has no user, is not really
    /// root outside: it can change what root could only if it owns all files.
    pub(crate) fn of(self, user: &str, config: &[u8]) -> Ownership {
        let name = user.split(':').next().unwrap_or_default();
        match self {
            Self::Anybody => Ownership::Keep,
            Self::Lent(ids) if !matches!(name, "" | "0" | "root") => Ownership::Lent(Lent::to(ids, config)),
            Self::Lent(_) | Self::Caller => Ownership::Squash,
        }
    }
}

/// Gives the files of the image's user to the caller, once that user is known, if ids are lent.
pub(super) fn settle(
    store: &Store,
    layers: &[Digest],
    account: &Account,
    ownership: Ownership,
) -> Result<(), Error> {
    if !matches!(ownership, Ownership::Lent(_)) {
        return Ok(());
    }
    if account.is_root() {
        return Err(malformed("user", "it is root by another name; name `root` itself"));
    }
    for layer in layers {
        let tree = store.tree(layer, ownership);
        unpack::give(&tree, account.uid, account.gid).map_err(|source| failed(&tree, source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_of_roots_has_one_owner_without_root() {
        let lent = Owners::Lent(LentIds { users: 100_000, groups: 100_000 });
        for user in ["", "0", "root", "0:0", "root:staff"] {
            assert_eq!(lent.of(user, b"c"), Ownership::Squash, "{user}");
        }
        for user in ["app", "999", "999:0", "rooty"] {
            assert!(matches!(lent.of(user, b"c"), Ownership::Lent(_)), "{user}");
            assert_eq!(Owners::Caller.of(user, b"c"), Ownership::Squash);
            assert_eq!(Owners::Anybody.of(user, b"c"), Ownership::Keep);
        }
    }
}
