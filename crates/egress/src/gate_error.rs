//! Errors of a sidecar as it starts or serves.

use std::io;

use rustix::io::Errno;

use crate::tls::AuthorityError;

/// An error of a sidecar as it starts or serves.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The audit could not be begun.
    #[error("begin the audit: {0}")]
    Audit(#[source] io::Error),
    /// Records of the audit could not be written.
    #[error("write {records} record{} of the audit: {source}", if *records == 1 { "" } else { "s" })]
    Unwritten {
        /// How many.
        records: u64,
        /// Why.
        source: io::Error,
    },
    /// The run's authority could not be made.
    #[error("make the run's authority: {0}")]
    Authority(#[source] AuthorityError),
    /// A socket could not be served.
    #[error("serve a socket: {0}")]
    Socket(#[source] io::Error),
    /// An address could not be bound.
    #[error("listen on {address}: {source}")]
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The runtime could not be made.
    #[error("make the runtime: {}", exhausted(.0))]
    Runtime(#[source] io::Error),
}

/// Names the limit behind an errno. For an event queue, "no space left on device" has nothing to do with a disk.
fn exhausted(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOSPC) => {
            "what the kernel lets this user watch at once is used up (sysctl fs.epoll.max_user_watches)"
                .into()
        }
        Some(Errno::MFILE) => "this process may open no more files (ulimit -n)".into(),
        Some(Errno::NFILE) => "this machine can open no more files (sysctl fs.file-max)".into(),
        _ => error.to_string(),
    }
}
