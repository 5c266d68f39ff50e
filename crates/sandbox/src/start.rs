//! Starts a sandbox with the backend that its plan names.

use std::ffi::OsString;

use policy::Backend;

use crate::error::Error;
use crate::host::Host;
use crate::plan::Plan;
use crate::started::{InitChannels, SidecarStart, Started};
use crate::undo::UndoLog;
use crate::{docker, linux, process};

/// Starts a sandbox with its command. `starter` starts the sidecar meanwhile, as early as the backend can.
///
/// # Errors
/// When something cannot be made. What was made already is in `undo`.
pub fn start(
    plan: &Plan,
    host: &Host,
    command: &[OsString],
    channels: InitChannels,
    starter: &mut dyn SidecarStart,
    undo: &mut UndoLog,
) -> Result<Started, Error> {
    match plan.backend {
        Backend::Linux | Backend::Container => linux::start(plan, host, command, channels, starter, undo),
        Backend::Docker => docker::start(plan, command, channels, starter, undo),
        Backend::Process => process::start(plan, host, command, channels, starter, undo),
    }
}
