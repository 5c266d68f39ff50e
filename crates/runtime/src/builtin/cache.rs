//! Decides whether a cache may enter: what programs fetched may lie beside the credential they fetched it with.
//!
//! A cache is only read. A finding becomes a reason for the person, and never contains what was read.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use credential::Secret;

use super::table::Cache;

/// How many files of a cache are searched, and for how long: a run waits for it. A registry that has credentials stored has them stored
/// with most answers, so the first files suffice.
const MOST: usize = 4096;
const LONGEST: Duration = Duration::from_millis(300);
/// How much of a file is searched: headers come before the content, and old versions of pip put the varying ones behind it.
const HEAD: usize = 16 << 10;
const TAIL: usize = 4 << 10;
/// The header that carries a credential, RFC 9110, section 11.6.2.
const PRESENTS: &[u8] = b"authorization";

/// The result of searching a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// All of it was searched, and nothing found.
    Clean,
    /// Nothing was found in as much as time allowed.
    Unfinished,
    Found,
}

/// Returns why a cache stays outside. A cache that could not be searched completely stays outside if its tool uses a credential, which
/// may be stored where nobody looked.
pub(super) fn objection(home: &Path, cache: &Cache, asks_with_credential: bool) -> Option<String> {
    let folder = home.join(&cache.path);
    if cache.unless.iter().any(|pattern| !fitting(&folder, pattern).is_empty()) {
        return Some(
            "git's records lie in it, and may hold addresses with credentials. What is missing is fetched anew; the cache \
             enters once those folders are removed"
                .into(),
        );
    }
    let until = Instant::now() + LONGEST;
    let mut left = MOST;
    let places = cache.search.iter().flat_map(|pattern| fitting(&folder, pattern));
    let mut look = Look::Clean;
    for place in places {
        match look_below(&place, until, &mut left) {
            Look::Clean => {}
            other => look = other,
        }
        if look == Look::Found {
            break;
        }
    }
    match look {
        Look::Found => Some(
            "it holds an `authorization` that packages were asked for with, an address with a user, or what looks so. What is missing \
             is fetched anew; the cache enters once it has been cleared"
                .into(),
        ),
        Look::Unfinished if asks_with_credential => Some(
            "it is too large to be looked through, and the configuration holds a credential or was not understood. What is missing is \
             fetched anew; the cache enters once it has been cleared"
                .into(),
        ),
        Look::Unfinished | Look::Clean => None,
    }
}

/// Returns what in a folder matches a path in which `*` stands for any part of a name.
fn fitting(folder: &Path, pattern: &str) -> Vec<PathBuf> {
    pattern.split('/').fold(vec![folder.to_owned()], |places, part| {
        let Some((before, after)) = part.split_once('*') else {
            let there =
                |place: PathBuf| Some(place.join(part)).filter(|path| path.symlink_metadata().is_ok());
            return places.into_iter().filter_map(there).collect();
        };
        let fits = |entry: &fs::DirEntry| {
            let (name, least) = (entry.file_name(), before.len() + after.len());
            let name = name.to_string_lossy();
            name.len() >= least && name.starts_with(before) && name.ends_with(after)
        };
        let below =
            |place: PathBuf| fs::read_dir(place).into_iter().flatten().flatten().filter(fits).take(MOST);
        places.into_iter().flat_map(below).map(|entry| entry.path()).collect()
    })
}

/// Searches the files below a folder for the header, or an address with a user. No link is followed.
fn look_below(folder: &Path, until: Instant, left: &mut usize) -> Look {
    let mut look = Look::Clean;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if *left == 0 || Instant::now() > until {
            return Look::Unfinished;
        }
        let Ok(kind) = entry.file_type() else { return Look::Unfinished };
        if kind.is_dir() {
            match look_below(&entry.path(), until, left) {
                Look::Clean => {}
                Look::Unfinished => look = Look::Unfinished,
                Look::Found => return Look::Found,
            }
            continue;
        }
        // Newer versions of pip keep the content of an answer in a file of its own.
        if !kind.is_file() || entry.path().extension().is_some_and(|extension| extension == "body") {
            continue;
        }
        *left -= 1;
        match sandbox::open_without_links(&entry.path()) {
            Ok(Some(file)) if presents(&file) => return Look::Found,
            Ok(_) => {}
            Err(_) => look = Look::Unfinished,
        }
    }
    look
}

