//! Identifies a process by its pid, its start time, and the boot and the pid namespace that these are of, so that it can be found again
//! although pids are reused. No process of another pid namespace is ever taken for it.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::process_files;

/// A process that may be gone by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Numbers", try_from = "Numbers")]
pub struct ProcessStamp {
    pid: Pid,
    /// The start time, in ticks since boot by the machine's own clock, whatever a time namespace adds.
    at: u64,
    /// The boot. `None` in a stamp that was recorded without it, or where `/proc` does not tell it.
    boot: Option<u32>,
    /// The inode of the pid namespace. `None` in a stamp that was recorded without it, or where `/proc` does not tell it.
    namespace: Option<u32>,
}

/// The recorded form.
#[derive(Serialize, Deserialize)]
struct Numbers {
    pid: u32,
    at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    boot: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    namespace: Option<u32>,
}

impl From<ProcessStamp> for Numbers {
    fn from(born: ProcessStamp) -> Self {
        Self { pid: born.number(), at: born.at, boot: born.boot, namespace: born.namespace }
    }
}

impl TryFrom<Numbers> for ProcessStamp {
    type Error = &'static str;

    fn try_from(numbers: Numbers) -> Result<Self, Self::Error> {
        let pid = numbers.pid.try_into().ok().and_then(Pid::from_raw).ok_or("that is no process")?;
        Ok(Self { pid, at: numbers.at, boot: numbers.boot, namespace: numbers.namespace })
    }
}

impl ProcessStamp {
    /// Returns the stamp of this process.
    #[must_use]
    pub fn this() -> Option<Self> {
        Self::of(rustix::process::getpid())
    }

    /// Returns the pid.
    #[must_use]
    pub fn number(self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// Returns what tells the boot that it was started in, if that is known.
    #[must_use]
    pub fn boot(self) -> Option<u32> {
        self.boot
    }

    /// Returns when it was started, in ticks since that boot. No clock that is set changes this.
    #[must_use]
    pub fn ticks(self) -> u64 {
        self.at
    }

    /// Asks the process to end, and continues it if it is stopped, because it would not react otherwise. Returns whether it is gone then.
    /// `/proc` may be mounted to hide it (`hidepid`, proc(5)): then `is_alive` tells whether it still has its pid.
    #[must_use]
    pub fn ask_to_end(self, patience: Duration, is_alive: impl Fn() -> bool) -> bool {
        let Some((opened, found)) = self.find() else { return true };
        match found {
            Found::Itself => {}
            Found::Hidden if is_alive() => {}
            Found::Hidden => return true,
        }
        for signal in [Signal::TERM, Signal::CONT] {
            let _ = rustix::process::pidfd_send_signal(&opened, signal);
        }
        is_gone(&opened, patience)
    }

    /// Whether the process still lives: one that has ended does not, though nobody has waited for it yet. One that `/proc` hides counts
    /// as alive, unless it is another user's: that one has the pid by now.
    #[must_use]
    pub fn is_alive(self) -> bool {
        match self.find() {
            None => false,
            Some((_, Found::Hidden)) if rustix::process::test_kill_process(self.pid) == Err(Errno::PERM) => {
                false
            }
            Some((opened, _)) => !is_gone(&opened, Duration::ZERO),
        }
    }

    /// Returns the stamp of a running process. `None` if `/proc` does not show it.
    pub(crate) fn of(pid: Pid) -> Option<Self> {
        let (at, boot) = (started_at(pid)?, this_boot());
        Some(Self { pid, at, boot, namespace: process_files::pid_namespace() })
    }

    pub(crate) fn written(self) -> String {
        let of_boot = self.boot.into_iter().chain(self.boot.and(self.namespace));
        let of_boot: String = of_boot.map(|number| format!(" {number}")).collect();
        format!("{} {}{of_boot}", self.pid.as_raw_pid(), self.at)
    }

    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ');
        let (pid, at) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let mut further = || numbers.next().map(str::parse).transpose().ok();
        let (boot, namespace) = (further()?, further()?);
        let is_whole = numbers.next().is_none();
        is_whole.then_some(Numbers { pid, at, boot, namespace })?.try_into().ok()
    }

