//! Turns the files of a home into those of a sandbox: finds them without following links, reads them whole, judges them, and writes
//! them anew.
//!
//! It runs in a process of its own, and answers with what may be seen.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use credential::Secret;

use super::Prepared;
use super::bound::Bound;
use super::cache;
use super::judge::Judge;
use super::table::{Cache, Entry, Form, Tool, Whole};

/// The largest file that enters, and the most that all together may hold.
const LARGEST: usize = 1 << 20;
const MOST: usize = 8 << 20;
/// How many of a folder's paths that do not enter are named.
const MOST_NAMED: usize = 4;

/// Returns what the tools bring from this home.
pub(super) fn prepare(home: &Path, tools: &[Tool], bound: &Bound<'_>) -> Prepared {
    let mut work = Work::new(home, bound);
    for tool in tools {
        let mut kept = BTreeMap::new();
        work.uncertain = false;
        for entry in &tool.file {
            work.entry(entry, &mut kept);
        }
        tool.whole.iter().for_each(|whole| work.whole(whole));
        tool.cache.iter().for_each(|cache| work.cache(cache));
    }
    work.prepared
}

/// Returns what a tool brings of files with these texts, in the order of the table.
pub(super) fn prepare_texts(tool: &Tool, files: &[(&str, &str)], bound: &Bound<'_>) -> Prepared {
    let mut work = Work::new(Path::new(""), bound);
    let mut kept = BTreeMap::new();
    for entry in &tool.file {
        let held = files.iter().filter(|(path, _)| entry.path == Path::new(path));
        held.for_each(|(_, text)| work.text(entry, &entry.path, text, &mut kept));
    }
    work.prepared
}

struct Work<'a> {
    home: &'a Path,
    bound: &'a Bound<'a>,
    prepared: Prepared,
    total: usize,
    /// Whether the files of the current tool hold a credential, or may.
    uncertain: bool,
}

impl<'a> Work<'a> {
    fn new(home: &'a Path, bound: &'a Bound<'a>) -> Self {
        Self { home, bound, prepared: Prepared::default(), total: 0, uncertain: false }
    }

    fn entry(&mut self, entry: &Entry, kept: &mut BTreeMap<String, String>) {
        if entry.form != Form::Texts {
            return self.file(entry, &entry.path, kept);
        }
        match sandbox::regular_below(&self.home.join(&entry.path)) {
            Ok(below) => {
                below.files.iter().for_each(|file| self.file(entry, &entry.path.join(file), kept));
                self.skipped(&entry.path, &below.skipped);
            }
            Err(error) => self.unread(&entry.path, &why(error)),
        }
    }

    /// Notes what of a folder is no file that could be read, the first few by name.
    fn skipped(&mut self, folder: &Path, paths: &[PathBuf]) {
        let (named, rest) = paths.split_at(paths.len().min(MOST_NAMED));
        for path in named {
            self.stays(&folder.join(path), "it is no regular file, or a folder too deep to be looked into");
        }
        if !rest.is_empty() {
            self.stays(folder, &format!("{} more in it are no regular files, or too deep", rest.len()));
        }
    }

    fn file(&mut self, entry: &Entry, path: &Path, kept: &mut BTreeMap<String, String>) {
        let held = match read(&self.home.join(path)) {
            Ok(Some(held)) => held,
            Ok(None) => return,
            Err(why) => return self.unread(path, &why),
        };
        match std::str::from_utf8(held.expose()) {
            Ok(text) => self.text(entry, path, text, kept),
            Err(_) => self.unread(path, "it is no text"),
        }
    }

    fn text(&mut self, entry: &Entry, path: &Path, text: &str, kept: &mut BTreeMap<String, String>) {
        let mut judge = Judge::new(self.bound, entry, kept);
        let anew = entry.form.anew(text, &mut judge);
        self.uncertain |= judge.has_credential();
        let sentences = judge.left_out().sentences(path);
        match anew {
            Ok(anew) => {
                self.prepared.notices.extend(sentences);
                self.put(path, anew);
            }
            Err(not) => self.unread(path, &not.to_string()),
        }
    }

    /// Handles a file that is nothing but a credential, without reading it.
    fn whole(&mut self, whole: &Whole) {
        match sandbox::is_there(&self.home.join(&whole.path)) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.unread(&whole.path, &why(error)),
        }
        self.uncertain = true;
        if self.bound.at(&whole.at).is_none() {
            let remedy = self.bound.remedy_at(&whole.at).unwrap_or_default();
            let why = match &whole.otherwise {
                None => format!("it is a credential. To use it, {remedy}"),
                Some(text) => format!(
                    "it is a credential. To use an API key, {remedy}; to use a subscription, {}",
                    self.bound.with_organisation(text)
                ),
            };
            self.stays(&whole.path, &why);
        }
    }

    /// Handles a cache: a program that fetches with a credential may keep that beside what it fetched.
    fn cache(&mut self, cache: &Cache) {
        let path = &cache.path;
        match sandbox::is_folder(&self.home.join(path)) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.stays(path, &why(error)),
        }
        let with = "it may hold what packages were fetched with";
        match cache::objection(self.home, cache, self.uncertain) {
            Some(why) => self.stays(path, &format!("{with}: {why}")),
            None => self.prepared.caches.push(path.clone()),
        }
    }

    /// Notes a file that was not read, and so may hold anything.
    fn unread(&mut self, path: &Path, why: &str) {
        self.uncertain = true;
        self.stays(path, why);
    }

    fn put(&mut self, path: &Path, content: String) {
        self.total += content.len();
        if self.total > MOST {
            return self.stays(path, "there is more configuration than 8 MiB");
        }
        self.prepared.files.push((path.into(), content));
    }

    fn stays(&mut self, path: &Path, why: &str) {
        self.prepared.notices.push(format!("`~/{}` does not enter: {why}", path.display()));
    }
}

