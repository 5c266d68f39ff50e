//! Reports whether there is a terminal, its size, and whether keystrokes can be pushed into it.
//! The push is one space, so that a success shows and has no effect.

use std::io;

use serde_json::{Value, json};

use crate::Probe;
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "terminal", usage: "", run: |_| Some(terminal()) },
    Probe {
        name: "push-input",
        usage: "(TIOCSTI on stdin and /dev/tty)",
        run: |_| Some(push(libc::TIOCSTI)),
    },
    Probe {
        name: "push-input-high",
        usage: "(the same with high bits set, which the kernel drops)",
        run: |_| Some(push(libc::TIOCSTI | 1 << 32)),
    },
    Probe {
        name: "console-paste",
        usage: "(TIOCLINUX on stdin and /dev/tty)",
        run: |_| Some(push(libc::TIOCLINUX)),
    },
];

fn terminal() -> Report {
    let mut seen = serde_json::Map::new();
    for (number, name) in [(0, "stdin"), (1, "stdout"), (2, "stderr")] {
        // SAFETY: isatty only asks.
        seen.insert(name.to_owned(), (unsafe { libc::isatty(number) } == 1).into());
    }
    // SAFETY: a zeroed winsize is valid, and the kernel fills it.
    let size = unsafe {
        let mut size: libc::winsize = std::mem::zeroed();
        (libc::ioctl(0, libc::TIOCGWINSZ, &mut size) == 0)
            .then(|| json!({ "rows": size.ws_row, "columns": size.ws_col }))
    };
    seen.insert("size".to_owned(), size.unwrap_or(Value::Null));
    // SAFETY: only asks for the name of the foreground group.
    seen.insert("foreground".to_owned(), (unsafe { libc::tcgetpgrp(0) == libc::getpgrp() }).into());
    Report::done(seen)
}

fn push(request: u64) -> Report {
    let tty = std::fs::File::open("/dev/tty");
    let tty = tty.as_ref().map_or(-1, std::os::fd::AsRawFd::as_raw_fd);
    // For TIOCLINUX the first octet is the subcode: 0 is not one, so nothing can be pasted.
    let octet = if request as u32 == libc::TIOCSTI as u32 { b' ' } else { 0 };
    let mut errno = libc::ENOTTY;
    for descriptor in [0, tty] {
        // SAFETY: a raw call, so that high bits survive; the pointer is to one valid octet.
        let value = unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, &raw const octet) };
        if value == 0 {
            return Report::done(json!({ "descriptor": descriptor }));
        }
        let this = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        if this != libc::EBADF {
            errno = this;
        }
    }
    Report::errno(errno, Value::Null)
}