    /// Kills the process if it still exists, and with it every other of its pid namespace if it is the first there. Returns whether it is
    /// gone then. One that `/proc` hides may be another with its pid, and is only waited for.
    pub(crate) fn end(self, patience: Duration) -> bool {
        let Some((opened, found)) = self.find() else { return true };
        match found {
            Found::Itself => _ = rustix::process::pidfd_send_signal(&opened, Signal::KILL),
            // Another user's, who has the pid by now: this user could signal the recorded one.
            Found::Hidden if rustix::process::test_kill_process(self.pid) == Err(Errno::PERM) => return true,
            Found::Hidden => {}
        }
        is_gone(&opened, patience)
    }

    /// Stops the process and returns its pid. `None` if it is gone, or hidden by `/proc`.
    pub(crate) fn stop(self) -> Option<Pid> {
        let (opened, found) = self.find()?;
        let is_there = found == Found::Itself && !is_gone(&opened, Duration::ZERO);
        (is_there && rustix::process::pidfd_send_signal(&opened, Signal::STOP).is_ok()).then_some(self.pid)
    }

    /// Continues the process if it is stopped, and waits until it has seen by itself that it is to end. Returns whether it is gone then.
    /// One that `/proc` hides may be another with its pid, which does not end by that.
    pub(crate) fn let_end(self, patience: Duration) -> bool {
        let Some((opened, found)) = self.find() else { return true };
        match rustix::process::pidfd_send_signal(&opened, Signal::CONT) {
            Err(Errno::PERM) if found == Found::Hidden => true,
            _ => is_gone(&opened, patience),
        }
    }

    /// Returns whether the process was of another boot: it is gone, whoever has its pid and its start time by now.
    fn is_of_another_boot(self) -> bool {
        self.boot.zip(this_boot()).is_some_and(|(own, this)| own != this)
    }

    /// Returns whether the process is of another pid namespace: it cannot be seen from here, and its number is another's here.
    fn is_of_another_namespace(self) -> bool {
        self.namespace.zip(process_files::pid_namespace()).is_some_and(|(own, this)| own != this)
    }

    /// Opens the process. Returns `None` if it is gone, or is of another pid namespace.
    fn find(self) -> Option<(OwnedFd, Found)> {
        if self.is_of_another_boot() || self.is_of_another_namespace() {
            return None;
        }
        let opened = rustix::process::pidfd_open(self.pid, PidfdFlags::empty()).ok()?;
        // Looked at after the pidfd is open, when the pid cannot be reused any more.
        match started_at(self.pid) {
            Some(at) if at == self.at => Some((opened, Found::Itself)),
            Some(_) => None,
            None => Some((opened, Found::Hidden)),
        }
    }
}

/// What has the pid of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The process with the recorded start time.
    Itself,
    /// One that `/proc` does not show, or not any more.
    Hidden,
}

/// Waits for the end of a process. Returns whether it came.
fn is_gone(opened: &OwnedFd, patience: Duration) -> bool {
    let mut gone = [PollFd::new(opened, PollFlags::IN)];
    let patience = Timespec::try_from(patience).ok();
    loop {
        match rustix::event::poll(&mut gone, patience.as_ref()) {
            Err(Errno::INTR) => {}
            ended => return matches!(ended, Ok(1..)),
        }
    }
}

/// Reads the start time: the twenty-second field of proc_pid_stat(5), counted from after the name, which can contain anything. It is moved
/// as the reader's clock since boot is, and returned without that.
fn started_at(pid: Pid) -> Option<u64> {
    if !process_files::are_of_this_namespace() {
        return None;
    }
    let stat = sys::kernel_file::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let read: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(read.saturating_add_signed(-process_files::shift()))
}

