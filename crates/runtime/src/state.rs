//! The state directory, `$XDG_STATE_HOME/lockgate`, readable by its owner only.
//!
//! ```text
//! runs/<id>.jsonl    the record of a run
//! audit/<id>.jsonl   its audit; <id>.<name>.jsonl is a companion's
//! changes/<id>       what it wrote in a workspace that is kept apart
//! written/<id>       what it writes over its image, if that cannot be in memory
//! trusted/<id>       its sidecar's authority, if the command sees this machine's files
//! live/<id>          its run lock and undo log, locked for as long as its process lives
//! stock/             placeholders that hold names in workspaces, between two runs
//! turns/             empty files: each is a slot at an engine, locked by the run that has it
//! keys/              the audit's signing key, and the vault's
//! vault/             credentials, encrypted; organisations/<name>/vault/ is an organisation's
//! approved/          what project files the person has approved
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use policy::{Hostname, OrganisationName, RunId, shell_word};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use sandbox::{Caller, Reaper};

use crate::companion_audits::companion_audits_beside;
use crate::error::Error;
use crate::stranger::Stranger;
use crate::without_waiting::IRREGULAR;

const RUNS: &str = "runs";
const AUDIT: &str = "audit";
const CHANGES: &str = "changes";
const WRITTEN: &str = "written";
const TRUSTED: &str = "trusted";
const LIVE: &str = "live";
const STOCK: &str = "stock";
const TURNS: &str = "turns";
const KEYS: &str = "keys";
const VAULT: &str = "vault";
const ORGANISATIONS: &str = "organisations";
const APPROVED: &str = "approved";

/// Every directory in it.
const PARTS: [&str; 12] =
    [RUNS, AUDIT, CHANGES, WRITTEN, TRUSTED, LIVE, STOCK, TURNS, KEYS, VAULT, ORGANISATIONS, APPROVED];

/// What helps where another user's place would be used.
const WHOSE: &str = "name another place with XDG_STATE_HOME, or use a HOME of your own (`sudo -H`)";

/// The state directory.
#[derive(Clone, Debug)]
pub struct StateDirectory(PathBuf);

impl StateDirectory {
    /// Returns the state directory of a caller, by the XDG rules.
    ///
    /// # Errors
    /// When neither `XDG_STATE_HOME` nor `HOME` names a place, somebody else may have written to a directory whose files are obeyed, or root
    /// would make it in another user's home.
    pub fn of(caller: &Caller) -> Result<Self, Error> {
        let directory = Self::to_read(caller)?;
        directory.refuse_to_take_over(caller)?;
        Ok(directory)
    }

    /// Returns it to a command that makes nothing in it.
    ///
    /// # Errors
    /// As [`StateDirectory::of`], but for what would be made.
    pub fn to_read(caller: &Caller) -> Result<Self, Error> {
        let named =
            caller.variable("XDG_STATE_HOME").filter(|p| Path::new(p).is_absolute()).map(PathBuf::from);
        let directory = match (named, &caller.home) {
            (Some(named), _) => Self(named.join("lockgate")),
            (None, Some(home)) => Self(home.join(".local/state/lockgate")),
            (None, None) => return Err(Error::NoStateDirectory),
        };
        directory.refuse_others(rustix::process::geteuid().as_raw())?;
        Ok(directory)
    }

