//! Finds circular imports between the files of a crate, over any number of files. What two files need of each other belongs in a
//! third.
//!
//! What counts is `use` at the top of a file and a path that begins with `crate` or `super` in its code, and a name that is re-exported
//! counts as where it stands. Imports of tests do not count, nor do a module's imports of its own submodules: it is made of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::code::Word;
use super::finding::Finding;
use super::sizes;
use super::tree::{RustFile, Tree};

/// The modules that each module imports, and the line of each import.
type Imports = BTreeMap<Vec<String>, BTreeMap<Vec<String>, usize>>;

/// The files of a crate, by the modules that they are. The crate's root is the empty module.
type Files<'a> = BTreeMap<Vec<String>, &'a RustFile>;

/// The names that modules re-export, and what each is a name of.
type Reexports = BTreeMap<Vec<String>, Vec<String>>;

/// The most re-exports between a name and what it is a name of.
const MOST_REEXPORTS: usize = 8;

/// Returns one finding for each circle of each crate.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let of_crate = |name: String| {
        let folder = format!("crates/{name}/src/");
        let files: Files<'_> = tree
            .files
            .iter()
            .filter_map(|file| Some((module(file.path.strip_prefix(&folder)?), file)))
            .collect();
        circles(&files)
    };
    tree.packages("crates").into_iter().flat_map(of_crate).collect()
}

/// Returns the module that a file is, which is empty for the root of a crate.
fn module(path: &str) -> Vec<String> {
    let path = Path::new(path).with_extension("");
    let mut parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if matches!(&parts[..], [one] if one == "lib" || one == "main")
        || parts.last().is_some_and(|last| last == "mod")
    {
        parts.pop();
    }
    parts
}

fn circles(files: &Files<'_>) -> Vec<Finding> {
    let reexports = reexports(files);
    // The root of a crate is made of all its modules.
    let mut imports: Imports = files
        .iter()
        .filter(|(module, _)| !module.is_empty())
        .map(|(module, file)| (module.clone(), imported(module, file, files, &reexports)))
        .collect();
    let mut found = Vec::new();
    while let Some(ring) = imports.keys().find_map(|module| way_back(module, &imports)) {
        let (first, next) = (&ring[0], &ring[1 % ring.len()]);
        let line = imports[first][next];
        let names: Vec<String> = ring.iter().map(|module| module.join("::")).collect();
        let what = format!("`{}` imports itself in a circle: {}", names[0], names.join(" -> "));
        found.push(Finding::new(
            &files[first].path,
            line,
            what,
            "give what they need of each other a file of its own",
        ));
        // Each circle is reported once, at its first module.
        let first = first.clone();
        imports.remove(&first);
        for modules in imports.values_mut() {
            modules.remove(&first);
        }
    }
    found
}

/// Finds the shortest way from a module back to itself.
fn way_back(start: &[String], imports: &Imports) -> Option<Vec<Vec<String>>> {
    let mut seen = BTreeSet::new();
    let mut ways = std::collections::VecDeque::from([vec![start.to_vec()]]);
    while let Some(way) = ways.pop_front() {
        for next in imports.get(way.last()?).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                return Some(way);
            }
            if seen.insert(next.clone()) {
                ways.push_back([way.clone(), vec![next.clone()]].concat());
            }
        }
    }
    None
}

fn imported(
    module: &[String],
    file: &RustFile,
    files: &Files<'_>,
    reexports: &Reexports,
) -> BTreeMap<Vec<String>, usize> {
    let mut found = BTreeMap::new();
    let imported = uses(file).into_iter().map(|it| (it.line, it.path));
    for (line, path) in imported.chain(written_out(file)) {
        let target =
            absolute(module, &path, files).and_then(|path| longest(&origin(path, reexports, files), files));
        if let Some(target) = target.filter(|target| !target.starts_with(module)) {
            found.entry(target).or_insert(line);
        }
    }
    found
}

fn reexports(files: &Files<'_>) -> Reexports {
    let of_file = |(module, file): (&Vec<String>, &&RustFile)| {
        let public = uses(file).into_iter().filter(|it| it.is_public);
        let named = public
            .filter_map(|it| Some(([&module[..], &[it.name]].concat(), absolute(module, &it.path, files)?)));
        named.collect::<Vec<_>>()
    };
    files.iter().flat_map(of_file).collect()
}

