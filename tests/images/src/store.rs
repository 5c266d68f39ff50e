//! A store of a test's own, and the product with it as a person would use it: pulls, lists, runs. Everything lies in one temporary
//! directory that is removed with the bench; not under `/tmp`, because a sandbox has its own there.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use data_encoding::BASE64;
use lockgate_conformance::{Ended, Live};
use lockgate_needs::program;
use serde_json::Value;
use tempfile::TempDir;

use crate::certificate::Certificate;
use crate::needs::with_names;

/// The exit codes of `lockgate` when something cannot be had, and when the request was wrong.
const FAILED: [i32; 2] = [125, 2];

/// The directories of one test.
#[derive(Debug)]
pub struct Bench {
    root: TempDir,
    named: bool,
    account: Option<&'static str>,
    authority: Option<PathBuf>,
}

impl Bench {
    /// Makes an empty bench.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "making directories is not a default value")]
    pub fn new() -> Self {
        let root = tempfile::Builder::new().prefix("lockgate-images-").tempdir_in("/var/tmp");
        let bench = Self { root: root.expect("a directory"), named: false, account: None, authority: None };
        open_to_all(bench.root.path());
        for part in ["home", "data", "state", "workspace"] {
            fs::create_dir(bench.root.path().join(part)).expect("a directory");
        }
        bench
    }

    /// Makes these names resolve to this machine.
    ///
    /// # Panics
    /// When the list of names cannot be written.
    #[must_use]
    pub fn with_names(mut self, names: &[&str]) -> Self {
        let lines: Vec<String> = names.iter().map(|name| format!("127.0.0.1 {name}\n")).collect();
        fs::write(self.root.path().join("hosts"), lines.concat()).expect("a file");
        self.named = true;
        self
    }

    /// Gives the bench to an account without rights.
    ///
    /// # Panics
    /// When the files cannot be given away.
    #[must_use]
    pub fn of_account(mut self, (name, id): (&'static str, u32)) -> Self {
        for part in ["home", "data", "state", "workspace"] {
            chown(self.root.path().join(part), Some(id), None).expect("a directory to give away");
        }
        // The program is in a folder which that account may not read.
        let copy = self.root.path().join("lockgate");
        fs::copy(program("lockgate").expect("`ready` was asked first"), &copy).expect("a copy");
        open_to_all(&copy);
        self.account = Some(name);
        self
    }

    /// Names the authority of a certificate in `SSL_CERT_FILE`.
    #[must_use]
    pub fn trusting(mut self, certificate: &Certificate) -> Self {
        self.authority = Some(certificate.authority());
        self
    }

    /// The workspace of runs.
    #[must_use]
    pub fn workspace(&self) -> PathBuf {
        self.root.path().join("workspace")
    }

    /// The directory of the images.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.root.path().join("data/lockgate/images")
    }

    /// Returns `lockgate` with these arguments, not yet started.
    ///
    /// # Panics
    /// When it is not built; `ready` tells beforehand.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let program = program("lockgate").expect("`ready` was asked first");
        let mut command = match self.account {
            None if self.named => with_names(&self.root.path().join("hosts"), &program),
            None => Command::new(program),
            Some(account) => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid", account, "--regid", account, "--clear-groups", "--"]);
                command.arg(self.root.path().join("lockgate"));
                command
            }
        };
        command.args(arguments).current_dir(self.root.path().join("workspace")).stdin(Stdio::null());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for (name, part) in [("HOME", "home"), ("XDG_DATA_HOME", "data"), ("XDG_STATE_HOME", "state")] {
            command.env(name, self.root.path().join(part));
        }
        if let Some(path) = &self.authority {
            command.env("SSL_CERT_FILE", path);
        }
        command
    }

    /// Runs `lockgate` with these arguments to its end.
    #[must_use]
    pub fn lockgate(&self, arguments: &[&str]) -> Ended {
        Live::start(&mut self.command(arguments)).wait()
    }

    /// Pulls an image.
    #[must_use]
    pub fn pull(&self, name: &str) -> Ended {
        self.lockgate(&["image", "pull", name])
    }

    /// Pulls an image with the credential that [`Bench::keep_credential`] has stored.
    #[must_use]
    pub fn pull_with_credential(&self, name: &str) -> Ended {
        self.lockgate(&["image", "pull", "--credential", "registry", name])
    }

    /// Stores a user and a password under the name `registry`.
    ///
    /// # Panics
    /// When the product refuses them.
    pub fn keep_credential(&self, user: &str, password: &str) {
        for (field, value) in [("username", user), ("password", password)] {
            let mut file = tempfile::tempfile().expect("a file");
            file.write_all(value.as_bytes()).expect("a file that takes it");
            file.seek(SeekFrom::Start(0)).expect("its beginning");
            let mut command = self.command(&["creds", "set", "registry", "--field", field, "--stdin"]);
            let ended = Live::start(command.stdin(file)).wait();
            assert_eq!(ended.code, 0, "{ended}");
        }
    }

    /// Returns the local images, as `image ls --json` prints them.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn list(&self) -> Vec<Value> {
        let ended = self.lockgate(&["image", "ls", "--json"]);
        assert_eq!(ended.code, 0, "{ended}");
        ended.stdout.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Runs a command in an image.
    #[must_use]
    pub fn run(&self, image: &str, command: &[&str]) -> Ended {
        self.lockgate(&[&["run", "--image", image, "--"], command].concat())
    }

    /// Returns the number of entries in a directory of the store: `images`, `layers`, `blobs` or `staging`.
    #[must_use]
    pub fn count(&self, part: &str) -> usize {
        fs::read_dir(self.images().join(part)).map_or(0, Iterator::count)
    }

    /// Returns every file of the bench that contains a text, plainly or in base64 at any offset.
    ///
    /// # Panics
    /// When a file cannot be read.
    #[must_use]
    pub fn holding(&self, text: &str) -> Vec<PathBuf> {
        let needles = forms(text);
        let mut found = Vec::new();
        for part in ["home", "data", "state"] {
            visit(&self.root.path().join(part), &mut |path, octets| {
                if needles.iter().any(|needle| contains(octets, needle.as_bytes())) {
                    found.push(path.to_owned());
                }
            });
        }
        found
    }
}