    /// Refuses directories that others may write to: their files are obeyed. An undo log says what is taken away behind a run, an
    /// approval what a project's file may do, and what is kept of a run's changes what is applied.
    fn refuse_others(&self, own: u32) -> Result<(), Error> {
        for path in std::iter::once(self.0.clone()).chain(PARTS.map(|part| self.0.join(part))) {
            let about = match std::fs::metadata(&path) {
                Ok(about) => about,
                // One that does not exist will be made, and one that may not be examined cannot be read either.
                Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied) => continue,
                Err(source) => return Err(state_error(&path, source)),
            };
            let Some(stranger) = Stranger::beside_program(&about, own) else { continue };
            let remedy = match stranger {
                Stranger::Owner(_) => WHOSE.into(),
                Stranger::Writer(_) => format!(
                    "see what is in it, then chmod go-w {}; if that changes nothing, its file system keeps no modes: \
                     name a place on another with XDG_STATE_HOME",
                    shell_word(&path.to_string_lossy())
                ),
            };
            return Err(Error::StateOfOthers { path, why: stranger.to_string(), remedy });
        }
        Ok(())
    }

    /// Refuses to make root's directories in another user's home.
    fn refuse_to_take_over(&self, caller: &Caller) -> Result<(), Error> {
        // As in a volume of another user's: whoever names it means it.
        let is_named = caller
            .variable("XDG_STATE_HOME")
            .is_some_and(|named| self.0 == Path::new(named).join("lockgate"));
        if is_named { Ok(()) } else { refuse_to_take_over(&self.0, WHOSE) }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// Returns this directory, and those in it that are links: what they lead to is obeyed as well.
    pub(crate) fn places(&self) -> impl Iterator<Item = PathBuf> {
        let parts = PARTS.map(|part| self.0.join(part)).into_iter();
        std::iter::once(self.0.clone()).chain(parts.filter(|part| part.is_symlink()))
    }

    pub(crate) fn record(&self, run: &RunId) -> PathBuf {
        self.runs().join(format!("{run}{RECORD}"))
    }

    pub(crate) fn runs(&self) -> PathBuf {
        self.0.join(RUNS)
    }

    /// Returns the directory of what all runs wrote in workspaces that are kept apart.
    pub(crate) fn all_changes(&self) -> PathBuf {
        self.0.join(CHANGES)
    }

    /// Returns the directory of what a run writes in a workspace that is kept apart.
    pub(crate) fn changes(&self, run: &RunId) -> PathBuf {
        self.all_changes().join(run.as_str())
    }

    /// Returns the directories of what a run writes in its workspace, and over its image if that cannot be in memory: by paths without
    /// links, as they are mounted. Neither is made.
    pub(crate) fn mounted(&self, run: &RunId) -> Result<[PathBuf; 2], Error> {
        let base = match self.0.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_directory(&self.0)?;
                self.0.canonicalize()
            }
            found => found,
        };
        let base = base.map_err(|source| state_error(&self.0, source))?;
        Ok([CHANGES, WRITTEN].map(|part| base.join(part).join(run.as_str())))
    }

    /// Returns the directory in which the authority of a run's sidecar is written for its command. It is not made.
    pub(crate) fn trusted(&self, run: &RunId) -> PathBuf {
        self.0.join(TRUSTED).join(run.as_str())
    }

    /// Returns what takes away behind runs that are over.
    pub(crate) fn reaper(&self) -> Reaper {
        Reaper::of(self.0.join(WRITTEN), self.0.join(TRUSTED))
    }

    /// Returns the directory in which the runs of one person take slots at engines. It is made when it is needed.
    pub(crate) fn engine_slots(&self) -> PathBuf {
        self.0.join(TURNS)
    }

    pub(crate) fn live(&self) -> PathBuf {
        self.0.join(LIVE)
    }

    /// Returns the directory of the placeholders that hold names in workspaces, while none is held.
    pub(crate) fn stock(&self) -> PathBuf {
        self.0.join(STOCK)
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.0.join(KEYS)
    }

    /// Returns the directory of the person's own vault, or of an organisation's. S1.27
    pub(crate) fn vault(&self, organisation: Option<&OrganisationName>) -> PathBuf {
        let of = organisation.map(|name| self.0.join(ORGANISATIONS).join(name.as_str()));
        of.as_ref().unwrap_or(&self.0).join(VAULT)
    }

    /// Returns the organisations that have a directory here, sorted.
    pub(crate) fn organisations(&self) -> Result<Vec<OrganisationName>, Error> {
        let path = self.0.join(ORGANISATIONS);
        let entries = match std::fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|source| state_error(&path, source))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(|source| state_error(&path, source))?.file_name();
            // A directory of another name is no vault that this program would read.
            names.extend(name.to_str().and_then(|name| name.parse().ok()));
        }
        names.sort();
        Ok(names)
    }

    pub(crate) fn approved(&self) -> PathBuf {
        self.0.join(APPROVED)
    }

    /// Returns the audit file of a run.
    #[must_use]
    pub fn audit(&self, run: &RunId) -> PathBuf {
        self.0.join(AUDIT).join(format!("{run}{RECORD}"))
    }

    /// Returns the audit file of a run's companion.
    pub(crate) fn audit_of(&self, run: &RunId, companion: &Hostname) -> PathBuf {
        self.0.join(AUDIT).join(format!("{run}.{companion}{RECORD}"))
    }

    /// Returns the audit files of a run's companions, each with the companion's name.
    ///
    /// # Errors
    /// When the directory of all audits cannot be listed.
    pub fn companion_audits(&self, run: &RunId) -> Result<Vec<(String, PathBuf)>, Error> {
        companion_audits_beside(&self.audit(run)).map_err(|source| state_error(&self.0.join(AUDIT), source))
    }
}

/// Refuses a directory that is not there yet, if root would make it in another user's: `~/.local` would be shut to its owner from then on.
/// Others can make directories only where they are let.
pub(crate) fn refuse_to_take_over(directory: &Path, remedy: &str) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() || directory.exists() {
        return Ok(());
    }
    let above = directory.ancestors().skip(1).find_map(|path| Some((path, std::fs::metadata(path).ok()?)));
    match above {
        Some((path, about)) if about.uid() != 0 => Err(Error::StateOfOthers {
            path: directory.into(),
            why: format!("it would be made in {}, which belongs to user {}", path.display(), about.uid()),
            remedy: remedy.into(),
        }),
        _ => Ok(()),
    }
}

