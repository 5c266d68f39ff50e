//! One test's place: a small internet, a workspace, a state directory, all in one folder that belongs to whoever runs the
//! product. It goes with the test.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockgate_world::World;

use crate::beside::Beside;
use crate::ended::{Ended, run_to_end};
use crate::needs::{Need, beside_product, product, ready};
use crate::run::Run;

/// A world, and the folders of a caller in it.
pub struct Site {
    world: World,
}

impl Site {
    /// A site for the caller of the tests, or nothing after saying why the test is skipped.
    ///
    /// # Panics
    /// Where something is missing and `LOCKGATE_TEST_REQUIRE` is `all`, or there is no room.
    #[must_use]
    pub fn for_test(needs: &[Need]) -> Option<Self> {
        ready(needs).then(World::for_test).flatten().map(Self::in_world)
    }

    /// A site for a user without privilege.
    ///
    /// # Panics
    /// As [`Site::for_test`].
    #[must_use]
    pub fn for_unprivileged_test(needs: &[Need]) -> Option<Self> {
        ready(needs).then(World::for_unprivileged_test).flatten().map(Self::in_world)
    }

    /// Both of them: what holds for root must hold for anybody.
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

    /// Its small internet.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What the run may change.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.world.folder().join("work")
    }

    /// `XDG_STATE_HOME` of the caller.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.world.folder().join("state")
    }

    /// What the caller keeps for themselves.
    #[must_use]
    pub fn outside(&self) -> PathBuf {
        self.world.folder().join("outside")
    }

    /// Writes a file of the caller's, outside the workspace.
    ///
    /// # Panics
    /// When there is no room.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.write(self.outside().join(name), content.as_ref(), 0o644)
    }

    /// Puts a program into the workspace.
    ///
    /// # Panics
    /// When it cannot be read, or there is no room.
    pub fn program(&self, name: &str, from: &str) -> PathBuf {
        let content = fs::read(from).expect("a program of this build");
        self.write(self.workspace().join(name), &content, 0o755)
    }

    /// Puts the world's HTTP/2 client into the workspace, and gives its path; nothing, after saying so, where it is not built.
    #[must_use]
    pub fn h2_client(&self) -> Option<PathBuf> {
        self.own_program("h2-client")
    }

    /// The same for the probe of the conformance tests.
    #[must_use]
    pub fn probe(&self) -> Option<PathBuf> {
        self.own_program("probe")
    }

    fn own_program(&self, name: &str) -> Option<PathBuf> {
        let from = beside_product(name)?;
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

    /// Makes a new folder of the caller's, outside the workspace, and gives its path.
    ///
    /// # Panics
    /// When there is no room.
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
    /// When the product does not take it.
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

    /// Runs the product's command line in the small internet, to its end.
    ///
    /// # Panics
    /// When it is not built, which `ready` rules out.
    #[must_use]
    pub fn lockgate(&self, words: &[&str]) -> Ended {
        let mut command = self.world.command(product().expect("`ready` was asked first"));
        command.args(words).current_dir(self.workspace()).env("XDG_STATE_HOME", self.state());
        run_to_end(&mut command, Duration::from_secs(60))
    }

    /// A sidecar alone, with this policy.
    #[must_use]
    pub fn beside(&self, policy: &str) -> Beside<'_> {
        Beside::new(self, policy)
    }

    /// The requests that servers got, as they came.
    #[must_use]
    pub fn requests(&self) -> Vec<lockgate_world::Record> {
        self.visits().into_iter().filter(|record| record.event == "request").collect()
    }

    /// A run with nothing allowed.
    #[must_use]
    pub fn run(&self) -> Run<'_> {
        Run::new(self)
    }

    /// The records of every server but the resolvers.
    #[must_use]
    pub fn visits(&self) -> Vec<lockgate_world::Record> {
        let resolvers = ["resolver", "other-resolver"];
        let visits = self.world.records().into_iter();
        visits
            .filter(|record| !resolvers.contains(&record.server.as_str()) && record.event != "absent")
            .collect()
    }
}
