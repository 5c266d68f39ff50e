//! Whom the kernel ends first where a container has no memory left: the command's processes, and not the init that tells how they end.

use std::fs::File;
use std::io::{self, Write};

/// How near this process is to being ended for want of memory, proc_pid_oom_score_adj(5).
pub(crate) const OWN: &str = "/proc/self/oom_score_adj";
/// By how much nearer the command's processes are, in thousandths of the memory that may be used: 19 MiB where the limit is 64 MiB. Init is
/// smaller than that, with the pages of its program, which count too. Not more, as it counts in a shortage of the whole machine as well, in
/// thousandths of all its memory.
const MORE: i32 = 300;
const HIGHEST: i32 = 1000;

/// The score of this process, which its children inherit.
pub(crate) struct OomScore {
    file: File,
    own: i32,
}

impl OomScore {
    /// Opens it, as long as the process has its file in `/proc`: that of one that is not dumpable is root's.
    pub(crate) fn open() -> io::Result<Self> {
        let own = sys::kernel_file::read(OWN)?.trim().parse().map_err(io::Error::other)?;
        Ok(Self { file: File::options().write(true).open(OWN)?, own })
    }

    /// Starts a child that is ended before this process. Where the kernel refuses that, the child is as near as this process.
    pub(crate) fn start_nearer<T>(&self, start: impl FnOnce() -> T) -> T {
        self.set((self.own + MORE).min(HIGHEST));
        let started = start();
        self.set(self.own);
        started
    }

    fn set(&self, score: i32) {
        let _ = (&self.file).write_all(score.to_string().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_child_is_nearer_than_its_parent_is_and_stays() {
        let score = OomScore::open().unwrap();
        let before = sys::kernel_file::read(OWN).unwrap();
        #[expect(clippy::disallowed_methods, reason = "a child that tells its own score")]
        let child = score.start_nearer(|| {
            std::process::Command::new("cat").arg(OWN).stdout(Stdio::piped()).spawn().unwrap()
        });
        let told = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let told: i32 = told.trim().parse().unwrap();
        assert_eq!(told, (score.own + MORE).min(HIGHEST));
        assert_eq!(sys::kernel_file::read(OWN).unwrap(), before);
    }
}
