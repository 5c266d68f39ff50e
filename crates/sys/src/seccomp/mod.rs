//! System-call filters: a `Profile` (which calls, under which conditions) compiles to a `Filter` (a classic
//! BPF program), and a `Filter` is installed on the calling thread.
//!
//! Compilation is `const`, so a profile that is known when the program is built costs nothing when it runs,
//! and a profile that cannot be compiled is a build error. The crates above own the lists of calls; this module
//! must never name one. Only x86-64 is supported: a call of any other architecture kills the process.

mod assemble;
mod compile;
mod install;
mod profile;
#[cfg(test)]
mod tests;

pub use install::{install, is_installed};
pub use profile::{Action, Condition, Expect, Profile, Rule, Verdict};
#[cfg(test)]
pub(crate) use tests::refusing;

use assemble::{CAPACITY, Instruction};

/// A compiled filter, ready to install.
///
/// It is a plain array, so that it can live in a `static`; the program occupies its end.
#[derive(Clone, Debug)]
pub struct Filter {
    instructions: [Instruction; CAPACITY],
    start: usize,
}

impl Filter {
    /// Returns the program, first instruction first.
    fn program(&self) -> &[Instruction] {
        &self.instructions[self.start..]
    }

    /// Returns the number of instructions.
    #[expect(clippy::len_without_is_empty, reason = "a compiled filter is never empty")]
    pub const fn len(&self) -> usize {
        CAPACITY - self.start
    }
}
