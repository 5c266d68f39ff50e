//! A small internet to test against: the test's side of the `world` program.
//!
//! [`World`] wraps a command so that it runs in a network whose every server is ours, and reads the records of those servers. Nothing here
//! touches the machine's own network.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod agreed;
mod client;
mod record;

pub use agreed::{
    ANTHROPIC_KEY, INPUT_TOKENS, OPENAI_KEY, OPENROUTER_KEY, OUTPUT_TOKENS, PLAIN_ANSWER, TASK_ANSWER,
};
pub use client::World;
pub use record::Record;