fn presents(mut file: &File) -> bool {
    let holds = |length: usize| {
        // Allocated at once: growing would leave copies behind.
        let mut content = Vec::with_capacity(length + 1);
        let read = file.take(length as u64).read_to_end(&mut content);
        let content = Secret::new(content);
        let is = |octets: &[u8]| octets.eq_ignore_ascii_case(PRESENTS);
        read.is_ok() && (content.expose().windows(PRESENTS.len()).any(is) || names_user(content.expose()))
    };
    if holds(HEAD) {
        return true;
    }
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let behind = length > HEAD as u64;
    // The tail begins after the head at the earliest, less the length of the word, which may span both.
    let from = length.saturating_sub(TAIL as u64).max(HEAD as u64 - PRESENTS.len() as u64);
    behind && file.seek(SeekFrom::Start(from)).is_ok() && holds(TAIL + PRESENTS.len())
}

/// Whether an address in a text has user information, which may include a password: RFC 3986, section 3.2.1.
fn names_user(text: &[u8]) -> bool {
    let ends = |octet: &u8| *octet <= b' ' || matches!(octet, b'/' | b'"' | b'\'' | b'\\' | b'<' | b'>');
    let after =
        text.windows(3).enumerate().filter(|(_, octets)| octets == b"://").map(|(at, _)| &text[at + 3..]);
    let mut authorities = after.filter_map(|rest| rest.split(|octet| ends(octet)).next());
    authorities.any(|authority| authority.contains(&b'@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(text: &str) -> Cache {
        toml::from_str(&format!("path = \"c\"\n{text}")).unwrap()
    }

    fn home(files: &[(&str, &str)]) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        home
    }

    #[test]
    fn a_header_kept_beside_the_content_is_found() {
        let npm = cache("search = [\"index-v*\"]");
        let entry =
            "5f\t{\"key\":\"pacote:x\",\"metadata\":{\"reqHeaders\":{\"Authorization\":\"Bearer hush\"}}}";
        let long = format!("{}{entry}", "x".repeat(100_000));
        for (path, content) in [("c/index-v5/aa/bb/cc", entry), ("c/index-v5/aa/dd", long.as_str())] {
            let told = objection(home(&[("c/index-v5/00/11", "{}"), (path, content)]).path(), &npm, false);
            assert!(told.is_some_and(|told| !told.contains("hush")), "{path}");
        }
        // The controls: the content of packages, and an index without the word.
        for path in ["c/content-v2/sha512/aa/bb", "c/index-v5/aa/cc.body"] {
            assert_eq!(
                objection(home(&[("c/index-v5/00/11", "{}"), (path, entry)]).path(), &npm, false),
                None
            );
        }
    }

    #[test]
    fn no_link_is_followed_and_the_search_ends() {
        let home = home(&[("other/x", "authorization"), ("c/index-v5/a", "{}")]);
        std::os::unix::fs::symlink(home.path().join("other"), home.path().join("c/index-v5/way")).unwrap();
        assert_eq!(objection(home.path(), &cache("search = [\"index-v*\"]"), true), None);
        let until = Instant::now() + LONGEST;
        let look = |until, mut left| look_below(&home.path().join("other"), until, &mut left);
        assert_eq!(look(until, 1), Look::Found);
        assert_eq!(look(until, 0), Look::Unfinished);
        assert_eq!(look(Instant::now() - LONGEST, 1), Look::Unfinished);
    }

    #[test]
    fn one_that_cannot_be_looked_through_enters_only_where_nothing_is_asked_with() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("c/index-v5");
        fs::create_dir_all(&folder).unwrap();
        (0..=MOST).for_each(|n| fs::write(folder.join(n.to_string()), "{}").unwrap());
        let npm = cache("search = [\"index-v*\"]");
        assert!(objection(home.path(), &npm, true).is_some_and(|told| told.contains("too large")));
        assert_eq!(objection(home.path(), &npm, false), None);
    }

    #[test]
    fn an_address_with_a_user_is_found() {
        for text in ["x https://me:hush@h.example/a", "{\"key\":\"k:http://hush@h.example\"}"] {
            assert!(names_user(text.as_bytes()), "{text}");
        }
        for text in
            ["https://h.example/@scope/x", "git://h.example", "me@h.example", "https://h.example \"a@b\""]
        {
            assert!(!names_user(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_git_keeps_is_found_wherever_it_lies() {
        let cargo = cache("unless = [\"*/.git\"]");
        let told =
            objection(home(&[("c/a-1/config.json", "{}"), ("c/b-2/.git/logs/x", "x")]).path(), &cargo, true);
        assert!(told.is_some_and(|told| told.contains("git")));
        assert_eq!(objection(home(&[("c/a-1/config.json", "{}")]).path(), &cargo, true), None);
        assert_eq!(objection(home(&[]).path(), &cargo, true), None);
        assert!(
            objection(home(&[("c/git-v0/db/x", "")]).path(), &cache("unless = [\"git-v*/db\"]"), false)
                .is_some()
        );
    }
}
