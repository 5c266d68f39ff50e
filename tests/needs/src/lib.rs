//! What the crates of `tests/` must do alike: skip a test that this machine cannot run, and find the programs of this build. It has no
//! dependencies, because the probe, which runs in every sandbox, is built with it as well.

mod program;
mod skip;

pub use program::{made_by_setup, program, succeeds};
pub use skip::{REQUIRE, met, missing};
