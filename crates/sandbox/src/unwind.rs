//! Unwinds an undo log: gives back what a run acquired, last first. Unwinding again is harmless.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::changes::Changes;
use crate::orphans::{DOES_NOT_END, LONGEST, end_from_below};
use crate::undo::{Undo, UndoLog, Whose};
use crate::{docker, linux, process, protect};

impl UndoLog {
    /// Whether the run holds names.
    #[must_use]
    pub fn holds_names(&self) -> bool {
        self.entries.iter().any(is_of_names)
    }

    /// Gives back the held names, last first, up to the last other entry. This can be done while the kernel still tears down processes that
    /// have ended. Returns what failed.
    pub fn unwind_names(&mut self) -> Vec<String> {
        self.unwind_while(is_of_names, &mut |_| ())
    }

    /// Gives everything back, last first. Returns what failed.
    pub fn unwind(&mut self) -> Vec<String> {
        self.unwind_telling(&mut |_| ())
    }

    /// Gives everything back, last first, and hands on each message to the user as soon as there is one. Returns what failed.
    pub(crate) fn unwind_telling(&mut self, tell: &mut dyn FnMut(&[String])) -> Vec<String> {
        if self.whose == Whose::Dead
            && let Err(problem) = self.await_processes()
        {
            return vec![problem];
        }
        self.unwind_while(|_| true, tell)
    }

    /// Waits for the processes of a killed run, which may outlive it for a while: once its names are given back, they could take them.
    fn await_processes(&mut self) -> Result<(), String> {
        for undo in &self.entries {
            let ended = match undo {
                Undo::Process(born) if !born.end(DYING) => Err(DOES_NOT_END.into()),
                Undo::Supervisor(born) if !born.let_end(ENDING) => end_from_below(*born, DYING),
                _ => Ok(()),
            };
            ended.map_err(|why| format!("{}: {why}", undo.line().trim_end()))?;
        }
        // The inner one was noted last, and goes first.
        let groups = self.entries.iter().rev().filter(|undo| matches!(undo, Undo::Group(_)));
        for group in groups {
            let Undo::Group(path) = group else { continue };
            // A process that is limited to a tenth of a processor takes ten times as long to end.
            sys::cgroup::let_run(path);
            remove_group(path, DYING).map_err(|error| format!("{}: {error}", group.line().trim_end()))?;
        }
        self.entries.retain(|undo| !matches!(undo, Undo::Group(_) | Undo::Process(_) | Undo::Supervisor(_)));
        Ok(())
    }

    fn unwind_while(
        &mut self,
        wanted: impl Fn(&Undo) -> bool,
        tell: &mut dyn FnMut(&[String]),
    ) -> Vec<String> {
        let mut problems = Vec::new();
        while let Some(undo) = self.entries.pop_if(|undo| wanted(undo)) {
            if matches!(undo, Undo::Link(_)) && self.whose == Whose::Own {
                // The kernel removes the link with the sandbox's network, in its own time. Removing it here would cost 20 ms.
                continue;
            }
            let known = self.told.len();
            let done = self.perform(&undo);
            if let Some(news @ [_, ..]) = self.told.get(known..) {
                tell(news);
            }
            if let Err(error) = done {
                problems.push(format!("{}: {error}", undo.named()));
                if matches!(undo, Undo::Engine(..) | Undo::Link(_)) {
                    // The command may still run, so what was acquired before must stay in place.
                    self.entries.push(undo);
                    break;
                }
            }
        }
        problems
    }

    /// Gives one thing back. Doing it again is harmless.
    fn perform(&mut self, undo: &Undo) -> io::Result<()> {
        match undo {
            // A run waits for its own processes by itself.
            Undo::Process(_) | Undo::Supervisor(_) => Ok(()),
            Undo::Group(path) => remove_group(path, PATIENCE),
            Undo::Unheld(unheld) => {
                let held = self.workspaces.iter().find(|(being, _)| *being == unheld.being);
                self.told.extend(unheld.made(held.map(|(_, root)| root.as_fd())));
                Ok(())
            }
            Undo::Placeholder(path) => {
                let held = self.held.iter().position(|held| held.path == *path);
                let held = held.map(|at| self.held.swap_remove(at));
                protect::release(path, held, &mut self.placeholders)
            }
            Undo::PlantedLinks(repository) => {
                let held = self.repositories.iter().position(|it| it.repository == *repository);
                let held = held.map(|at| self.repositories.swap_remove(at));
                protect::take_planted_links(repository, held.as_ref(), &mut self.told)
            }
            Undo::Written(path) => match Changes::discard(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            },
            Undo::Trusted(path) => process::remove_trusted(path),
            Undo::Firewall(run) => linux::link::remove_firewall(run),
            Undo::Link(run) => linux::link::remove_link(run),
            Undo::Engine(socket, _) if self.silent.contains(socket) => Err(docker::silent(socket)),
            Undo::Engine(socket, run) => docker::remove(socket, run, self.whose).inspect_err(|error| {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.silent.push(socket.clone());
                }
            }),
        }
    }
}

