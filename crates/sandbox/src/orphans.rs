//! Ends the descendants of a process without a pid namespace: as a subreaper, prctl(2), it inherits orphans as children. It touches no
//! process that is not a child of the caller, or of the supervisor of a run that was killed.

use std::io;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getpid};
use sys::process::session_of;

use crate::descent::{children, has_ended, is_child_of, is_held_up};
use crate::grace;
use crate::process_stamp::ProcessStamp;

/// The longest killing. Each round ends one generation, and a chain of processes may be as deep as there are process ids.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);
/// The problem with a process that is still there after it was ended.
pub(crate) const DOES_NOT_END: &str = "it does not end";
/// The pauses while killed processes end.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// The processes that the parent inherits if the supervisor is killed, which the command can do, as the same user. Parent and supervisor
/// see each other's end, and each ends what ran. L02
#[derive(Debug)]
pub(crate) struct Orphans {
    /// The children from before the run.
    others: Vec<Pid>,
}

impl Orphans {
    /// Makes this process a subreaper, so that orphans become its children and not those of the host's init.
    pub(crate) fn adopt() -> io::Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid()))?;
        Ok(Self { others: children(getpid()) })
    }

    /// Ends all of them, once the supervisor is gone. Children that this process started itself are in its own session, which a process
    /// cannot join again after leaving it: setsid(2).
    pub(crate) fn end(&self) {
        end_children(self.of_the_run());
    }

    /// Returns a sentence for each process that could not be ended, once all have been tried. The supervisor's children are this process's
    /// as soon as it is gone.
    pub(crate) fn left(&self, supervisor: Pid) -> Vec<String> {
        let mut left = children(supervisor);
        left.retain(|child| !has_ended(*child));
        let is_meant = self.of_the_run();
        let own = children(getpid()).into_iter().filter(|child| *child != supervisor && is_meant(*child));
        left.extend(own.filter(|child| !bury(*child)));
        left.sort_by_key(|pid| pid.as_raw_pid());
        left.dedup();
        left.into_iter().map(told).collect()
    }

    fn of_the_run(&self) -> impl Fn(Pid) -> bool {
        let session = |pid: Option<Pid>| session_of(pid).ok();
        let own = session(None);
        move |child| !self.others.contains(&child) && session(Some(child)) != own
    }
}

/// Ends every descendant of this process. Those that do not end when they are asked to are killed.
pub(crate) fn end_rest() {
    ask_children(|_| true);
    end_descendants();
}

/// Kills every descendant of this process, generation by generation: the children of a killed process become its own.
pub(crate) fn end_descendants() {
    end_children(|_| true);
}

