//! Secrets, and nothing that could carry one away: no network, no sandbox.

mod secret;

pub use secret::Secret;