/// Returns the path that a path stands for when its names that are re-exported are replaced. A module may have the name of a function:
/// where the path goes on, the module is meant.
fn origin(mut path: Vec<String>, reexports: &Reexports, files: &Files<'_>) -> Vec<String> {
    for _ in 0..MOST_REEXPORTS {
        let is_module = |end| end < path.len() && files.contains_key(&path[..end]);
        let replaced = |end| Some((end, reexports.get(&path[..end]).filter(|_| !is_module(end))?));
        let Some((end, of)) = (1..=path.len()).find_map(replaced) else { break };
        path = [&of[..], &path[end..]].concat();
    }
    path
}

/// Returns the paths of this crate that are written out in the code, outside any `use` and before the tests, with their lines.
fn written_out(file: &RustFile) -> Vec<(usize, String)> {
    let code = &file.code.code;
    let end = sizes::length(code);
    let (mut found, mut used_until) = (Vec::new(), 0);
    for word in file.code.words().take_while(|word| word.line <= end) {
        let at = code.len() - word.rest.len();
        match word.text {
            "use" => used_until = at + word.rest.find(';').unwrap_or(0),
            "crate" | "super" if at > used_until && is_first(code, &word) => {
                let path: String = word
                    .rest
                    .chars()
                    .take_while(|letter| letter.is_alphanumeric() || ['_', ':'].contains(letter))
                    .collect();
                found.push((word.line, format!("{}{path}", word.text)));
            }
            _ => {}
        }
    }
    found
}

/// Whether a path begins with the word, and not the reach of a name as in `pub(in crate::a)`.
fn is_first(code: &str, word: &Word<'_>) -> bool {
    let end = code.len() - word.rest.len();
    let before = code[..end].trim_end();
    let before = before.strip_suffix(word.text).unwrap_or(before);
    word.rest.starts_with("::") && !before.ends_with("::") && !before.ends_with("(in ")
}

/// One name that a `use` at the top of a file brings in.
struct Use {
    line: usize,
    is_public: bool,
    path: String,
    name: String,
}

fn uses(file: &RustFile) -> Vec<Use> {
    let (mut found, mut offset) = (Vec::new(), 0);
    for (number, line) in file.code.code.split('\n').enumerate() {
        let start = line
            .find("use ")
            .filter(|at| line[..*at].is_empty() || line.starts_with("pub ") || line.starts_with("pub("));
        if let Some(at) = start {
            let statement = &file.code.code[offset + at + 4..];
            let statement = &statement[..statement.find(';').unwrap_or(0)];
            let of = |(path, name)| Use { line: number + 1, is_public: at > 0, path, name };
            found.extend(expanded(statement).into_iter().map(of));
        }
        offset += line.len() + 1;
    }
    found
}

/// Returns the paths of one `use` with its braces expanded, each with the name it gets.
fn expanded(statement: &str) -> Vec<(String, String)> {
    let statement = statement.trim();
    let Some((before, after)) = statement.split_once('{') else {
        let (path, name) = statement.split_once(" as ").unwrap_or((statement, statement));
        let name = name.rsplit("::").next().unwrap_or(name);
        return vec![(path.trim().to_owned(), name.trim().to_owned())];
    };
    let mut depth = 0;
    let inside = after.rsplit_once('}').map_or(after, |(inside, _)| inside);
    let parts = inside.split(|letter: char| {
        depth += match letter {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        letter == ',' && depth == 0
    });
    let whole = |part: &str| expanded(part).into_iter().map(|(path, name)| (format!("{before}{path}"), name));
    parts.filter(|part| !part.trim().is_empty()).flat_map(whole).collect()
}

/// Returns a path of this crate from its root, or nothing for another crate's.
fn absolute(module: &[String], path: &str, files: &Files<'_>) -> Option<Vec<String>> {
    let mut parts = path.split("::").map(str::trim);
    let mut from = match parts.next()? {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len().checked_sub(1)?].to_vec(),
        first => {
            let submodule = [module, &[first.to_owned()]].concat();
            files.contains_key(&submodule).then_some(submodule)?
        }
    };
    for part in parts {
        match part {
            "super" => drop(from.pop()?),
            "self" => {}
            part => from.push(part.to_owned()),
        }
    }
    Some(from)
}

