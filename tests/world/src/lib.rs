//! A small internet to test against: the test's side of the `world` program.
//!
//! [`World`] wraps a command so that it runs with a network whose every server is ours, and reads back what those
//! servers saw. Nothing here touches the machine's own network.
#![doc = ""]
#![doc = include_str!("../README.md")]

mod client;
mod record;

pub use client::World;
pub use record::Record;
