//! Parses the name of an entry: relative, without `..`, bounded, and with the layer format's special names recognised.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::error::UnpackError;

/// The longest name, `PATH_MAX`, and the most parts of one.
const LONGEST: usize = 4096;
const DEEPEST: usize = 256;
/// The prefix of a whiteout, and the name of an opaque whiteout: the image specification, "Whiteouts". Other names with the second
/// prefix are an engine's bookkeeping.
const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
const BOOKKEEPING: &[u8] = b".wh..wh.";

/// What an entry's name refers to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EntryName {
    pub(super) parent: PathBuf,
    pub(super) place: EntryTarget,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum EntryTarget {
    /// The layer's own directory.
    Root,
    /// A name in the parent.
    Named(PathBuf),
    /// A removed name of a lower layer.
    Whiteout(PathBuf),
    /// The parent hides its content in lower layers.
    Opaque,
    /// An engine's bookkeeping.
    Ignored,
}

impl EntryName {
    pub(super) fn parse(name: &[u8]) -> Result<Self, UnpackError> {
        if name.len() > LONGEST {
            return Err(refuse(name, "has a name of more than 4096 octets"));
        }
        if name.contains(&0) {
            return Err(refuse(name, "has NUL in its name"));
        }
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in name.split(|b| *b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return Err(refuse(name, "would climb out of the layer")),
                part => parts.push(part),
            }
        }
        if parts.len() > DEEPEST {
            return Err(refuse(name, "has a name of more than 256 parts"));
        }
        let Some((last, parents)) = parts.split_last() else {
            return Ok(Self { parent: PathBuf::new(), place: EntryTarget::Root });
        };
        // An engine's bookkeeping directories are ignored with all they hold.
        if parents.iter().any(|part| part.starts_with(WHITEOUT)) {
            return Ok(Self { parent: PathBuf::new(), place: EntryTarget::Ignored });
        }
        let place = match last {
            last if *last == OPAQUE => EntryTarget::Opaque,
            last if last.starts_with(BOOKKEEPING) => EntryTarget::Ignored,
            last => match last.strip_prefix(WHITEOUT) {
                Some(b"" | b"." | b"..") => return Err(refuse(name, "takes away a name that cannot be one")),
                Some(gone) => EntryTarget::Whiteout(path(gone)),
                None => EntryTarget::Named(path(last)),
            },
        };
        Ok(Self { parent: parents.iter().map(|part| path(part)).collect(), place })
    }
}

/// Checks the target of the symbolic link `name`. Every look-up through it goes through all its parts.
pub(super) fn check_target(name: &[u8], target: &[u8]) -> Result<(), UnpackError> {
    let parts = target.split(|b| *b == b'/').filter(|part| !part.is_empty()).count();
    if parts > DEEPEST { Err(refuse(name, "is a link whose target has more than 256 parts")) } else { Ok(()) }
}

fn path(octets: &[u8]) -> PathBuf {
    OsStr::from_bytes(octets).into()
}

pub(super) fn refuse(name: &[u8], why: &'static str) -> UnpackError {
    UnpackError::Entry { name: shown(name), why }
}

/// Escapes an untrusted name for a terminal.
pub(crate) fn shown(name: &[u8]) -> String {
    const MOST: usize = 200;
    name[..name.len().min(MOST)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> Option<(String, EntryTarget)> {
        EntryName::parse(name.as_bytes()).ok().map(|n| (n.parent.display().to_string(), n.place))
    }

    #[test]
    fn names_are_relative_and_stay_so() {
        let named = |n: &str| EntryTarget::Named(n.into());
        assert_eq!(parse("./etc/passwd"), Some(("etc".into(), named("passwd"))));
        assert_eq!(parse("/etc//./passwd/"), Some(("etc".into(), named("passwd"))));
        assert_eq!(parse("a/..b/c.."), Some(("a/..b".into(), named("c.."))));
        assert_eq!(parse("./"), Some((String::new(), EntryTarget::Root)));
        for climbing in ["..", "../x", "a/../../x", "/..", "a/..", "a\0b", ".wh...", "a/.wh..", "a/.wh."] {
            assert_eq!(parse(climbing), None, "{climbing:?}");
        }
        assert!(EntryName::parse(&vec![b'a'; LONGEST + 1]).is_err());
        assert!(EntryName::parse("a/".repeat(DEEPEST + 1).as_bytes()).is_err());
    }

    #[test]
    fn whiteouts_mean_what_the_format_says() {
        assert_eq!(parse("a/.wh.b"), Some(("a".into(), EntryTarget::Whiteout("b".into()))));
        assert_eq!(parse("a/.wh..wh..opq"), Some(("a".into(), EntryTarget::Opaque)));
        assert_eq!(parse(".wh..wh.plnk/1.2"), Some((String::new(), EntryTarget::Ignored)));
        assert_eq!(parse(".wh..wh.aufs").map(|(_, place)| place), Some(EntryTarget::Ignored));
    }
}
