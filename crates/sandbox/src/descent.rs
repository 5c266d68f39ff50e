//! The processes below a process, as `/proc` shows them.

use rustix::process::Pid;

/// Returns the children of all threads of a process. None if it is gone, or if `/proc` does not show it.
pub(crate) fn children(of: Pid) -> Vec<Pid> {
    let found = threads(of).into_iter().flat_map(|thread| {
        let list = sys::kernel_file::read(format!("{thread}/children")).unwrap_or_default();
        list.split_whitespace().filter_map(|n| Pid::from_raw(n.parse().ok()?)).collect::<Vec<_>>()
    });
    found.collect()
}

/// Whether every process below this one is stopped or has ended.
pub(crate) fn is_stopped_below(top: Pid) -> bool {
    let mut left = children(top);
    while let Some(pid) = left.pop() {
        if !threads(pid).iter().all(|thread| is_stopped(thread)) {
            return false;
        }
        left.extend(children(pid));
    }
    true
}

/// Whether every thread of a process has ended: it is at most not reaped yet.
pub(crate) fn has_ended(process: Pid) -> bool {
    threads(process).iter().all(|thread| state(thread).is_none_or(|state| b"ZXx".contains(&state)))
}

/// Whether a process is stopped, by a signal or a tracer.
pub(crate) fn is_held_up(process: Pid) -> bool {
    state(&format!("/proc/{}", process.as_raw_pid())).is_some_and(|state| b"Tt".contains(&state))
}

/// Whether a process is a child of another's. Not if it is gone.
pub(crate) fn is_child_of(process: Pid, parent: Pid) -> bool {
    let Some(fields) = fields(&format!("/proc/{}", process.as_raw_pid())) else { return false };
    let above = fields.split(|octet| *octet == b' ').nth(1);
    above.is_some_and(|above| above == parent.as_raw_pid().to_string().as_bytes())
}

/// Returns the folders of a process's threads.
fn threads(of: Pid) -> Vec<String> {
    let entries =
        std::fs::read_dir(format!("/proc/{}/task", of.as_raw_pid())).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.path().into_os_string().into_string().ok()).collect()
}

/// Whether a thread is stopped, by a signal or a tracer, or has ended.
fn is_stopped(thread: &str) -> bool {
    state(thread).is_none_or(|state| b"TtZXx".contains(&state))
}

/// Returns the state of a thread or process.
fn state(folder: &str) -> Option<u8> {
    fields(folder)?.first().copied()
}

/// Returns the fields of proc_pid_stat(5) from the third on, which is the state. They are behind the name, which can be any octets.
fn fields(folder: &str) -> Option<Vec<u8>> {
    let mut stat = std::fs::read(format!("{folder}/stat")).ok()?;
    let name = stat.iter().rposition(|octet| *octet == b')')?;
    stat.drain(..(name + 2).min(stat.len()));
    Some(stat)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any process will do")]
    fn a_shell(script: &str) -> (Child, Pid) {
        let shell = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&shell);
        (shell, pid)
    }

    fn soon(is: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while !is() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
        }
        is()
    }

    #[test]
    fn a_generation_that_goes_on_is_seen_below_one_that_is_stopped() {
        let (mut shell, pid) = a_shell("sh -c 'sleep 60 & wait' & read line; kill $!");
        assert!(children(getpid()).contains(&pid));
        assert!(soon(|| children(pid).first().is_some_and(|child| children(*child).len() == 1)));
        let child = children(pid)[0];
        let grandchild = children(child)[0];
        assert!(is_child_of(grandchild, child) && !is_child_of(grandchild, pid));
        assert!(!is_stopped_below(pid));
        kill_process(child, Signal::STOP).unwrap();
        assert!(soon(|| is_stopped(&threads(child)[0])) && !is_stopped_below(pid));
        assert!(is_held_up(child) && !is_held_up(grandchild));
        kill_process(grandchild, Signal::STOP).unwrap();
        let all = soon(|| is_stopped_below(pid));
        for each in [grandchild, child] {
            kill_process(each, Signal::KILL).unwrap();
        }
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(all);
        assert!(is_stopped_below(pid) && children(pid).is_empty(), "it is gone");
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_state() {
        let (mut shell, pid) = a_shell(r"printf '\377) T (' > /proc/self/comm; read line");
        let named =
            || std::fs::read(format!("/proc/{}/comm", pid.as_raw_pid())).is_ok_and(|name| name[0] == 0xff);
        let is_named = soon(named);
        let goes_on = !is_stopped(&threads(pid)[0]);
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(is_named && goes_on);
    }
}
