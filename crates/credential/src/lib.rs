//! Secrets, and nothing that could carry one away: no network, no sandbox.
//!
//! A [`Value`] is checked, kept in a [`Vault`] under a [`Keyring`], put into a request by a [`Template`], and masked in
//! what comes back by a [`Scrubber`]. Only the vault touches files.

mod envelope;
mod escape;
mod fields;
mod place;
mod placeholder;
mod private_key;
mod scrub;
mod secret;
mod template;
mod value;
mod vault;

pub use envelope::{EnvelopeError, Keyring, Rewrapped, Sealed};
pub use fields::{Credential, FieldName, FieldNameError};
pub use place::{Position, Unfit};
pub use placeholder::{Placeholder, PlaceholderError};
pub use scrub::{Needles, Scrubber};
pub use secret::Secret;
pub use template::{RenderError, Template, TemplateError, is_template, substitute};
pub use value::{Value, ValueError};
pub use vault::{Damage, Entry, Listing, Rotation, Vault, VaultError};
