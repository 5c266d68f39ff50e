//! The engine as seen from outside its namespaces: started, and ended through a pipe. It ends as well when the process that holds the
//! other end dies.

use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::error::Error;
use crate::folder::Folder;
use crate::inside;
use crate::options::{Kind, Network};
use crate::process::{Forked, fork};
use crate::stored::Stored;

/// A daemon that answers.
pub(crate) struct Engine {
    /// The process that made the namespaces and waits for the first one in them.
    outer: Pid,
    end: OwnedFd,
}

impl Engine {
    /// Starts an engine in `folder`, and waits until it answers. With initial data its files are in memory; without any they are kept.
    pub(crate) fn start(
        folder: &Folder,
        kind: Kind,
        stored: Option<&Stored>,
        network: Network,
    ) -> Result<Self, Error> {
        let refused = |source: rustix::io::Errno| Error::Fork { source: source.into() };
        let (answered, ready) = pipe_with(PipeFlags::CLOEXEC).map_err(refused)?;
        let (end, held) = pipe_with(PipeFlags::CLOEXEC).map_err(refused)?;
        match fork().map_err(|source| Error::Fork { source })? {
            Forked::Child => {
                drop((answered, held));
                crate::leave(inside::run(folder, kind, stored, network, ready, end))
            }
            Forked::Parent(outer) => {
                drop((ready, end));
                let mut byte = [0];
                match rustix::io::retry_on_intr(|| rustix::io::read(&answered, &mut byte)) {
                    Ok(1) => Ok(Self { outer, end: held }),
                    _ => Err(Error::Inside),
                }
            }
        }
    }

    /// Ends it at once and removes its folder.
    pub(crate) fn stop(self) {
        drop(self.end);
        wait(self.outer);
    }

    /// Makes it write its data and end. Its folder stays.
    pub(crate) fn settle(self) {
        let _ = rustix::io::write(&self.end, &[inside::SETTLE]);
        wait(self.outer);
    }
}

/// Waits without a limit: the first process limits everything it does.
fn wait(outer: Pid) {
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(outer), WaitOptions::empty()));
}
