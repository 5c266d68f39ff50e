//! Protected paths: files that the host would later execute or trust are read-only inside, whether they exist or not.
//!
//! A protected name that does not exist is held on the host during the run: `hold` chooses the names, `held_name` holds one, `placeholder`
//! is what occupies it, and `placeholder_cache` keeps placeholders between runs.

mod applying;
mod bare;
mod cover;
mod elsewhere;
mod held;
mod held_name;
mod hold;
mod kind;
mod links;
mod listed;
mod placeholder;
mod placeholder_cache;
mod planted;
mod repository;
mod row;
mod spelling;
mod tables;
mod told;
mod top_names;
mod tree;
mod unheld;

pub(crate) use self::applying::held_above;
pub(crate) use self::cover::{present, protect};
pub(crate) use self::elsewhere::{objects_outside, repository_outside};
pub(crate) use self::held_name::{HeldName, release};
pub(crate) use self::hold::{Hold, hold_absent};
pub(crate) use self::listed::{
    REPOSITORY_NAMES, is_git, is_listed, is_repository, listed_paths, longest_listed, refuse_unknown,
    shows_protected,
};
pub use self::listed::{is_protected, leads_to_listed};
pub(crate) use self::placeholder::is_placeholder as is_held;
pub(crate) use self::placeholder_cache::PlaceholderCache;
pub(crate) use self::planted::take_away as take_planted_links;
pub(crate) use self::repository::{Layout, OpenRepository, Repository};
pub(crate) use self::row::LEFT;
pub(crate) use self::unheld::Unheld;
