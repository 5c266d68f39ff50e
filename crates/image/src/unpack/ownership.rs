//! Whose the files of a layer are.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// The highest id that a sandbox of the container backend can show; what is beyond belongs to nobody.
pub(super) const NOBODY: u32 = 65534;

/// Whose the files of a layer are, on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// As the layer says: root alone can.
    Keep,
    /// All of them the caller's own.
    Squash,
    /// As the layer says, in ids that are lent to the caller; those of the image's own user are the caller's.
    Lent(Lent),
}

/// Ids that are lent to the caller: those outside that stand for 0 inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentIds {
    /// Of users.
    pub users: u32,
    /// Of groups.
    pub groups: u32,
}

/// The same, for the layers of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lent {
    /// The ids.
    pub ids: LentIds,
    /// Which image, by the beginning of what it is known by.
    image: u64,
}

impl Lent {
    /// For the image of a configuration, or of what else tells it from others.
    pub(crate) fn to(ids: LentIds, config: &[u8]) -> Self {
        let hex = Digest::of(config).hex().to_owned();
        Self { ids, image: u64::from_str_radix(&hex[..16], 16).unwrap_or_default() }
    }

    /// What tells layers of it from others of the same content.
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