/// Reads a file into memory that is wiped.
fn read(path: &Path) -> Result<Option<Secret>, String> {
    let Some(file) = sandbox::open_without_links(path).map_err(why)? else { return Ok(None) };
    // Allocated at once: growing would leave copies behind.
    let mut content = Vec::with_capacity(LARGEST + 2);
    let read = file.take(LARGEST as u64 + 1).read_to_end(&mut content);
    let content = Secret::new(content);
    read.map_err(|e| e.to_string())?;
    if content.expose().len() > LARGEST {
        return Err("it is larger than 1 MiB".into());
    }
    Ok(Some(content))
}

/// Returns the reason without the path, which the notice names itself.
fn why(error: sandbox::Error) -> String {
    match error {
        sandbox::Error::Source { why, .. } => why.split(';').next().unwrap_or_default().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use policy::Layers;

    use super::*;
    use crate::builtin::table;

    fn brought(tool: &str, files: &[(&str, &str)]) -> Prepared {
        let home = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = home.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let policy = Layers::default().compile().unwrap().policy;
        prepare(home.path(), &table::named(&[tool.into()]).unwrap(), &Bound::new(&policy, &[], None))
    }

    const NPM: (&str, &str) = (".npm/_cacache/index-v5/aa/bb", "{}");
    const CARGO: (&str, &str) = (".cargo/registry/cache/i/x.crate", "");

    #[test]
    fn what_of_a_folder_does_not_enter_is_told_and_of_very_much_the_first() {
        let home = tempfile::tempdir().unwrap();
        let skills = home.path().join(".claude/skills");
        std::fs::create_dir_all(skills.join("a/b/c/d/e/f")).unwrap();
        for number in 0..MOST_NAMED + 2 {
            std::os::unix::fs::symlink("/etc/hostname", skills.join(format!("link{number}"))).unwrap();
        }
        let policy = Layers::default().compile().unwrap().policy;
        let tools = table::named(&["claude".into()]).unwrap();
        let notices = prepare(home.path(), &tools, &Bound::new(&policy, &[], None)).notices;
        for told in [
            "`~/.claude/skills/a/b/c/d/e/f` does not enter",
            "`~/.claude/skills/link0` does not enter",
            ": 3 more in it",
        ] {
            assert!(notices.iter().any(|notice| notice.contains(told)), "{told}: {notices:?}");
        }
        assert_eq!(notices.len(), MOST_NAMED + 1, "{notices:?}");
    }

    #[test]
    fn a_cache_enters_that_holds_none() {
        for (tool, files, caches) in [
            ("npm", vec![NPM, (".npmrc", "registry=https://h.example/\nfund=false")], vec![".npm/_cacache"]),
            ("npm", vec![NPM, (".npmrc", "//h.example/:_authToken=hush")], vec![".npm/_cacache"]),
            ("pip", vec![(".cache/pip/http-v2/a", "x")], vec![".cache/pip"]),
            (
                "cargo",
                vec![CARGO, (".cargo/registry/index/a-1/config.json", "{}")],
                vec![".cargo/registry/index", ".cargo/registry/cache"],
            ),
            (
                "cargo",
                vec![CARGO, (".cargo/registry/index/a-1/.git/logs/HEAD", "x")],
                vec![".cargo/registry/cache"],
            ),
        ] {
            let brought = brought(tool, &files);
            assert_eq!(
                brought.caches,
                caches.iter().map(std::path::PathBuf::from).collect::<Vec<_>>(),
                "{tool}"
            );
        }
    }

    #[test]
    fn a_cache_that_kept_a_header_stays_outside() {
        for (tool, path) in [
            ("npm", ".npm/_cacache/index-v5/aa/bb"),
            ("pip", ".cache/pip/http/a/b"),
            ("pip", ".cache/pip/http-v2/a/b"),
            ("uv", ".cache/uv/simple-v15/index/a/x.rkyv"),
        ] {
            let brought = brought(tool, &[(path, "\u{1}Authorization\u{2}Basic hush")]);
            assert!(brought.caches.is_empty() && brought.notices.len() == 1, "{path}");
            assert!(brought.notices[0].contains("`authorization`") && !brought.notices[0].contains("hush"));
        }
    }
}
