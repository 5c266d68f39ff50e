//! Whose the files of an image become on disk: what the caller can have, and what the image is for.

use crate::account::Account;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::malformed;
use crate::store::{Store, failed};
use crate::unpack::{self, Lent, LentIds, Ownership};

/// Whose files of images can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// Anybody's: the caller is root.
    Anybody,
    /// The caller's alone.
    Caller,
    /// Those of ids that are lent to the caller, in whose user namespace this runs.
    Lent(LentIds),
}

impl Owners {
    /// Whose those of one image are, by the user its configuration names. The command of one that names root, or nobody, stands
    /// in for root without being it: only where all files are its own can it change what root could.
    pub(crate) fn of(self, user: &str, config: &[u8]) -> Ownership {
        let name = user.split(':').next().unwrap_or_default();
        match self {
            Self::Anybody => Ownership::Keep,
            Self::Lent(ids) if !matches!(name, "" | "0" | "root") => Ownership::Lent(Lent::to(ids, config)),
            Self::Lent(_) | Self::Caller => Ownership::Squash,
        }
    }
}

/// Once it is known who the image's user is: where ids are lent, that one's files become the caller's.
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
