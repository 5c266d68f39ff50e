//! `/dev` inside: harmless devices of the host, a devpts of its own, shared memory, message queues.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags};
use sys::mount::{self, Depth, Flags};

use super::root::Root;
use crate::launch::Stdio;
use crate::source;

/// The most pseudo-terminals of a run. All runs and containers of a machine share some 3000 (`kernel.pty.max` less `kernel.pty.reserve`).
const TERMINALS: &CStr = c"128";

/// The devices inside.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

impl Root {
    /// Makes `/dev`: harmless devices, a devpts of its own, shared memory, message queues. Opens a terminal if the command is to have one.
    pub(super) fn make_devices(&self, stdio: &Stdio) -> io::Result<Option<OwnedFd>> {
        self.own_directory(Path::new("/dev"), 0o755)?;
        let devices = self.open(Path::new("/dev"))?;
        for (directory, mode) in [(c"shm", 0o1777), (c"pts", 0o755), (c"mqueue", 0o755)] {
            rustix::fs::mkdirat(&devices, directory, Mode::from_raw_mode(mode))?;
        }
        for device in DEVICES {
            rustix::fs::mknodat(&devices, device, FileType::RegularFile, Mode::from_raw_mode(0o666), 0)?;
            let path = Path::new("/dev").join(device);
            let tree = mount::clone_tree(CWD, &source::c_path(&path), Depth::One)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
            mount::set_flags(tree.as_fd(), Flags::NO_SUID.and(Flags::NO_EXEC))?;
            mount::attach(tree.as_fd(), devices.as_fd(), &source::c_path(Path::new(device)))?;
        }
        let links = [
            ("ptmx", "pts/ptmx"),
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
        ];
        for (name, to) in links {
            rustix::fs::symlinkat(to, &devices, name)?;
        }
        let options = [(c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", TERMINALS)];
        let terminals = mount::make(c"devpts", &options, Flags::NO_SUID.and(Flags::NO_EXEC))?;
        mount::attach(terminals.as_fd(), devices.as_fd(), c"pts")?;
        // A kernel may be built without message queues.
        if let Ok(queues) = mount::make(c"mqueue", &[], Flags::NO_SUID.and(Flags::NO_DEV).and(Flags::NO_EXEC))
        {
            mount::attach(queues.as_fd(), devices.as_fd(), c"mqueue")?;
        }
        let Stdio::Terminal { size, .. } = stdio else { return Ok(None) };
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let master = rustix::fs::openat(&terminals, c"ptmx", flags, Mode::empty())?;
        rustix::pty::unlockpt(&master)?;
        size.set(&master)?;
        Ok(Some(master))
    }
}