/// Whether an entry is about names of a workspace.
fn is_of_names(undo: &Undo) -> bool {
    matches!(undo, Undo::Placeholder(_) | Undo::PlantedLinks(_) | Undo::Unheld(_))
}

/// The longest wait for the last processes of a group after they were killed.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest wait for a supervisor that ends what it has started: longer than that takes.
const ENDING: Duration = LONGEST.saturating_add(Duration::from_secs(1));
/// The longest wait for processes that have not been killed yet.
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
    use std::collections::BTreeSet;
    use std::os::unix::fs::DirBuilderExt;
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    /// Returns everything in a folder, at any depth.
    fn inventory(folder: &Path) -> BTreeSet<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let with_inner = |path: PathBuf| {
            let inner = if path.is_dir() { inventory(&path) } else { BTreeSet::new() };
            inner.into_iter().chain([path])
        };
        entries.flat_map(with_inner).collect()
    }

    /// Makes the things of one run in a folder, and beside each something that is the user's own.
    fn acquire(folder: &Path) -> Vec<Undo> {
        let at = |name: &str| folder.join(name);
        for own in ["own", "own/kept", "kept.git"] {
            std::fs::create_dir(at(own)).unwrap();
        }
        std::fs::write(at("own/kept/file"), "kept").unwrap();
        std::fs::create_dir_all(at("group/inner")).unwrap();
        std::fs::remove_dir(at("group/inner")).unwrap();
        let placeholder = std::fs::DirBuilder::new().mode(0o500).create(at(".git"));
        placeholder.unwrap();
        std::fs::create_dir_all(at("written/written/a/b")).unwrap();
        std::fs::write(at("written/written/a/b/file"), "of the run").unwrap();
        std::os::unix::fs::symlink(at("own"), at("written/written/a/link")).unwrap();
        std::fs::create_dir(at("trusted")).unwrap();
        vec![
            Undo::Group(at("group")),
            Undo::Placeholder(at(".git")),
            // These are the user's own, and not what the log takes them for.
            Undo::Placeholder(at("own")),
            Undo::Placeholder(at("kept.git")),
            Undo::Group(at("own")),
            Undo::Trusted(at("own/kept")),
            Undo::Written(at("written")),
            Undo::Trusted(at("trusted")),
            Undo::Written(at("never/was")),
            Undo::Trusted(at("never/was")),
            Undo::Group(at("never/was")),
            Undo::Placeholder(at("never/was")),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

        // L09: in any order, some of it twice, and all of it again.
        #[test]
        fn in_any_order_and_again_the_same_is_given_back(
            order in Just((0..12).collect::<Vec<usize>>()).prop_shuffle(),
            again in prop::collection::vec(0..12_usize, 0..6),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let all = acquire(folder.path());
            let kept: BTreeSet<PathBuf> =
                ["own", "own/kept", "own/kept/file", "kept.git"].map(|name| folder.path().join(name)).into();
            prop_assert!(inventory(folder.path()).is_superset(&kept));
            let text: String = order.iter().chain(&again).map(|at| all[*at].line()).collect();
            for _ in 0..2 {
                let mut log = UndoLog::recover(&text);
                // A process that ends by itself waits for no others.
                log.whose = Whose::Own;
                let problems = log.unwind();
                prop_assert_eq!(inventory(folder.path()), kept.clone());
                let of_own = |problem: &String| problem.contains(&format!("{}/own", folder.path().display()));
                prop_assert!(problems.iter().all(of_own), "{:?}", problems);
            }
        }
    }

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
