//! The compiled program against a plain reading of the profile, and a real kernel against both.

mod evaluate;
mod kernel;
mod properties;
mod refusing;

pub(crate) use refusing::refusing;
