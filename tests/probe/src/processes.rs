//! Attempts on other processes, and on orphans and zombies.
//! Signals go only where the arguments say; forks are counted and bounded.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::Probe;
use crate::report::Report;

/// The most children of a probe, whatever the arguments say.
const FORKS: usize = 20_000;
/// How long a process that keeps a secret lives, in seconds.
const KEPT: u32 = 30;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "signal", usage: "PID NUMBER", run: signal },
    Probe { name: "ptrace", usage: "PID (attaches, detaches)", run: ptrace },
    Probe { name: "proc-read", usage: "PID (environ, mem, maps, root, cwd, exe, fd)", run: proc_read },
    Probe { name: "stop-init", usage: "(SIGSTOP to process 1, then its state)", run: |_| Some(stop_init()) },
    Probe { name: "forks", usage: "N (children at once, then all are ended)", run: forks },
    Probe {
        name: "fork-bomb",
        usage: "N (children that fork on until refused; they hold for 3 s)",
        run: fork_bomb,
    },
    Probe {
        name: "orphan",
        usage: "SECONDS MARK [closed] (double fork, own session, stdio kept unless closed)",
        run: orphan,
    },
    Probe { name: "hold", usage: "SECONDS MARK (sleeps; MARK is only there to be seen)", run: hold },
    Probe {
        name: "keep",
        usage: "environment|heap MASKED-HEX (another process has the secret there for 30 s; this one ends)",
        run: keep,
    },
    Probe { name: "zombies", usage: "N (orphans that end at once; are they reaped?)", run: zombies },
];

fn outcome(value: i64) -> Report {
    if value >= 0 { Report::done(Value::Null) } else { io::Error::last_os_error().into() }
}

fn signal(arguments: &[String]) -> Option<Report> {
    let [pid, number] = arguments else { return None };
    let (pid, number) = (pid.parse().ok()?, number.parse().ok()?);
    // SAFETY: `kill` touches no memory of ours.
    Some(outcome(unsafe { libc::kill(pid, number) }.into()))
}

fn ptrace(arguments: &[String]) -> Option<Report> {
    let [pid] = arguments else { return None };
    let pid: libc::pid_t = pid.parse().ok()?;
    // SAFETY: SEIZE takes no pointers here, and does not stop the other process; this one ends right after.
    Some(outcome(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) }))
}

fn proc_read(arguments: &[String]) -> Option<Report> {
    let [pid] = arguments else { return None };
    let pid: u32 = pid.parse().ok()?;
    let mut detail = serde_json::Map::new();
    let mut got = false;
    for part in ["environ", "maps", "mem", "root", "cwd", "exe", "fd", "auxv", "stack", "task/1/environ"] {
        let path = format!("/proc/{pid}/{part}");
        let result = match part {
            "root" | "cwd" | "exe" => std::fs::read_link(&path).map(|to| to.to_string_lossy().into_owned()),
            "fd" => std::fs::read_dir(&path).map(|entries| format!("{} entries", entries.count())),
            "mem" => std::fs::File::open(&path).map(|_| "opened".to_owned()),
            _ => std::fs::read(&path).map(|bytes| format!("{} bytes", bytes.len())),
        };
        // The kernel hides `maps` and `auxv` of a process by an empty answer.
        got |= result.as_ref().is_ok_and(|text| text != "0 bytes");
        detail.insert(part.to_owned(), result.unwrap_or_else(|error| format!("refused: {error}")).into());
    }
    Some(if got { Report::done(detail) } else { Report::refused(detail) })
}

fn stop_init() -> Report {
    if crate::canary::in_first_namespace() {
        return Report::error("this is the machine's own PID namespace: its init is left alone");
    }
    // SAFETY: `kill` touches no memory of ours. The kernel drops SIGSTOP for an init in its own namespace.
    let sent = unsafe { libc::kill(1, libc::SIGSTOP) } == 0;
    std::thread::sleep(Duration::from_millis(100));
    let stat = std::fs::read_to_string("/proc/1/stat").unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
    let detail = json!({ "sent": sent, "state": state.to_string() });
    if matches!(state, 'T' | 't' | '?') { Report::done(detail) } else { Report::refused(detail) }
}