/// Returns the first 32 bits of this boot's random id, which is read once. random(4)
fn this_boot() -> Option<u32> {
    static BOOT: OnceLock<Option<u32>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = sys::kernel_file::read("/proc/sys/kernel/random/boot_id").ok()?;
        u32::from_str_radix(id.get(..8)?, 16).ok()
    })
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
        let born = ProcessStamp::of(pid).unwrap();
        assert_eq!(ProcessStamp::read(&born.written()), Some(born));
        let recorded = serde_json::to_string(&born).unwrap();
        assert_eq!(serde_json::from_str::<ProcessStamp>(&recorded).unwrap(), born);
        assert!(serde_json::from_str::<ProcessStamp>(r#"{"pid":0,"at":1}"#).is_err());
        let other = ProcessStamp { at: born.at + 1, ..born };
        assert!(other.end(Duration::from_secs(5)) && other.ask_to_end(Duration::from_secs(5), || false));
        let before = ProcessStamp { boot: Some(!this_boot().unwrap()), ..born };
        assert!(before.end(Duration::from_secs(5)) && before.ask_to_end(Duration::from_secs(5), || false));
        assert_eq!(ProcessStamp::read(&before.written()), Some(before));
        // In another pid namespace the same number is another process's, whenever that was started.
        let elsewhere = ProcessStamp { namespace: Some(!process_files::pid_namespace().unwrap()), ..born };
        assert!(elsewhere.end(Duration::from_secs(5)) && elsewhere.stop().is_none() && !elsewhere.is_alive());
        assert!(elsewhere.ask_to_end(Duration::from_secs(5), || true) && elsewhere.let_end(Duration::ZERO));
        assert_eq!(ProcessStamp::read(&elsewhere.written()), Some(elsewhere));
        assert_eq!(sleeps.try_wait().unwrap(), None);
        // Stamps that were recorded before boots were, and before namespaces were.
        let (old, newer) =
            (ProcessStamp { boot: None, namespace: None, ..born }, ProcessStamp { namespace: None, ..born });
        let written = format!("{} {} {}", born.number(), born.at, born.boot.unwrap());
        assert_eq!(ProcessStamp::read(&written), Some(newer));
        assert_eq!(ProcessStamp::read(&format!("{} {}", born.number(), born.at)), Some(old));
        let recorded = format!(r#"{{"pid":{},"at":{}}}"#, born.number(), born.at);
        assert_eq!(serde_json::from_str::<ProcessStamp>(&recorded).unwrap(), old);
        assert!(born.end(Duration::from_secs(5)));
        sleeps.wait().unwrap();
        assert!(born.end(Duration::ZERO));
        let mut heeds = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(
            ProcessStamp::of(Pid::from_child(&heeds)).unwrap().ask_to_end(Duration::from_secs(5), || false)
        );
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&heeds.wait().unwrap()), Some(15));
        let mut stopped = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&stopped);
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        let ended = ProcessStamp::of(pid).unwrap().ask_to_end(Duration::from_secs(5), || false);
        stopped.kill().unwrap();
        stopped.wait().unwrap();
        assert!(ended, "it was stopped, and never heard of it");
        let mut stopped = Command::new("sleep").arg("0.05").spawn().unwrap();
        let pid = Pid::from_child(&stopped);
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        let ended = ProcessStamp::of(pid).unwrap().let_end(Duration::from_secs(5));
        stopped.kill().unwrap();
        assert!(ended && stopped.wait().unwrap().success(), "it was not let end by itself");
        for text in ["", "1", "0 5", "-1 5", "1 -5", "x 5", "1 5 x", "1 5 ", "1 5 2 x", "1 5 2 3 4"] {
            assert_eq!(ProcessStamp::read(text), None, "{text}");
        }
    }
}
