//! A small internet to test against: the test's side of the `world` program.
//!
//! [`World`] wraps a command so that it runs with a network whose every server is ours, and reads back what those
//! servers saw. Nothing here touches the machine's own network.
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
