//! A test's handle on a world: runs commands in it, sets its names, and reads its servers' records. It only starts the `world` program; it
//! never makes a namespace or a socket in the test's own process.

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{fs, io};

use lockgate_needs::{met, program};
use rustix::process::geteuid;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::record::Record;

/// The unprivileged user of a world that root's test starts: the first of these accounts that exists.
const ACCOUNTS: [&str; 2] = ["lockgate-test", "nobody"];

/// A world that each [`World::command`] makes anew, with one records file, one table of names and one folder of keys.
pub struct World {
    binary: PathBuf,
    folder: TempDir,
    account: Option<Account>,
}

/// Another user, by number.
#[derive(Clone, Copy)]
struct Account {
    user: u32,
    group: u32,
}

impl World {
    /// Finds out whether a world can be made here, by making one, once.
    ///
    /// # Errors
    /// The error output of the `world` program, or that it was not found.
    pub fn available() -> Result<(), String> {
        static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
        let attempt = || {
            let world = Self::new().map_err(|error| error.to_string())?;
            let output =
                world.command("true").stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if output.status.success() { Ok(()) } else { Err(words) }
        };
        ANSWER.get_or_init(attempt).clone()
    }

    /// Returns a world for a test, or prints why the test is skipped and returns `None`.
    ///
    /// # Panics
    /// When no world can be made and everything is required.
    #[must_use]
    pub fn for_test() -> Option<Self> {
        let world = Self::available().and_then(|()| Self::new().map_err(|error| error.to_string()));
        met(world.map_err(no_world))
    }

    /// Returns such a world for an unprivileged user: the caller, or another account if that is root.
    ///
    /// # Panics
    /// As [`World::for_test`].
    #[must_use]
    pub fn for_unprivileged_test() -> Option<Self> {
        let world = Self::available().and_then(|()| Self::unprivileged().map_err(|error| error.to_string()));
        met(world.map_err(no_world))
    }

    /// Returns a world for the caller.
    ///
    /// # Errors
    /// When the program was not found, or a folder cannot be made.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("lockgate-test-").tempdir()?;
        let binary = program("world").map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))?;
        Ok(Self { binary, folder, account: None })
    }

    /// Returns a world for an unprivileged user, who owns [`World::folder`] and has its home in it.
    ///
    /// # Errors
    /// As [`World::new`], or the caller is root and the machine has no other account.
    pub fn unprivileged() -> io::Result<Self> {
        let mut world = Self::new()?;
        if geteuid().is_root() {
            let account = account()?;
            let home = world.folder.path().join("home");
            fs::create_dir(&home)?;
            fs::set_permissions(world.folder.path(), fs::Permissions::from_mode(0o755))?;
            for path in [world.folder.path(), &home] {
                chown(path, Some(account.user), Some(account.group))?;
            }
            world.account = Some(account);
        }
        Ok(world)
    }

    /// Returns a command that runs `program` inside. Its streams, arguments and environment are set as on any other command.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg("--records").arg(self.records_path());
        command.arg("--tables").arg(self.tables_path());
        command.arg("--keys").arg(self.keys_path());
        command.arg("--ca-dir").arg(self.ca_directory());
        command.arg("--").arg(program);
        if let Some(Account { user, group }) = self.account {
            command.uid(user).gid(group).env("HOME", self.folder.path().join("home"));
        }
        command
    }

    /// Returns the servers' records so far, in order.
    ///
    /// # Panics
    /// When a line of the file is not a record: a test must not go on with incomplete records.
    #[must_use]
    #[expect(clippy::panic, reason = "a test must not go on with half of the truth")]
    pub fn records(&self) -> Vec<Record> {
        let text = match fs::read_to_string(self.records_path()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => panic!("the records cannot be read: {error}"),
        };
        let read =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
        text.lines().map(read).collect()
    }

    /// Returns the records of one server.
    #[must_use]
    pub fn records_of(&self, server: &str) -> Vec<Record> {
        self.records().into_iter().filter(|record| record.server == server).collect()
    }

    /// Returns how many octets a server received, over TLS those inside it: zero if every handshake was refused.
    #[must_use]
    pub fn received_by(&self, server: &str) -> u64 {
        let closed = self.records_of(server).into_iter().filter(|record| record.event == "closed");
        closed.filter_map(|record| record.detail["received"].as_u64()).sum()
    }

    /// Sets the addresses of names, over the built-in names: an object of lists of addresses. The key `resolves_all` answers for every
    /// name. A running world applies it with the next query.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn resolve(&self, names: &Value) -> io::Result<()> {
        replace(&self.tables_path(), names)
    }

    /// Sets the only key that `host`, a model provider of the world, accepts, in place of its constant in this crate or of the key set
    /// before. A running world applies it with the next request.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn expect_key(&self, host: &str, key: &str) -> io::Result<()> {
        let path = self.keys_path();
        let mut keys: Value = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => json!({}),
            Err(error) => return Err(error),
        };
        keys[host] = key.into();
        replace(&path, &keys)
    }

    /// The folder of this world's files, removed with it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder where the world puts `ca.pem`, `ssh_key` and `known_hosts`.
    #[must_use]
    pub fn ca_directory(&self) -> PathBuf {
        self.folder.path().join("ca")
    }

    fn records_path(&self) -> PathBuf {
        self.folder.path().join("records.jsonl")
    }

    fn tables_path(&self) -> PathBuf {
        self.folder.path().join("tables.json")
    }

    fn keys_path(&self) -> PathBuf {
        self.folder.path().join("keys.json")
    }
}

fn no_world(why: String) -> String {
    format!("no test world: {why}")
}

/// Writes a file by renaming it into place, so that no reader sees half of it.
fn replace(path: &Path, content: &Value) -> io::Result<()> {
    let whole = path.with_extension("new");
    fs::write(&whole, content.to_string())?;
    fs::rename(whole, path)
}

fn account() -> io::Result<Account> {
    let accounts = fs::read_to_string("/etc/passwd")?;
    let find = |name: &&str| {
        let line = accounts.lines().find(|line| line.split(':').next() == Some(*name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        Some(Account { user: numbers.next()?.ok()?, group: numbers.next()?.ok()? })
    };
    let missing =
        || io::Error::new(io::ErrorKind::NotFound, format!("none of the accounts {ACCOUNTS:?} exists"));
    ACCOUNTS.iter().find_map(find).ok_or_else(missing)
}