/// Checks what every refusal has in common: it failed, did not panic, showed neither control characters nor `secret`, and left nothing in
/// the store.
///
/// # Panics
/// When one of these does not hold.
pub fn refused(bench: &Bench, ended: &Ended, secret: &str) {
    assert!(FAILED.contains(&ended.code), "it was not refused: {ended}");
    assert!(!ended.stderr.contains("panicked"), "{ended}");
    assert!(ended.stdout.is_empty(), "{ended}");
    assert!(ended.stderr.lines().count() <= 6 && ended.stderr.len() < 2000, "no message for people: {ended}");
    assert!(!ended.stderr.contains(|c: char| c.is_control() && c != '\n'), "{:?}", ended.stderr);
    assert!(secret.is_empty() || !told(ended, secret), "{ended}");
    assert_eq!(bench.list(), Vec::<Value>::new(), "{ended}");
    assert_eq!((bench.count("images"), bench.count("layers")), (0, 0), "{ended}");
    assert_eq!(bench.count("staging"), 0, "{ended}");
}

/// Whether a program printed a text, plainly or in base64.
#[must_use]
pub fn told(ended: &Ended, text: &str) -> bool {
    forms(text).iter().any(|form| ended.stdout.contains(form) || ended.stderr.contains(form))
}

/// Returns a text, and the part of its base64 that does not depend on its neighbours, at each of the three offsets.
fn forms(text: &str) -> Vec<String> {
    let encoded = (0..3).map(|before| {
        let octets = [vec![b' '; before], text.as_bytes().to_vec()].concat();
        let whole = octets.len() / 3 * 4;
        BASE64.encode(&octets)[(before * 8).div_ceil(6)..whole].to_owned()
    });
    [text.to_owned()].into_iter().chain(encoded).collect()
}

fn contains(octets: &[u8], needle: &[u8]) -> bool {
    octets.windows(needle.len()).any(|window| window == needle)
}

fn visit(directory: &Path, each: &mut impl FnMut(&Path, &[u8])) {
    for entry in fs::read_dir(directory).expect("a directory of the bench").flatten() {
        let kind = entry.file_type().expect("its kind");
        if kind.is_dir() {
            visit(&entry.path(), each);
        } else if kind.is_file() {
            each(&entry.path(), &fs::read(entry.path()).expect("a file of the bench"));
        }
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_at_every_offset_of_base_64() {
        for before in ["", "u", "us", "user:"] {
            for after in ["", "x", "xy"] {
                let whole = BASE64.encode(format!("{before}tr0ub4dor{after}").as_bytes());
                assert!(forms("tr0ub4dor").iter().any(|form| whole.contains(form)), "{before} {after}");
            }
        }
        assert!(!forms("tr0ub4dor").iter().any(|form| BASE64.encode(b"tr0ub4dxx").contains(form)));
    }
}
