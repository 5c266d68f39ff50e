//! The walls from inside: mounts, descriptors, and the kernel's own files opened for writing.
//! A kernel file is opened and closed; nothing is ever written to one.

use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Probe;
use crate::report::Report;

/// The most entries walked under a kernel directory.
const ENTRIES: usize = 20_000;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "mounts", usage: "", run: |_| Some(mounts()) },
    Probe { name: "descriptors", usage: "", run: |_| Some(descriptors()) },
    Probe {
        name: "kernel-writable",
        usage: "(what of /proc and /sys opens for writing)",
        run: |_| Some(kernel()),
    },
    Probe {
        name: "cgroup-writable",
        usage: "(what of /sys/fs/cgroup opens for writing)",
        run: |_| Some(cgroup()),
    },
];

fn mounts() -> Report {
    let text = match fs::read_to_string("/proc/self/mountinfo") {
        Ok(text) => text,
        Err(error) => return error.into(),
    };
    Report::done(text.lines().filter_map(mount).collect::<Vec<_>>())
}

/// One line of mountinfo, see proc_pid_mountinfo(5).
fn mount(line: &str) -> Option<Value> {
    let (own, system) = line.split_once(" - ")?;
    let own: Vec<&str> = own.split(' ').collect();
    let system: Vec<&str> = system.split(' ').collect();
    Some(json!({
        "root": own.get(3)?, "target": own.get(4)?, "options": own.get(5)?,
        "type": system.first()?, "source": system.get(1)?, "super": system.get(2)?,
    }))
}

fn descriptors() -> Report {
    let mut open = Vec::new();
    for number in 0..4096 {
        // SAFETY: F_GETFD only asks whether the number is open.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 {
            let target = fs::read_link(format!("/proc/self/fd/{number}"));
            let target = target.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
            open.push(json!({ "fd": number, "target": target }));
        }
    }
    Report::done(open)
}

fn kernel() -> Report {
    let mut open: Vec<String> =
        ["/proc/sysrq-trigger", "/proc/kcore", "/proc/kmsg", "/proc/kallsyms", "/dev/mem", "/dev/kmsg"]
            .into_iter()
            .filter(|path| opens(Path::new(path)))
            .map(str::to_owned)
            .collect();
    let mut seen = 0;
    for root in
        ["/proc/sys", "/proc/irq", "/proc/bus", "/proc/fs", "/sys/kernel", "/sys/module", "/sys/power"]
    {
        seen += walk(Path::new(root), 6, &mut open);
    }
    verdict(open, seen)
}

fn cgroup() -> Report {
    let mut open = Vec::new();
    let seen = walk(Path::new("/sys/fs/cgroup"), 4, &mut open);
    verdict(open, seen)
}

fn verdict(open: Vec<String>, seen: usize) -> Report {
    let detail = json!({ "writable": open, "seen": seen });
    if open.is_empty() { Report::refused(detail) } else { Report::done(detail) }
}

/// Adds the writable entries under `root`: files that open, directories that accept new entries.
fn walk(root: &Path, depth: usize, open: &mut Vec<String>) -> usize {
    let mut waiting: Vec<(PathBuf, usize)> = vec![(root.to_owned(), depth)];
    let mut seen = 0;
    while let Some((path, left)) = waiting.pop() {
        let Ok(data) = fs::symlink_metadata(&path) else { continue };
        seen += 1;
        if seen > ENTRIES {
            break;
        }
        if data.is_dir() {
            if writable(&path) {
                open.push(path.to_string_lossy().into_owned());
            }
            if left > 0 {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                waiting.extend(entries.map(|entry| (entry.path(), left - 1)));
            }
        } else if data.is_file() && opens(&path) {
            open.push(path.to_string_lossy().into_owned());
        }
    }
    seen
}

fn opens(path: &Path) -> bool {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).is_ok()
}

fn writable(path: &Path) -> bool {
    let Ok(name) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: `name` is a terminated string that outlives the call.
    // procfs directories answer "yes" to root by mode alone, so only those of other file systems count.
    unsafe { libc::access(name.as_ptr(), libc::W_OK) == 0 && !path.starts_with("/proc") }
}