/// The extension of record and audit files.
pub(crate) const RECORD: &str = ".jsonl";

/// Makes a directory and its parents, for the owner only.
pub(crate) fn make_directory(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| state_error(path, source))
}

/// Opens a file for appending, making it and its directory if they do not exist, for the owner only.
pub(crate) fn append(path: &Path) -> Result<File, Error> {
    in_directory(path, || open_to_append(OpenOptions::new().append(true), path))
}

/// The same for a file whose end is looked at before it is appended to.
pub(crate) fn append_after_a_look(path: &Path) -> Result<File, Error> {
    in_directory(path, || open_to_append(OpenOptions::new().read(true).append(true), path))
}

/// A pipe in its place is not waited for.
fn open_to_append(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let opened = options.create(true).mode(0o600).custom_flags(flags).open(path);
    // Of a pipe without a reader, the kernel says that there is no such device.
    let is_file = opened.as_ref().map_or_else(
        |error| Errno::from_io_error(error) != Some(Errno::NXIO),
        |file| file.metadata().is_ok_and(|about| about.is_file()),
    );
    if is_file { opened } else { Err(io::Error::new(io::ErrorKind::InvalidData, IRREGULAR)) }
}

/// Makes a file, and its directory if that does not exist. The files of all runs are in one directory: one for each run would be the
/// most expensive step of a start.
pub(crate) fn in_directory(path: &Path, make: impl Fn() -> io::Result<File>) -> Result<File, Error> {
    let made = match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), make_directory)?;
            make()
        }
        made => made,
    };
    made.map_err(|source| state_error(path, source))
}

/// Makes a key file: whole or not at all, for the owner only. Of two processes the first wins; returns whether this one did.
pub(crate) fn make_once(path: &Path, content: &[u8]) -> Result<bool, Error> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let link = |unnamed: &str| rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW);
    let made = make_unnamed(parent, path, content, link);
    match made.and_then(|()| File::open(parent)?.sync_all()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(state_error(path, source)),
    }
}

/// Makes the file without a name, synchronised, then links it: a process that is killed meanwhile leaves nothing.
fn make_unnamed(
    parent: &Path,
    path: &Path,
    content: &[u8],
    link: impl FnOnce(&str) -> rustix::io::Result<()>,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mut file = match rustix::fs::open(parent, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        // Not every file system has such files.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => return make_beside(path, content),
        Err(errno) => return Err(errno.into()),
    };
    write_unless_shared(&mut file, content)?;
    match link(&format!("/proc/self/fd/{}", file.as_raw_fd())) {
        // To AppArmor one that has no name is not there, unless its profile says `mediate_deleted`.
        Err(errno) if errno != Errno::EXIST => make_beside(path, content),
        linked => Ok(linked?),
    }
}

/// Makes the file under another name, then links it.
fn make_beside(path: &Path, content: &[u8]) -> io::Result<()> {
    let beside = path.with_extension(format!("{NEW}.{}", rustix::process::getpid().as_raw_nonzero()));
    // A file that is there is of a killed process that had the same number.
    let _ = std::fs::remove_file(&beside);
    let made = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| write_unless_shared(&mut file, content))
        .and_then(|()| std::fs::hard_link(&beside, path));
    let _ = std::fs::remove_file(&beside);
    made
}

/// Writes to a file that was made for the owner only, unless others may open it all the same: some file systems keep no modes.
fn write_unless_shared(file: &mut File, content: &[u8]) -> io::Result<()> {
    if file.metadata()?.mode() & 0o077 != 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, KEEPS_NO_MODES));
    }
    file.write_all(content)?;
    file.sync_all()
}

const KEEPS_NO_MODES: &str = "its file system keeps no modes, so others could read it";

/// Replaces a file atomically: readers see the old content or the new. Nothing that lies beside it is followed or written to.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let beside = path.with_extension(NEW);
    // One that is there is of a killed process.
    let _ = std::fs::remove_file(&beside);
    if !make_once(&beside, content)? {
        return Err(state_error(&beside, io::ErrorKind::AlreadyExists.into()));
    }
    std::fs::rename(&beside, path).map_err(|source| {
        let _ = std::fs::remove_file(&beside);
        state_error(path, source)
    })
}

/// The extension of a file that takes another's place in a moment.
const NEW: &str = "new";

/// Removes the files that killed processes left beside those they were to replace, while nobody else replaces any in this directory.
pub(crate) fn remove_left_beside(directory: &Path) {
    let is_left = |path: &PathBuf| {
        let mut parts =
            path.file_name().map_or(&[][..], |name| name.as_encoded_bytes()).split(|it| *it == b'.');
        parts.any(|part| part == NEW.as_bytes())
    };
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(is_left) {
        let _ = std::fs::remove_file(path);
    }
}

