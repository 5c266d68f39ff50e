//! Makes the event loop of a process that serves.

use std::io;
use std::os::unix::net::UnixStream;

use crate::gate_error::GateError;

/// Makes the runtime: one thread, for a sidecar is one of many.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, GateError> {
    runtime_with((0..3).map(|_| UnixStream::pair()).collect())
}

fn runtime_with(
    probe: io::Result<Vec<(UnixStream, UnixStream)>>,
) -> Result<tokio::runtime::Runtime, GateError> {
    // Where it has signals, Tokio makes such a pair for them, behind three other descriptors and before a last one, and panics where it
    // cannot.
    drop(probe.map_err(GateError::Runtime)?);
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(GateError::Runtime)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_limit_of_the_kernel_is_no_full_disk() {
        for (errno, words) in
            [(Errno::NOSPC, "max_user_watches"), (Errno::MFILE, "ulimit -n"), (Errno::NFILE, "fs.file-max")]
        {
            let told = GateError::Runtime(errno.into()).to_string();
            assert!(told.starts_with("make the runtime: ") && told.contains(words), "{told}");
            assert!(!told.contains("space"), "{told}");
        }
        let error = runtime_with(Err(Errno::MFILE.into())).unwrap_err().to_string();
        assert!(error.contains("ulimit -n"), "{error}");
        assert!(runtime().is_ok());
    }

    #[test]
    fn where_few_descriptors_are_left_there_is_an_error() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = getrlimit(Resource::Nofile);
        let next = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&File::open("/dev/null").unwrap())).unwrap();
        // Each test has a process of its own, and in it no descriptor above this one.
        let made: Vec<_> = (0..10)
            .map(|left| {
                setrlimit(Resource::Nofile, Rlimit { current: Some(next + left), ..limit }).unwrap();
                let made = runtime();
                setrlimit(Resource::Nofile, limit).unwrap();
                made.map(drop).map_err(|error| error.to_string())
            })
            .collect();
        assert!(
            made[0].as_ref().is_err_and(|told| told.contains("ulimit -n")) && made[9].is_ok(),
            "{made:?}"
        );
    }
}
