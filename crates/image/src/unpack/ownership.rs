//! The ownership of a layer's files.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The highest id in a sandbox of the container backend; higher ids belong to nobody.
pub(super) const NOBODY: u32 = 65534;

/// Who owns the files of a layer on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// As the layer says; only root can do that.
    Keep,
    /// The caller owns all of them.
    Squash,
    /// As the layer says, in ids lent to the caller; files of the image's own user are the caller's.
    Lent(Lent),
}

/// The ids lent to the caller: the ids outside to which 0 inside maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentIds {
    /// Of users.
    pub users: u32,
    /// Of groups.
    pub groups: u32,
}

/// Lent ids, for the layers of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// The ids.
    pub ids: LentIds,
    /// The image, by the beginning of its digest.
    image: u64,
}

impl Lent {
    /// Returns the ids for the image with this configuration, or with other octets that identify it.
    pub(crate) fn to(ids: LentIds, config: &[u8]) -> Self {
        let hex = Digest::of(config).hex().to_owned();
        Self { ids, image: u64::from_str_radix(&hex[..16], 16).unwrap_or_default() }
    }

    /// Returns the suffix that tells its layers from others of the same content.
    pub(crate) fn suffix(&self) -> String {
        let LentIds { users, groups } = self.ids;
        format!("lent-{users}-{groups}-{:016x}", self.image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_two_images_have_two_names() {
        let ids = LentIds { users: 100_000, groups: 200_000 };
        let (one, other) = (Lent::to(ids, b"a"), Lent::to(ids, b"b"));
        assert_ne!(one.suffix(), other.suffix());
        assert!(one.suffix().starts_with("lent-100000-200000-"), "{}", one.suffix());
    }
}