/// Returns the module of the file in which a path ends, unless that is the root.
fn longest(path: &[String], files: &Files<'_>) -> Option<Vec<String>> {
    (1..=path.len()).rev().map(|end| path[..end].to_vec()).find(|module| files.contains_key(module))
}

#[cfg(test)]
mod tests {
    use super::super::tree::made::tree;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let manifest = ("crates/a/Cargo.toml", "");
        let (_folder, tree) = tree(&[&[manifest], files].concat());
        check(&tree)
            .into_iter()
            .map(|finding| format!("{}:{} {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn a_circle_is_told_once_with_all_that_are_in_it() {
        let files = [
            ("crates/a/src/lib.rs", "mod b;\nmod c;\npub use b::B;"),
            ("crates/a/src/b/mod.rs", "//! b\nmod d;\n\nuse std::io;\nuse crate::{\n    c::{self, C},\n};\n"),
            ("crates/a/src/c.rs", "use crate::b::d::D as E;"),
            ("crates/a/src/b/d.rs", "pub(crate) use super::B;"),
        ];
        let told = ["crates/a/src/b/mod.rs:5 `b` imports itself in a circle: b -> c -> b::d"];
        assert_eq!(found(&files), told);
    }

    #[test]
    fn a_name_that_is_re_exported_counts_as_where_it_stands() {
        let files = [
            ("crates/a/src/lib.rs", "mod b;\nmod c;\npub use c::C;"),
            ("crates/a/src/b/mod.rs", "mod d;\nmod e;\npub(crate) use d::D as Name;\npub(crate) use e::E;"),
            ("crates/a/src/b/d.rs", "use crate::C;"),
            ("crates/a/src/b/e.rs", ""),
            ("crates/a/src/c.rs", "use crate::b::{E, Name};"),
        ];
        assert_eq!(found(&files), ["crates/a/src/b/d.rs:1 `b::d` imports itself in a circle: b::d -> c"]);
        // A function of a module's name is not that module.
        let function = ("crates/a/src/b/mod.rs", "mod d;\nmod e;\npub(crate) use d::e;");
        let same = ("crates/a/src/c.rs", "use crate::b::e::E;");
        assert_eq!(found(&[files[0], function, files[2], files[3], same]), Vec::<String>::new());
        // Each by itself is none.
        assert_eq!(found(&[files[0], files[1], files[2], files[3]]), Vec::<String>::new());
        let without = ("crates/a/src/c.rs", "use crate::b::E;");
        assert_eq!(found(&[files[0], files[1], files[2], files[3], without]), Vec::<String>::new());
    }

    #[test]
    fn a_path_that_is_written_out_counts_as_an_import() {
        let uses = ("crates/a/src/b.rs", "use crate::c::C;");
        let whole = |code| ("crates/a/src/c.rs", code);
        let files = |code| [("crates/a/src/lib.rs", "mod b;\nmod c;"), uses, whole(code)];
        let told = ["crates/a/src/b.rs:1 `b` imports itself in a circle: b -> c"];
        assert_eq!(found(&files("fn c() {\n    crate::b::d();\n}")), told);
        assert_eq!(found(&files("#[error(\"{}\", b = super::b::d())]\nstruct C;")), told);
        for none in [
            "// crate::b::d()",
            "fn c() { \"crate::b::d()\" }",
            "pub(in crate::b) struct C;",
            "struct C;\n#[cfg(test)]\nmod tests {\n    fn c() { crate::b::d() }\n}",
            "fn c() { other::crate_::b() }",
        ] {
            assert_eq!(found(&files(none)), Vec::<String>::new(), "{none}");
        }
    }

    #[test]
    fn what_is_no_circle_is_none() {
        let files = [
            ("crates/a/src/lib.rs", "use crate::b::B;"),
            (
                "crates/a/src/b.rs",
                "use crate::c::C;\n// use crate::b::B;\nmod tests {\n    use crate::d::D;\n}",
            ),
            ("crates/a/src/c.rs", "use std::{fs, io};\nuse b::B;\nuse self::inner::X;\nmod inner {}"),
            ("crates/a/src/d.rs", "use crate::b::B;"),
            ("crates/a/src/b/e.rs", "use super::B;"),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }
}
