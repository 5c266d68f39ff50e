//! Unwinding: what a run's log has is given back, last first. It may be done twice.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::changes::Changes;
use crate::undo::{Undo, UndoLog, Whose};
use crate::{docker, linux, process, protect};

impl UndoLog {
    /// Gives back the names that were held, last first, as far as nothing else was acquired after them: what can be done
    /// while the kernel takes its time over processes that have ended. Says what could not be.
    pub fn unwind_names(&mut self) -> Vec<String> {
        self.unwind_while(|undo| matches!(undo, Undo::Placeholder(_)))
    }

    /// Gives everything back, last first, and says what could not be.
    pub fn unwind(&mut self) -> Vec<String> {
        if self.whose == Whose::Dead
            && let Err(problem) = self.await_processes()
        {
            return vec![problem];
        }
        self.unwind_while(|_| true)
    }

    /// Whose process was killed may have others that outlive it for a while: its names are theirs to take once they are given back.
    fn await_processes(&mut self) -> Result<(), String> {
        let groups = self.entries.iter().filter(|undo| matches!(undo, Undo::Group(_)));
        for group in groups {
            let Undo::Group(path) = group else { continue };
            // They end as fast as they are let: one that is held to a tenth of a processor takes ten times as long.
            sys::cgroup::let_run(path);
            remove_group(path, DYING).map_err(|error| format!("{}: {error}", group.line().trim_end()))?;
        }
        self.entries.retain(|undo| !matches!(undo, Undo::Group(_)));
        Ok(())
    }

    fn unwind_while(&mut self, wanted: impl Fn(&Undo) -> bool) -> Vec<String> {
        let mut problems = Vec::new();
        while let Some(undo) = self.entries.pop_if(|undo| wanted(undo)) {
            if matches!(undo, Undo::Link(_)) && self.whose == Whose::Own {
                // The kernel takes it away with the sandbox's network, in its own time: to ask for it would cost 20 ms.
                continue;
            }
            if let Err(error) = self.perform(&undo) {
                problems.push(format!("{}: {error}", undo.line().trim_end()));
                if matches!(undo, Undo::Engine(..) | Undo::Link(_)) {
                    // The command may still run there: what was acquired before it keeps holding it.
                    self.entries.push(undo);
                    break;
                }
            }
        }
        problems
    }

    /// Gives one thing back. Doing it again is no error.
    fn perform(&mut self, undo: &Undo) -> io::Result<()> {
        match undo {
            Undo::Group(path) => remove_group(path, PATIENCE),
            Undo::Placeholder(path) => {
                let held = self.held.iter().position(|held| held.path == *path);
                let held = held.map(|at| self.held.swap_remove(at));
                protect::release(path, held, &mut self.stock)
            }
            Undo::Written(path) => match Changes::discard(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            },
            Undo::Trusted(path) => process::remove_trusted(path),
            Undo::Wall(run) => linux::link::remove_wall(run),
            Undo::Link(run) => linux::link::remove_link(run),
            Undo::Engine(socket, run) => docker::remove(socket, run),
        }
    }
}

/// How long the last processes of a group may take to be gone after they were killed.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same where nobody has told them yet.
const DYING: Duration = Duration::from_secs(5);

fn remove_group(directory: &Path, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_micros(100);
    loop {
        match sys::cgroup::remove(directory) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt;

    use super::*;

    #[test]
    fn unwinding_twice_is_harmless() {
        let mut log = UndoLog::recover("group /nowhere/at/all\nplaceholder /nowhere/.git\n");
        assert!(log.unwind().is_empty());
        assert!(log.unwind().is_empty()); // L09
    }

    #[test]
    fn of_a_killed_run_names_are_given_back_after_its_processes() {
        let folder = tempfile::tempdir().unwrap();
        let (group, name) = (folder.path().join("group"), folder.path().join(".envrc"));
        std::fs::create_dir_all(group.join("somebody")).unwrap();
        std::fs::DirBuilder::new().mode(0o500).create(&name).unwrap();
        let log = format!("group {}\nplaceholder {}\n", group.display(), name.display());
        let problems = UndoLog::recover(&log).unwind();
        assert!(problems.len() == 1 && problems[0].starts_with("group ") && name.exists(), "{problems:?}");
        std::fs::remove_dir(group.join("somebody")).unwrap();
        assert_eq!(UndoLog::recover(&log).unwind(), Vec::<String>::new());
        assert!(!group.exists() && !name.exists());
    }
}
