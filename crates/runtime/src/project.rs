//! Finds the policy file of a workspace. Its approval is stored under its path, so the file that counts is the one in the folder that a
//! run opens as its workspace, and no link leads to it: where two runs share a folder above, the command of one could lead the other to
//! another project, whose policy the person approved.

use std::path::{Component, Path, PathBuf};

use sandbox::Caller;

use crate::error::Error;

/// The name of a project's file.
pub(crate) const PROJECT: &str = "lockgate.toml";

/// The policy file of a workspace.
pub(crate) struct ProjectFile {
    /// The workspace as a run opens it.
    named: PathBuf,
    /// Where that folder is, every link resolved once.
    folder: PathBuf,
}

impl ProjectFile {
    pub(crate) fn of(workspace: Option<&Path>, caller: &Caller) -> Self {
        let named = without_climbing(&caller.workspace(workspace));
        let folder = named.canonicalize().unwrap_or_else(|_| named.clone());
        Self { named, folder }
    }

    /// Returns its one path, however the workspace was named.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(PROJECT)
    }

    /// Refuses a workspace that is, or was while it was looked for, behind a link.
    pub(crate) fn refuse_link(&self) -> Result<(), Error> {
        match self.named == self.folder {
            true => Ok(()),
            false => Err(sandbox::Error::behind_link(&self.named, Some(&self.folder)).into()),
        }
    }
}

/// Returns a path in which no part climbs. Where a link is before such a part, it is another folder's, and is told as behind a link.
fn without_climbing(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}

/// Returns the path of a workspace's own file.
///
/// # Errors
/// When a link leads to the workspace: no run has such a one, and another project's file must not be taken for its own.
pub fn project_file(workspace: Option<&Path>, caller: &Caller) -> Result<PathBuf, Error> {
    let project = ProjectFile::of(workspace, caller);
    project.refuse_link()?;
    Ok(project.path())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use policy::{RunConfig, RunSpec};
    use rustix::fs::{CWD, RenameFlags};

    use super::*;
    use crate::approval::approve;
    use crate::settings::{Settings, SettingsRequest};
    use crate::state::StateDirectory;

    /// The text of a policy that shows the folder's own `data`.
    const OF_THE_FOLDER: &str = "[[mount]]\nsource = \"data\"\ntarget = \"/data\"\nmode = \"rw\"\n";
    const LOADS: u32 = 4_000;

    /// Two projects: both have a policy, of which the person approved `project`'s alone, or `other`'s alone.
    struct Projects {
        folder: tempfile::TempDir,
        state: StateDirectory,
        caller: Caller,
    }

    impl Projects {
        fn new(approved: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path().canonicalize().unwrap();
            let caller = Caller::new(1, 1, &root).with_home(&root);
            let state = StateDirectory::for_test(&root.join("state"));
            for project in ["project", "other"] {
                std::fs::create_dir(root.join(project)).unwrap();
                std::fs::write(root.join(project).join(PROJECT), OF_THE_FOLDER).unwrap();
            }
            symlink(root.join("other"), root.join("link")).unwrap();
            approve(&state, &root.join(approved).join(PROJECT), &[OF_THE_FOLDER]).unwrap();
            Self { folder, state, caller }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().canonicalize().unwrap().join(name)
        }

        /// Loads what a run in a folder would have.
        fn load(&self, workspace: &str, backend: Option<&str>) -> Result<RunSpec, Error> {
            let flags = RunConfig { backend: backend.map(str::to_owned), ..RunConfig::default() };
            let workspace = Some(self.path(workspace));
            let request = SettingsRequest { workspace, flags, ..SettingsRequest::default() };
            Ok(Settings::load(&request, &self.caller, Some(&self.state))?.spec)
        }
    }

    #[test]
    fn a_link_leads_to_no_project() {
        let projects = Projects::new("other");
        for (workspace, backend, is_taken) in [
            ("other", None, true),
            ("other/", None, true),
            ("link", None, false),
            ("link", Some("process"), true),
        ] {
            match projects.load(workspace, backend) {
                Ok(spec) => {
                    assert!(is_taken, "{workspace} {backend:?}");
                    assert_eq!(spec.mounts[0].source, projects.path("other/data"));
                }
                Err(error) => {
                    let (told, place) = (error.to_string(), projects.path("other"));
                    assert!(!is_taken && told.contains("symbolic link"), "{workspace} {backend:?}: {told}");
                    assert!(told.ends_with(&place.display().to_string()), "{told}");
                }
            }
        }
        let layers = |backend: Option<&str>| {
            let flags = RunConfig { backend: backend.map(str::to_owned), ..RunConfig::default() };
            let workspace = Some(projects.path("link"));
            let request = SettingsRequest { workspace, flags, ..SettingsRequest::default() };
            Settings::judge(&request, &projects.caller, Some(&projects.state))
        };
        assert!(
            layers(None).is_err() && layers(Some("process")).is_ok(),
            "what is shown is what would count"
        );
        let file = |workspace: &str| project_file(Some(&projects.path(workspace)), &projects.caller);
        assert_eq!(file("other").unwrap(), projects.path("other/lockgate.toml"));
        assert_eq!(file("project/../other").unwrap(), projects.path("other/lockgate.toml"));
        assert!(file("link/../link").is_err());
        assert!(file("link").is_err(), "an edit of one project's policy is none of another's");
    }

    /// Ends the flipping also where a check fails.
    struct OnDrop<'a>(&'a AtomicBool);

    impl Drop for OnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Loads the settings of `project` over and over, while the folder takes turns with the link to `other`.
    fn while_it_flips(projects: &Projects, mut check: impl FnMut(Result<RunSpec, Error>)) {
        let over = AtomicBool::new(false);
        let (folder, link) = (projects.path("project"), projects.path("link"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let _end = OnDrop(&over);
            (0..LOADS).for_each(|_| check(projects.load("project", None)));
        });
    }

    #[test]
    fn the_policy_of_another_project_is_never_taken() {
        while_it_flips(&Projects::new("other"), |loaded| {
            // Its own policy is not approved.
            assert!(loaded.is_err());
        });
    }

    #[test]
    fn what_an_approved_policy_names_stays_below_its_folder() {
        let projects = Projects::new("project");
        let (mut taken, mut refused) = (0, 0);
        while_it_flips(&projects, |loaded| match loaded {
            Ok(spec) => {
                assert_eq!(spec.mounts[0].source, projects.path("project/data"));
                taken += 1;
            }
            Err(_) => refused += 1,
        });
        assert!(taken > 0 && refused > 0, "nothing flipped: {taken} taken, {refused} refused");
    }
}
