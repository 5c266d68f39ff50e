//! Secrets: checked, stored encrypted, put into requests, and masked in responses. This crate knows neither network nor sandbox.
//!
//! A [`Value`] is a checked secret. A [`Vault`] stores it under a [`Keyring`], a [`Template`] puts it into a request, and a
//! [`Scrubber`] masks it in the response. Only the vault touches files.

mod envelope;
mod escape;
mod fields;
mod placeholder;
mod position;
mod private_key;
mod room;
mod scrub;
mod secret;
mod template;
mod value;
mod vault;

pub use envelope::{EnvelopeError, Keyring, Rewrapped, Sealed};
pub use fields::{Credential, FieldName, FieldNameError};
pub use placeholder::{Placeholder, PlaceholderError};
pub use position::{Position, Unfit};
pub use room::{NoRoom, Room};
pub use scrub::{Forms, Needles, Scrubber};
pub use secret::Secret;
pub use template::{
    RenderError, Template, TemplateError, count_fields, is_template, substitute, with_stand_ins,
};
pub use value::{Value, ValueError};
pub use vault::{Damage, Entry, FailedRecord, Listing, Rotation, Stored, Vault, VaultError};
