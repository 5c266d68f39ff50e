//! Mechanism without opinion: namespaces, mounts, seccomp, Landlock, cgroups, netlink, nftables, descriptor passing
//! and probes of the running kernel.
//!
//! All `unsafe` code of the project is in this crate, and each block states why it is sound. This crate does not know what a
//! run, a policy or a sandbox is; the crates above decide what its functions are used for.

pub mod arguments;
pub mod cgroup;
pub mod descriptor;
pub mod enter;
pub mod environment;
pub mod holder;
pub mod kernel_file;
pub mod landlock;
pub mod link;
pub mod listener;
pub mod memory;
pub mod mount;
mod netlink;
pub mod network;
pub mod nftables;
pub mod notify;
pub mod peer;
mod placement;
pub mod poll;
pub mod priority;
pub mod privilege;
pub mod probe;
pub mod process;
pub mod seccomp;
pub mod signal;
pub mod spawn;
pub mod undelivered;
