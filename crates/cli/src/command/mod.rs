//! The commands, one file each.

pub(crate) mod audit;
pub(crate) mod changes;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod creds;
pub(crate) mod demo;
pub(crate) mod demo_agent;
pub(crate) mod doctor;
pub(crate) mod image;
mod import;
pub(crate) mod policy;
mod policy_check;
mod policy_edit;
pub(crate) mod run;
mod run_name;
pub(crate) mod runs;
pub(crate) mod sidecar;
mod spec;