/// Ends the supervisor of a killed run that does not end what is below it, because something there stops it again and again. It is kept
/// stopped and ended last: as long as it is there, orphans become its children, and it reaps none of them.
///
/// # Errors
/// What could not be ended.
pub(crate) fn end_from_below(supervisor: ProcessStamp, patience: Duration) -> Result<(), String> {
    let end = Instant::now() + LONGEST;
    let (mut pause, mut known) = (SHORTEST_PAUSE, 0);
    while let Some(pid) = supervisor.stop() {
        let found = children(pid);
        let mut left = found.clone();
        left.retain(|child| !has_ended(*child));
        // What those that ended left behind is among its children by now.
        if left.is_empty() && is_held_up(pid) && children(pid) == found {
            break;
        }
        let may_kill = left.iter().filter(|child| kill_below(pid, **child) != Err(Errno::PERM)).count() > 0;
        if Instant::now() >= end || !may_kill && !left.is_empty() {
            // The supervisor stays, so that who tries again finds them below it.
            return Err(match left.is_empty() {
                true => DOES_NOT_END.into(),
                false => left.into_iter().map(told).collect::<Vec<_>>().join("; "),
            });
        }
        std::thread::sleep(pause);
        // Another generation has come up, and there may be many.
        pause = if found.len() > known { SHORTEST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
        known = found.len();
    }
    if supervisor.end(patience) { Ok(()) } else { Err(DOES_NOT_END.into()) }
}

/// Kills a child of another process.
fn kill_below(parent: Pid, child: Pid) -> rustix::io::Result<()> {
    let opened = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
    // Looked at after the pidfd is open, when the pid cannot be reused any more.
    if !is_child_of(child, parent) {
        return Err(Errno::SRCH);
    }
    rustix::process::pidfd_send_signal(&opened, Signal::KILL)
}

/// Reaps every child that has ended, except `other`.
pub(crate) fn bury_all_but(other: Pid) {
    for child in children(getpid()).into_iter().filter(|child| *child != other) {
        bury(child);
    }
}

/// Reaps a child if it has ended. Returns whether nothing of it is left.
fn bury(child: Pid) -> bool {
    !matches!(rustix::process::waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}

/// Asks children to end, and those that become children because others did.
fn ask_children(is_meant: impl Fn(Pid) -> bool) {
    let mut asked = Vec::new();
    grace::wait_until(|| {
        let mut found = children(getpid());
        found.retain(|child| is_meant(*child));
        let all = found.len();
        found.retain(|child| !bury(*child));
        for child in &found {
            if !asked.contains(child) {
                let _ = rustix::process::kill_process(*child, Signal::TERM);
            }
        }
        // What one that ended left behind is found in the next round.
        let is_over = all == 0;
        asked = found;
        is_over
    });
}

fn end_children(is_meant: impl Fn(Pid) -> bool) {
    let end = Instant::now() + LONGEST;
    let mut pause = SHORTEST_PAUSE;
    while Instant::now() < end {
        let mut found = children(getpid());
        found.retain(|child| is_meant(*child));
        let all = found.len();
        found.retain(|child| !bury(*child));
        // What one that ended left behind is found in the next round.
        let has_buried = found.len() < all;
        // One that runs as another user by now, as a set-user-id program may, cannot be killed: kill(2). It can be reaped.
        found.retain(|child| kill(*child) != Err(Errno::PERM));
        if found.is_empty() && !has_buried {
            return;
        }
        found.retain(|child| !bury(*child));
        if found.is_empty() {
            pause = SHORTEST_PAUSE;
        } else {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn kill(child: Pid) -> rustix::io::Result<()> {
    rustix::process::kill_process(child, Signal::KILL)
}

fn told(left: Pid) -> String {
    let pid = left.as_raw_pid();
    let why = match rustix::process::test_kill_process(left) {
        Err(Errno::PERM) => "runs as another user by now, ",
        _ => "",
    };
    let name = sys::kernel_file::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} (`{}`) {why}could not be ended and goes on", name.trim_end().escape_debug())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any process will do")]
    fn one_that_has_ended_is_reaped_and_no_other_users() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(!bury(pid) && !has_ended(pid));
        let told = told(pid);
        assert!(told.ends_with("could not be ended and goes on") && !told.contains("user"), "{told}");
        kill(pid).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while !has_ended(pid) && Instant::now() < end {
            std::thread::sleep(SHORTEST_PAUSE);
        }
        assert!(has_ended(pid) && bury(pid) && has_ended(pid));
        assert!(bury(pid), "it is gone");
        let _ = child.wait();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any process will do")]
    fn who_tidies_up_when_asked_to_has_the_time_for_it_and_who_is_deaf_gets_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let start = |name: &str, script: &str| {
            let script = format!("{script}; : > {name}; while :; do sleep 0.01; done");
            let child = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).spawn().unwrap();
            let end = Instant::now() + LONGEST;
            while !at(name).exists() && Instant::now() < end {
                std::thread::sleep(SHORTEST_PAUSE);
            }
            child
        };
        let mut both = [start("tidy", "trap ': > tidied; exit' TERM"), start("deaf", "trap '' TERM")];
        let pids = both.each_ref().map(Pid::from_child);
        let began = Instant::now();
        ask_children(|child| pids.contains(&child));
        assert!(began.elapsed() < LONGEST);
        assert_eq!((at("tidied").exists(), pids.map(has_ended)), (true, [true, false]));
        end_children(|child| pids.contains(&child));
        assert!(has_ended(pids[1]));
        both.iter_mut().for_each(|child| drop(child.wait()));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any process will do")]
    fn one_that_is_stopped_again_and_again_is_ended_with_what_is_below_it() {
        let script = "sleep 60 & sleep 60 & (while :; do kill -s STOP $$; done) & wait";
        let mut shell = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_child(&shell);
        let supervisor = ProcessStamp::of(pid).unwrap();
        let end = Instant::now() + LONGEST;
        while !(is_held_up(pid) && children(pid).len() == 3) && Instant::now() < end {
            std::thread::sleep(SHORTEST_PAUSE);
        }
        let below = children(pid);
        assert!(!supervisor.let_end(Duration::from_millis(50)));
        let ended = end_from_below(supervisor, LONGEST);
        assert!(!supervisor.is_alive());
        shell.wait().unwrap();
        assert_eq!((ended, below.len()), (Ok(()), 3));
        assert!(below.into_iter().all(has_ended));
        assert_eq!(end_from_below(supervisor, LONGEST), Ok(()), "it is gone");
    }
}
