//! One test's site: a small internet, a workspace and a state directory, in one folder that belongs to the user who runs the product and is
//! removed with the test.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockgate_needs::{met, program};
use lockgate_world::World;

use crate::beside::Beside;
use crate::ended::{Ended, run_to_end};
use crate::needs::{Need, product, ready};
use crate::run::Run;
use crate::shell::Shell;

/// A world, and the folders of a caller in it.
pub struct Site {
    world: World,
}

impl Site {
    /// Returns a site for the user who runs the tests, or prints why the test is skipped and returns `None`.
    ///
    /// # Panics
    /// When a requirement is missing and everything is required, or a folder cannot be made.
    #[must_use]
    pub fn for_test(needs: &[Need]) -> Option<Self> {
        ready(needs).then(World::for_test).flatten().map(Self::in_world)
    }

    /// Returns a site for an unprivileged user.
    ///
    /// # Panics
    /// As [`Site::for_test`].
    #[must_use]
    pub fn for_unprivileged_test(needs: &[Need]) -> Option<Self> {
        ready(needs).then(World::for_unprivileged_test).flatten().map(Self::in_world)
    }

    /// Returns both sites: what holds for root must hold for everyone.
    pub fn for_everyone(needs: &[Need]) -> impl Iterator<Item = Self> {
        [Self::for_test(needs), Self::for_unprivileged_test(needs)].into_iter().flatten()
    }

    fn in_world(world: World) -> Self {
        let site = Self { world };
        for folder in [site.workspace(), site.state(), site.outside()] {
            fs::create_dir(&folder).expect("a folder in the world's own");
            site.own(&folder);
        }
        site
    }

    /// The site's small internet.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The workspace, which a run may change.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.world.folder().join("work")
    }

    /// `XDG_STATE_HOME` of the caller.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.world.folder().join("state")
    }

    /// The caller's own folder, which runs do not see.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        self.world.folder().join("outside")
    }

    /// Writes a file of the caller's, outside the workspace.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.write(self.outside().join(name), content.as_ref(), 0o644)
    }

    /// Copies a program into the workspace.
    ///
    /// # Panics
    /// When it cannot be read or written.
    pub fn program(&self, name: &str, from: &str) -> PathBuf {
        let content = fs::read(from).expect("a program of this build");
        self.write(self.workspace().join(name), &content, 0o755)
    }

    /// Copies the world's HTTP/2 client into the workspace and returns its path; prints a message and returns `None` if it is not built.
    #[must_use]
    pub fn h2_client(&self) -> Option<PathBuf> {
        self.own_program("h2-client")
    }

    /// Copies the world's relay of HTTP to TLS in the same way.
    #[must_use]
    pub fn tls_relay(&self) -> Option<PathBuf> {
        self.own_program("tls-relay")
    }

    /// Copies the probe of the conformance tests in the same way.
    #[must_use]
    pub fn probe(&self) -> Option<PathBuf> {
        self.own_program("probe")
    }

    fn own_program(&self, name: &str) -> Option<PathBuf> {
        let from = met(program(name))?;
        Some(self.program(name, &from.to_string_lossy()))
    }

    fn write(&self, path: PathBuf, content: &[u8], mode: u32) -> PathBuf {
        fs::write(&path, content).expect("room for a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its owner");
        self.own(&path);
        path
    }

    fn own(&self, path: &Path) {
        let owner = fs::metadata(self.world.folder()).expect("the world's folder");
        chown(path, Some(owner.uid()), Some(owner.gid())).expect("the folder's owner");
    }

    /// Makes a new folder of the caller's, outside the workspace, and returns its path.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn folder(&self, name: &str) -> PathBuf {
        let count = fs::read_dir(self.outside()).map(Iterator::count).unwrap_or(0);
        let path = self.outside().join(format!("{name}-{count}"));
        fs::create_dir(&path).expect("a folder in the world's own");
        self.own(&path);
        path
    }

    /// Stores one field of a provider's credential in the caller's vault.
    ///
    /// # Panics
    /// When the product does not accept it.
    pub fn keep(&self, provider: &str, field: &str, value: &str) {
        let ended = self.store(provider, field, value);
        assert!(ended.code == 0, "{ended}");
    }

    /// Tries to store one field of a provider's credential.
    #[must_use]
    pub fn store(&self, provider: &str, field: &str, value: &str) -> Ended {
        let from = self.file(&format!("value-{provider}-{field}"), value);
        let ended = self.lockgate(&[
            "creds",
            "set",
            provider,
            "--field",
            field,
            "--from-file",
            &from.to_string_lossy(),
        ]);
        fs::remove_file(from).expect("a file of this test's");
        ended
    }

    /// Runs the product's command line in the small internet to its end.
    ///
    /// # Panics
    /// When it is not built; `ready` tells beforehand.
    #[must_use]
    pub fn lockgate(&self, words: &[&str]) -> Ended {
        let mut command = self.world.command(product().expect("`ready` was asked first"));
        command.args(words).current_dir(self.workspace()).env("XDG_STATE_HOME", self.state());
        run_to_end(&mut command, Duration::from_secs(60))
    }

    /// Returns a shell of the caller's, outside any sandbox.
    #[must_use]
    pub fn shell(&self) -> Shell<'_> {
        Shell::new(self)
    }

    /// Returns a sidecar alone, with this policy.
    #[must_use]
    pub fn beside(&self, policy: &str) -> Beside<'_> {
        Beside::new(self, policy)
    }

    /// Returns the requests that servers received, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<lockgate_world::Record> {
        self.visits().into_iter().filter(|record| record.event == "request").collect()
    }

    /// Returns a run with nothing allowed.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        Run::new(self)
    }

    /// Returns the records of every server except the resolvers.
    #[must_use]
    pub fn visits(&self) -> Vec<lockgate_world::Record> {
        let resolvers = ["resolver", "other-resolver"];
        let visits = self.world.records().into_iter();
        visits
            .filter(|record| !resolvers.contains(&record.server.as_str()) && record.event != "absent")
            .collect()
    }
}
