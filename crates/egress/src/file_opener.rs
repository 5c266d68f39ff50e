//! Asks for the files that tell how names resolve, when they have changed: a confined sidecar opens none, so the process that watches
//! it opens them and hands them over.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::notice::{SidecarMessage, send_message};

/// How long the answer is waited for. The process that watches may be stopped.
const WAIT: Duration = Duration::from_secs(2);
/// How often is asked at most, so that one that does not answer costs no connection more than once.
const INTERVAL: Duration = Duration::from_secs(3);

/// The files that tell how names resolve, newly opened. `None` stands for one that is not there or cannot be opened.
#[derive(Debug, Default)]
pub struct NameFiles {
    /// `resolv.conf`.
    pub resolv_conf: Option<File>,
    /// `hosts`.
    pub hosts: Option<File>,
}

/// Receives the answer from the socket. It is asked only when there is one.
pub type ReceiveNameFiles = fn(BorrowedFd<'_>) -> io::Result<NameFiles>;

/// The way to a process that opens files for this one.
#[derive(Debug)]
pub struct FileOpener {
    socket: OwnedFd,
    receive: ReceiveNameFiles,
    asked: Cell<Option<Instant>>,
}

impl FileOpener {
    /// Asks over the socket of the notices, whose other end answers.
    #[must_use]
    pub fn over(socket: OwnedFd, receive: ReceiveNameFiles) -> Self {
        Self { socket, receive, asked: Cell::new(None) }
    }

    /// Has the files opened; `None` if that was asked for a moment ago, or is not answered.
    pub(crate) async fn open(&self) -> Option<NameFiles> {
        let now = Instant::now();
        if self.asked.get().is_some_and(|asked| now.saturating_duration_since(asked) < INTERVAL) {
            return None;
        }
        self.asked.set(Some(now));
        tokio::time::timeout(WAIT, self.ask()).await.ok()?.ok()
    }

    async fn ask(&self) -> io::Result<NameFiles> {
        // An answer that came too late is of what was then.
        while self.has_answer()? {
            (self.receive)(self.socket.as_fd())?;
        }
        if !send_message(&self.socket, &SidecarMessage::NameFilesChanged) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor changes; its successor is unsafe"
        )]
        let watched = AsyncFd::with_interest(self.socket.as_fd(), Interest::READABLE)?;
        loop {
            let mut ready = watched.readable().await?;
            if self.has_answer()? {
                return (self.receive)(self.socket.as_fd());
            }
            ready.clear_ready();
        }
    }

    fn has_answer(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        Ok(rustix::event::poll(&mut fds, Some(&Timespec::default()))? > 0)
    }
}
