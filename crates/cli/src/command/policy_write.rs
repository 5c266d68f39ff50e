//! Writes the text of a policy into its file, in place and through no link. It knows nothing of what the text says.

use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::exit::Usage;

/// Refuses content that nothing would read again.
pub(super) fn refuse_too_large(name: &str, text: &str) -> Result<(), anyhow::Error> {
    if text.len() as u64 <= runtime::LARGEST_POLICY {
        return Ok(());
    }
    let what = format!("{name} is not changed: it would be larger than 1 MiB, which no policy is");
    Err(Usage::error(what, "take rules out of it first, or name many hosts by one pattern (`*.example.com`)"))
}

/// Overwrites a file of this length in place and truncates it. Killed in between, it leaves the new content and empty lines, and nothing
/// of the old.
fn fill(file: &File, length: usize, content: &str) -> std::io::Result<()> {
    file.write_all_at(padded(content, length).as_bytes(), 0)?;
    file.set_len(content.len() as u64)?;
    file.sync_data()
}

/// Returns a content that is at least this long, by empty lines at its end.
pub(super) fn padded(content: &str, length: usize) -> Cow<'_, str> {
    match length.checked_sub(content.len()) {
        None | Some(0) => Cow::Borrowed(content),
        Some(missing) => Cow::Owned(content.to_owned() + &"\n".repeat(missing)),
    }
}

/// Writes the file. Refuses a link, which could lead to another file that only its owner may
/// write, and everything that is no regular file.
pub(super) fn put(path: &Path, text: &str) -> Result<(), anyhow::Error> {
    let refused =
        |what: &str| Usage::error(format!("{} {what}", path.display()), "put a file of its own there");
    let before = runtime::read_policy_if_there(path)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(Errno::LOOP) => return Err(refused("is a symbolic link, and no policy is written through one")),
        Err(Errno::NXIO) => return Err(refused("is no regular file")),
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let what = format!("{} cannot be written: there is no such folder", path.display());
            return Err(Usage::error(what, "make that folder first, or name one that is there"));
        }
        Err(errno) => return Err(anyhow::anyhow!("failed to write {}: {errno}", path.display())),
    };
    if !file.metadata()?.is_file() {
        return Err(refused("is no regular file"));
    }
    if let Err(error) = fill(&file, before.as_ref().map_or(0, String::len), text) {
        // The disk may be full. The previous content fits where it was.
        let now = match put_back(path, text, before.as_deref()) {
            Ok(()) => "it is as it was".into(),
            Err(error) => format!("nor could its content be put back: {error}"),
        };
        return Err(anyhow::anyhow!("failed to write {}: {error}; {now}", path.display()));
    }
    Ok(())
}

/// Restores the previous content of a file, or removes the file if there was none. Asks for no more room than the file may have by now.
fn put_back(path: &Path, text: &str, before: Option<&str>) -> std::io::Result<()> {
    let Some(before) = before else { return std::fs::remove_file(path) };
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let longest = text.len().max(before.len());
    let length = usize::try_from(file.metadata()?.len()).map_or(longest, |length| length.min(longest));
    fill(&file, length, before)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const TEXT: &str = "[egress]\ndefault = \"deny\"\n";

    #[test]
    fn a_policy_is_written_into_a_file_and_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("elsewhere"), "mine").unwrap();
        symlink(at("elsewhere"), at("link")).unwrap();
        symlink(at("none"), at("dangling")).unwrap();
        for bad in ["link", "dangling"] {
            let error = put(&at(bad), TEXT).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("symbolic link"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(at("elsewhere")).unwrap(), "mine");
        assert!(!at("none").exists());
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(put(&at("pipe"), TEXT).unwrap_err().to_string().contains("no regular file"));
        for lost in ["nowhere/lockgate.toml", "elsewhere/lockgate.toml"] {
            let error = put(&at(lost), TEXT).unwrap_err();
            assert!(error.to_string().ends_with("there is no such folder"), "{error}");
            assert_eq!(crate::exit::code_and_remedy(&error).0, 2);
        }
        for text in ["a longer text than the next", TEXT, "x = 1\n"] {
            put(&at("lockgate.toml"), text).unwrap();
            assert_eq!(std::fs::read_to_string(at("lockgate.toml")).unwrap(), text);
        }
        // What a reader sees between the two steps, and what is left if the second is never made.
        assert_eq!(padded("x = 1\n", 9), "x = 1\n\n\n\n");
        assert_eq!(padded("x = 1\n", 3), "x = 1\n");
    }
}
