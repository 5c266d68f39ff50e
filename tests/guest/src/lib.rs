//! A guest: a microVM that boots a distribution's kernel, runs scenarios with the product in it, and reports how each ended.
//!
//! It provides what the test machine may lack, above all control groups of version 2 alone. The product is used by its command line alone.
//! The guest has no network device and no disk: nothing in it reaches this machine.

mod answer;
mod archive;
mod machine;
mod modules;
mod parts;
mod scenario;

pub use answer::Answer;
pub use machine::boot;
pub use parts::Parts;
pub use scenario::{Caller, Scenario};
