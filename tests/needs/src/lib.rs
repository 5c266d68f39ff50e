//! What the crates of `tests/` must do alike: skip a test that this machine cannot run, find the programs of this build, and search for a
//! secret. It has no dependencies, because the probe, which runs in every sandbox, is built with it as well.

mod canary;
mod program;
mod skip;

pub use canary::{TELLING, masked, unmasked};
pub use program::{made_by_setup, program, succeeds};
pub use skip::{REQUIRE, met, missing};
