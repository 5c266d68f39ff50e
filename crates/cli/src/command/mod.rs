//! The commands, one module each.

pub(crate) mod audit;
mod audit_file;
mod audit_lines;
mod audit_missing;
mod audit_verdict;
mod audit_verify;
mod audit_words;
pub(crate) mod changes;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod creds;
pub(crate) mod demo;
pub(crate) mod demo_agent;
pub(crate) mod doctor;
mod held_place;
mod hint;
pub(crate) mod image;
mod import;
mod json_file;
mod places;
pub(crate) mod policy;
mod policy_check;
mod policy_edit;
mod policy_explain;
mod policy_question;
mod policy_rule;
mod policy_text;
mod policy_turn;
mod policy_write;
mod replaced;
pub(crate) mod run;
mod run_name;
pub(crate) mod runs;
pub(crate) mod sidecar;
mod spec;
mod standing_denial;
mod url;
pub(crate) mod version;

use runtime::{Reaped, StateDirectory};
use sandbox::Caller;

use crate::exit::Usage;
use crate::output;

/// Cleans up after killed runs and commands, and reports what the person should know.
fn look_after_dead(state: &StateDirectory) {
    runtime::remove_dropped_changes(state);
    runtime::reap_dead(state)
        .iter()
        .flat_map(Reaped::sentences)
        .for_each(|told| output::tell(&format!("note: {told}")));
}

/// Tells of variables that were probably meant as settings.
fn tell_unknown_variables(caller: &Caller) {
    runtime::unknown_variables(caller).iter().for_each(|told| output::tell(&format!("note: {told}")));
}

/// Identifies the caller and its working directory.
fn caller() -> Result<Caller, anyhow::Error> {
    if let Err(error) = std::env::current_dir() {
        return Err(Usage::error(
            format!("the current folder cannot be used: {error}"),
            "it was removed, or may not be read: change to another one first",
        ));
    }
    let caller = Caller::current().map_err(|error| {
        let what = format!("failed to tell who started this: {error}");
        let absent = "see that the process file system is there: `mount -t proc proc /proc`";
        Usage::lacking(what, runtime::reached_limit(&error).unwrap_or(absent))
    })?;
    match runtime::unreadable_variable(&caller) {
        None => Ok(caller),
        Some(name) => {
            Err(Usage::error(format!("the variable {name} is not text"), "write it in UTF-8, or unset it"))
        }
    }
}

/// Returns the state directory of a caller whose `XDG_STATE_HOME` is this folder.
#[cfg(test)]
fn state_below(folder: &std::path::Path) -> StateDirectory {
    let caller = Caller::new(0, 0, folder).with_env([("XDG_STATE_HOME", folder.to_str().unwrap())]);
    StateDirectory::of(&caller).unwrap()
}
