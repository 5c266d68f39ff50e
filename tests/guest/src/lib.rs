//! A guest: a microVM that boots a distribution's kernel, runs scenarios with the product in it, and tells how each ended.
//!
//! For what the machine that runs the tests may not have, above all control groups of version 2 alone. The product is only
//! ever used by its command line. The guest has no network device and no disk: nothing in it reaches this machine.

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
