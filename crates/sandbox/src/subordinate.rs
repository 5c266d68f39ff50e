//! Finds the subordinate ids that `/etc/subuid` and `/etc/subgid` assign to a caller who is not root, subuid(5), and the programs that map
//! them, newuidmap(1).
//!
//! Used only for a run with an image. This file maps nothing.

use std::ffi::CString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::caller::Caller;

/// The largest of the three tables that is read.
const LARGEST: u64 = 1 << 20;
/// The set-user-id bit, chmod(2).
const SET_UID: u32 = 0o4000;
/// The write bits of group and others.
const OTHERS_WRITE: u32 = 0o022;
/// The extended attribute of file capabilities, capabilities(7).
const CAPABILITIES: &std::ffi::CStr = c"security.capability";
/// The programs that map ids. Both are required.
const PROGRAMS: [&str; 2] = ["newuidmap", "newgidmap"];

/// The subordinate ids of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubordinateIds {
    /// The first user id outside, which is 0 inside.
    pub users: u32,
    /// The first group id outside, which is 0 inside.
    pub groups: u32,
}

/// The reason why a caller has no subordinate ids, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSubordinateIds {
    /// What is missing.
    pub why: String,
    /// What would provide them.
    pub remedy: String,
}

impl SubordinateIds {
    /// The number of ids inside. 65535 and higher ids are not mapped.
    pub(crate) const INSIDE: u32 = 0xffff;
    /// The least size of a usable range: what `useradd` assigns, and every image needs.
    const LEAST: u32 = 0x1_0000;

    /// Finds the subordinate ids of a caller who is not root.
    ///
    /// # Errors
    /// When there are none or too few, or the programs that map them are missing.
    pub fn of(caller: &Caller) -> Result<Self, NoSubordinateIds> {
        let name = name_of(caller.uid, &table("/etc/passwd"));
        let known: Vec<String> = name.into_iter().chain([caller.uid.to_string()]).collect();
        let lent = |path: &str, own: u32| {
            range(&table(path), &known, own).ok_or_else(|| NoSubordinateIds {
                why: format!("{path} lends this user no {} ids in a row", Self::LEAST),
                remedy: "as root, `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`, with numbers that nobody has".into(),
            })
        };
        let ids = Self { users: lent("/etc/subuid", caller.uid)?, groups: lent("/etc/subgid", caller.gid)? };
        let search = caller.variable("PATH").unwrap_or_default();
        programs(search).map(|_| ids)
    }
}

/// Finds the two programs that map ids, along the caller's search path, then in the distributions' usual directories.
pub(crate) fn programs(search: &str) -> Result<[CString; 2], NoSubordinateIds> {
    let find = |name: &str| {
        let places = search.split(':').filter(|place| place.starts_with('/')).chain(["/usr/bin"]);
        let found = places.map(|place| Path::new(place).join(name)).find(|path| may_map(path));
        found.and_then(|path| CString::new(PathBuf::into_os_string(path).into_vec()).ok()).ok_or_else(|| {
            NoSubordinateIds {
                why: format!("`{name}`, which maps them, is not there or has no right to"),
                remedy: "install the package `uidmap`, in some distributions `shadow-utils`".into(),
            }
        })
    };
    Ok([find(PROGRAMS[0])?, find(PROGRAMS[1])?])
}

/// Whether only root can change a program, and it has a set-user-id bit or file capabilities to map ids.
fn may_map(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let of_root = metadata.is_file() && metadata.uid() == 0 && metadata.mode() & OTHERS_WRITE == 0;
    let has_capability = || rustix::fs::getxattr(path, CAPABILITIES, &mut [0; 64]).is_ok();
    of_root && (metadata.mode() & SET_UID != 0 || has_capability())
}

/// Returns the first id of the first range that is large enough and assigned to one of `names`. Skips a range that contains id 0 or the
/// caller's own, which would then be mapped twice.
fn range(table: &str, names: &[String], own: u32) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count): (u32, u32) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
        let fits = count >= SubordinateIds::LEAST && first.checked_add(SubordinateIds::LEAST).is_some();
        let apart = first > 0 && !(first..=first.saturating_add(SubordinateIds::INSIDE)).contains(&own);
        (names.iter().any(|known| known == name) && fits && apart).then_some(first)
    })
}

/// Returns the name of a user. A user whom only a directory service knows has none here, and is found by number.
fn name_of(uid: u32, passwd: &str) -> Option<String> {
    let wanted = uid.to_string();
    let mut rows = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let row = rows.find(|row| row.get(2).is_some_and(|id| *id == wanted))?;
    row.first().filter(|name| !name.is_empty()).map(|name| (*name).to_owned())
}

fn table(path: &str) -> String {
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(LARGEST).read_to_end(&mut text));
    read.map(|_| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nbroken\nme:x:1000:1000::/home/me:/bin/sh\n";

    fn found(table: &str) -> Option<u32> {
        let names: Vec<String> = name_of(1000, PASSWD).into_iter().chain(["1000".to_owned()]).collect();
        range(table, &names, 1000)
    }

    #[test]
    fn a_range_is_found_by_name_and_by_number() {
        assert_eq!(found("you:100000:65536\nme:165536:65536\n"), Some(165_536));
        assert_eq!(found("1000:200000:100000\n"), Some(200_000));
        assert_eq!(found("me:100000:1000\nme:300000:65536\n"), Some(300_000), "too small, then large enough");
        assert_eq!(name_of(7, PASSWD), None);
    }

    #[test]
    fn what_would_give_more_than_is_lent_is_no_range() {
        for table in [
            "",
            "you:100000:65536",
            "me:100000:65535",
            "me:0:65536",
            "me:500:65536",
            "me:4294967000:65536",
            "me:-1:65536",
            "me:100000",
            "me2:100000:65536",
            ":100000:65536",
        ] {
            assert_eq!(found(table), None, "{table}");
        }
    }

    #[test]
    fn a_program_without_a_right_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("newuidmap");
        std::fs::write(&path, "").unwrap();
        assert!(!may_map(&path) && !may_map(Path::new("/bin/sh")) && !may_map(folder.path()));
    }
}