/// Forks waiting children, until `wanted` or a refusal, then ends and reaps them all.
fn forks(arguments: &[String]) -> Option<Report> {
    let [wanted] = arguments else { return None };
    let wanted: usize = wanted.parse::<usize>().ok()?.min(FORKS);
    let mut children = Vec::with_capacity(wanted);
    let mut failure = None;
    while children.len() < wanted {
        // SAFETY: single-threaded; the child only waits for its end.
        match unsafe { libc::fork() } {
            -1 => {
                failure = io::Error::last_os_error().raw_os_error();
                break;
            }
            0 => wait_for_the_end(30),
            child => children.push(child),
        }
    }
    for &child in &children {
        // SAFETY: an unreaped child of ours; its id cannot belong to another process.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    }
    let detail = json!({ "children": children.len(), "wanted": wanted });
    Some(match failure {
        Some(errno) => Report { outcome: crate::report::Outcome::Refused, errno: Some(errno), detail },
        None => Report::done(detail),
    })
}

/// A fork bomb with a limit: every child forks too, up to `N` levels in all, and everything ends in 3 s.
fn fork_bomb(arguments: &[String]) -> Option<Report> {
    let [levels] = arguments else { return None };
    // 2^12 processes exceed any sane limit, and are no danger to a machine without one.
    let levels: u32 = levels.parse::<u32>().ok()?.min(12);
    let own = std::process::id();
    let mut refused = 0u32;
    for _ in 0..levels {
        // SAFETY: single-threaded; parent and child both go on with the same loop, which is bounded.
        if unsafe { libc::fork() } == -1 {
            refused += 1;
        }
    }
    if std::process::id() != own {
        wait_for_the_end(3);
    }
    std::thread::sleep(Duration::from_millis(500));
    let detail = json!({ "levels": levels, "refused": refused });
    Some(if refused > 0 { Report::refused(detail) } else { Report::done(detail) })
}

fn wait_for_the_end(seconds: u32) -> ! {
    // SAFETY: the alarm's default action ends this child if nobody did before; both calls touch no memory.
    unsafe {
        libc::alarm(seconds);
        libc::pause();
        libc::_exit(0)
    }
}

fn orphan(arguments: &[String]) -> Option<Report> {
    let (seconds, mark, closed) = match arguments {
        [seconds, mark] => (seconds, mark, false),
        [seconds, mark, word] if word == "closed" => (seconds, mark, true),
        _ => return None,
    };
    let mut command = Command::new("/proc/self/exe");
    command.args(["hold", seconds, mark]).stdin(Stdio::null());
    if closed {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    // SAFETY: between fork and exec only these two calls are made: one more fork, so that the parent in between
    // ends and the process is orphaned, and a session of its own.
    unsafe {
        command.pre_exec(|| match libc::fork() {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                libc::setsid();
                Ok(())
            }
            _ => libc::_exit(0),
        });
    }
    Some(match command.spawn() {
        Ok(mut child) => {
            // The middle process has ended or is about to; reaping it makes the other one an orphan.
            let _ = child.wait();
            Report::done(json!({ "mark": mark }))
        }
        Err(error) => error.into(),
    })
}

fn hold(arguments: &[String]) -> Option<Report> {
    let [seconds, mark] = arguments else { return None };
    let seconds: u64 = seconds.parse::<u64>().ok()?.min(3600);
    std::thread::sleep(Duration::from_secs(seconds));
    Some(Report::done(json!({ "mark": mark })))
}

/// Leaves a process behind that has a secret in one place alone. It is there before this one reports.
fn keep(arguments: &[String]) -> Option<Report> {
    let [place, masked] = arguments else { return None };
    let secret = lockgate_needs::unmasked(masked)?;
    match place.as_str() {
        "environment" => {
            let mut command = Command::new("/proc/self/exe");
            command.args(["hold", &KEPT.to_string(), "kept"]).env("KEPT", OsStr::from_bytes(&secret));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Some(command.spawn().map(|child| json!({ "process": child.id() })).into())
        }
        "heap" => {
            let secret = std::hint::black_box(secret);
            // SAFETY: single-threaded; the child gives up the streams, so that nobody waits for them, and waits for its end.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: closing touches no memory. Where Yama keeps processes apart, whoever asks may read this one: PR_SET_PTRACER(2const).
                unsafe {
                    (0..3).for_each(|stream| {
                        libc::close(stream);
                    });
                    libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0);
                }
                wait_for_the_end(KEPT);
            }
            drop(secret);
            Some(if child > 0 { Report::done(json!({ "process": child })) } else { outcome(child.into()) })
        }
        _ => None,
    }
}

fn zombies(arguments: &[String]) -> Option<Report> {
    let [wanted] = arguments else { return None };
    let wanted: usize = wanted.parse::<usize>().ok()?.min(FORKS);
    let mut made = 0;
    for _ in 0..wanted {
        // SAFETY: single-threaded; the child forks once more and ends, so its own child is orphaned and ends too.
        match unsafe { libc::fork() } {
            -1 => break,
            // SAFETY: as above; neither the child nor its own child does anything but end.
            0 => unsafe {
                libc::fork();
                libc::_exit(0)
            },
            child => {
                made += 1;
                // SAFETY: our own child.
                unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            }
        }
    }
    // Outside, nobody may ever reap them; inside, a busy machine takes its time.
    let mut left = 0;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(300));
        left = dead_probes();
        if left == 0 {
            break;
        }
    }
    Some(Report::done(json!({ "made": made, "left": left })))
}

/// Returns how many processes of this name have ended and not been reaped.
fn dead_probes() -> usize {
    let stats = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    stats
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter(|stat| {
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z')) && stat.contains("(probe)")
        })
        .count()
}
