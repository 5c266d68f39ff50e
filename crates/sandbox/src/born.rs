//! A process as somebody else finds it again: by its number, and by when it was started, for numbers are given again.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

/// One that may be gone by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Born {
    pid: Pid,
    /// In ticks since the machine was started.
    at: u64,
}

impl Born {
    /// A process that is there; nothing where that cannot be told.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        Some(Self { pid, at: started_at(pid)? })
    }

    pub(crate) fn written(self) -> String {
        format!("{} {}", self.pid.as_raw_pid(), self.at)
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        let (pid, at) = text.split_once(' ')?;
        let pid: u32 = pid.parse().ok()?;
        Some(Self { pid: Pid::from_raw(pid.try_into().ok()?)?, at: at.parse().ok()? })
    }

    /// Ends it, where it is still there: whether it is gone then, and with it, if it was the first of its namespace, every other there.
    pub(crate) fn end(self, patience: Duration) -> bool {
        let Ok(opened) = rustix::process::pidfd_open(self.pid, PidfdFlags::empty()) else { return true };
        // Looked at once it cannot become another's any more.
        if started_at(self.pid) != Some(self.at) {
            return true;
        }
        let _ = rustix::process::pidfd_send_signal(&opened, Signal::KILL);
        let mut gone = [PollFd::new(&opened, PollFlags::IN)];
        let patience = Timespec::try_from(patience).ok();
        loop {
            match rustix::event::poll(&mut gone, patience.as_ref()) {
                Err(Errno::INTR) => {}
                ended => return matches!(ended, Ok(1..)),
            }
        }
    }
}

/// The twenty-second field (proc_pid_stat(5)), counted from behind the name, which may hold anything.
fn started_at(pid: Pid) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any process will do")]
    fn one_is_ended_and_whoever_has_its_number_by_now_is_not() {
        let mut sleeps = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&sleeps);
        let born = Born::of(pid).unwrap();
        assert_eq!(Born::read(&born.written()), Some(born));
        assert!(Born { at: born.at + 1, ..born }.end(Duration::from_secs(5)));
        assert_eq!(sleeps.try_wait().unwrap(), None);
        assert!(born.end(Duration::from_secs(5)));
        sleeps.wait().unwrap();
        assert!(born.end(Duration::ZERO));
        for text in ["", "1", "0 5", "-1 5", "1 -5", "x 5"] {
            assert_eq!(Born::read(text), None, "{text}");
        }
    }
}