pub(crate) fn state_error(path: &Path, source: io::Error) -> Error {
    Error::State { path: path.into(), source }
}

#[cfg(test)]
impl StateDirectory {
    /// Returns the state directory of a caller whose `XDG_STATE_HOME` is this folder.
    pub(crate) fn for_test(folder: &Path) -> Self {
        Self(folder.join("lockgate"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_nothing_stays_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.pk8");
        assert!(make_once(&path, b"first").unwrap());
        assert!(!make_once(&path, b"second").unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        // If a file needs a name, one that a killed process of the same number left is no obstacle.
        let other = folder.path().join("vault.key");
        let beside = other.with_extension(format!("new.{}", std::process::id()));
        std::fs::write(&beside, "half").unwrap();
        make_beside(&other, b"whole").unwrap();
        assert_eq!((std::fs::read(&other).unwrap(), beside.exists()), (b"whole".to_vec(), false));
        assert_eq!(make_beside(&other, b"again").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_key_is_made_where_a_file_without_a_name_cannot_be_linked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.pk8");
        make_unnamed(folder.path(), &path, b"key", |_| Err(Errno::NOENT)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"key");
        let again = make_unnamed(folder.path(), &path, b"other", |_| Err(Errno::NOENT)).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_is_written_where_a_file_system_lets_others_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vault.key");
        for mode in [0o777, 0o755, 0o640] {
            let mut file = File::create(&path).unwrap();
            file.set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = write_unless_shared(&mut file, b"key").unwrap_err();
            assert_eq!(std::fs::read(&path).unwrap(), b"");
            let remedy = state_error(&path, refused).remedy().unwrap();
            assert!(remedy.contains("ext4") && remedy.contains("XDG_STATE_HOME"), "{remedy}");
        }
    }

    #[test]
    fn what_lies_beside_a_file_that_is_replaced_is_neither_followed_nor_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("audit.pub"), folder.path().join("victim"));
        std::fs::write(&victim, "theirs").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("audit.new")).unwrap();
        replace(&path, b"key").unwrap();
        replace(&path, b"another").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"another");
        assert_eq!(std::fs::read(&victim).unwrap(), b"theirs");
        assert!(!path.is_symlink() && !folder.path().join("audit.new").exists());
        for left in ["ab.new", "ab.new.17"] {
            std::fs::write(folder.path().join(left), "half").unwrap();
        }
        remove_left_beside(folder.path());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory(folder.path().join("lockgate"));
        let own = rustix::process::geteuid().as_raw();
        directory.refuse_others(own).unwrap(); // it is not there yet
        if own == 0 {
            // Where it is not there yet, what is made would be root's, in another user's home.
            let home = folder.path().join("home");
            std::fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(65_534), None).unwrap();
            let of = |caller: Caller| StateDirectory::of(&caller);
            let caller = Caller::new(0, 0, "/").with_home(&home);
            let refused = of(caller.clone()).unwrap_err();
            assert!(StateDirectory::to_read(&caller).is_ok(), "who only reads makes nothing there");
            let volume = home.to_str().unwrap();
            assert!(of(caller.with_env([("XDG_STATE_HOME", volume)])).is_ok(), "it is named");
            assert!(refused.to_string().contains("home, which belongs to user 65534"), "{refused}");
            assert!(refused.remedy().unwrap().contains("sudo -H") && !home.join(".local").exists());
        }
        let parts = PARTS.map(|part| directory.0.join(part));
        parts.iter().for_each(|part| make_directory(part).unwrap());
        directory.refuse_others(own).unwrap();
        for part in parts.into_iter().chain([directory.0.clone()]) {
            for mode in [0o720, 0o702, 0o1777] {
                std::fs::set_permissions(&part, std::fs::Permissions::from_mode(mode)).unwrap();
                let refused = directory.refuse_others(own).unwrap_err();
                assert!(refused.to_string().contains(&format!("(mode {mode:04o})")), "{refused}");
                let remedy = refused.remedy().unwrap();
                assert!(
                    remedy.contains(part.to_str().unwrap()) && remedy.contains("XDG_STATE_HOME"),
                    "{remedy}"
                );
            }
            std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        directory.refuse_others(own).unwrap();
        if own != 0 {
            let refused = directory.refuse_others(own + 1).unwrap_err();
            assert!(refused.to_string().contains(&format!("belongs to user {own}")), "{refused}");
            return;
        }
        std::os::unix::fs::chown(directory.live(), Some(65_534), None).unwrap();
        let refused = directory.refuse_others(own).unwrap_err();
        assert!(refused.to_string().contains("live: it belongs to user 65534"), "{refused}");
        assert!(refused.remedy().unwrap().contains("sudo -H"), "{refused}");
    }
}
