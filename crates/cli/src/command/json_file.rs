//! `--json-file`: the file that receives the outcome of a run. Its directory is opened before the command starts, because the
//! command may be able to replace it. Links are not followed, and only a regular file of the caller's own is written to, whose
//! content before the command is no more than the outcome of an earlier run: whatever else is named by a slip, as the run's own
//! policy, stays as it is.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::exit::Usage;

const REMEDY: &str = "name a new file, or one of an earlier run, in a folder that you may write to";
/// More than any outcome has, in octets.
const MOST: u64 = 1 << 20;

/// The directory and name of the file.
pub(super) struct JsonFile {
    folder: OwnedFd,
    name: OsString,
    path: PathBuf,
}

impl JsonFile {
    /// Opens the directory before anything is run, and empties the file of an earlier run.
    pub(super) fn at(path: &Path) -> Result<Self, anyhow::Error> {
        let refused = |why: &str| Usage::error(format!("--json-file {}: {why}", path.display()), REMEDY);
        let name = path.file_name().ok_or_else(|| refused("it is no file"))?.to_owned();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(folder, flags, Mode::empty())
            .map_err(|errno| refused(&std::io::Error::from(errno).to_string()))?;
        match rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(_) => {}
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => {}
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_symlink() => {
                return Err(refused("it is a link"));
            }
            Ok(_) => return Err(refused("something else is there than a file")),
        }
        let it = Self { folder, name, path: path.to_owned() };
        it.empty().map_err(|error| refused(&error.to_string()))?;
        Ok(it)
    }

    /// Empties the file of an earlier run, so that nobody takes its outcome for this one's while it lasts or after it was killed.
    fn empty(&self) -> std::io::Result<()> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.folder, &self.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        };
        Self::refuse_anothers(&file)?;
        if !is_of_a_run(&file)? {
            return Err(std::io::Error::other("it holds something else than the outcome of a run"));
        }
        file.set_len(0)
    }

    /// Refuses what is no file, or another user's, who could read the outcome or write another.
    fn refuse_anothers(file: &File) -> std::io::Result<()> {
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(std::io::Error::other("something else is there than a file"));
        }
        if about.uid() != rustix::process::geteuid().as_raw() {
            return Err(std::io::Error::other(format!("it belongs to user {}, and not to you", about.uid())));
        }
        Ok(())
    }

    /// Writes the outcome, readable by its owner only.
    pub(super) fn write(&self, value: &serde_json::Value) -> Result<(), anyhow::Error> {
        self.put(format!("{value}\n").as_bytes())
            .map_err(|error| anyhow::anyhow!("failed to write {}: {error}", self.path.display()))
    }

    fn put(&self, content: &[u8]) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let open = |more| rustix::fs::openat(&self.folder, &self.name, flags | more, mode).map(File::from);
        let mut file = match open(OFlags::CREATE | OFlags::EXCL) {
            Err(Errno::EXIST) => {
                let there = open(OFlags::empty()).map_err(|errno| match errno {
                    Errno::LOOP => std::io::Error::other("it is a link"),
                    errno => errno.into(),
                })?;
                Self::refuse_anothers(&there)?;
                there.set_permissions(Permissions::from_mode(mode.bits()))?;
                there.set_len(0)?;
                there
            }
            new => new?,
        };
        file.write_all(content)
    }
}

/// Whether a file holds an outcome, or nothing yet.
fn is_of_a_run(file: &File) -> std::io::Result<bool> {
    let mut content = Vec::new();
    file.take(MOST).read_to_end(&mut content)?;
    let is_outcome = |value: serde_json::Value| value.get("exit_code").is_some();
    Ok(content.is_empty() || serde_json::from_slice(&content).is_ok_and(is_outcome))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn it_is_the_owners_alone_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let value = serde_json::json!({"exit_code": 0});
        std::fs::write(at("empty"), "").unwrap();
        std::fs::write(at("longer"), "{\"exit_code\":125,\"error\":\"longer than what is written\"}\n")
            .unwrap();
        for name in ["new", "empty", "longer"] {
            JsonFile::at(&at(name)).unwrap().write(&value).unwrap();
            assert_eq!(std::fs::read_to_string(at(name)).unwrap(), "{\"exit_code\":0}\n");
            assert_eq!(std::fs::metadata(at(name)).unwrap().mode() & 0o777, 0o600);
        }
        // The outcome of an earlier run is gone once another begins.
        drop(JsonFile::at(&at("longer")).unwrap());
        assert_eq!(std::fs::read(at("longer")).unwrap(), b"");
        drop(JsonFile::at(&at("none")).unwrap());
        assert!(!at("none").exists());
        symlink(at("new"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for name in ["link", "dangling", "folder", "pipe", "none/file", "folder/.."] {
            assert!(JsonFile::at(&at(name)).is_err(), "{name}");
        }
        // A link that the command puts there meanwhile, or in place of the directory.
        let file = JsonFile::at(&at("later")).unwrap();
        symlink(at("elsewhere"), at("later")).unwrap();
        assert!(file.write(&value).is_err() && !at("elsewhere").exists());
        let file = JsonFile::at(&at("folder/file")).unwrap();
        std::fs::rename(at("folder"), at("moved")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        symlink(at("other"), at("folder")).unwrap();
        file.write(&value).unwrap();
        assert!(at("moved/file").exists() && !at("other/file").exists());
    }

    #[test]
    fn a_file_of_another_users_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "").unwrap();
        chown(&path, Some(4999), None).unwrap();
        let error = JsonFile::at(&path).map(drop).unwrap_err();
        assert!(error.to_string().contains("it belongs to user 4999, and not to you"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let file = JsonFile::at(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        chown(&path, Some(4999), None).unwrap();
        assert!(file.write(&serde_json::json!({"exit_code": 0})).is_err(), "put there meanwhile");
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn what_is_no_outcome_is_refused_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for content in ["workspace = { mode = \"ro\" }\n", "fn main() {}\n", "{}", "[1]", "{\"exit_code\":0,"]
        {
            std::fs::write(&path, content).unwrap();
            let error = JsonFile::at(&path).map(drop).unwrap_err();
            assert!(error.to_string().contains("something else than the outcome of a run"), "{error}");
            assert_eq!(crate::exit::code_and_remedy(&error).0, 2);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
    }
}
