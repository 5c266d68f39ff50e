//! Checks names and openings: no file is named for leftovers, every file says what it owns, and `lib.rs` is a table of contents.

use std::path::Path;

use super::finding::Finding;
use super::tree::{RustFile, Tree};

/// Names that do not say what is inside.
const SAY_NOTHING: [&str; 8] = ["utils", "util", "common", "helpers", "helper", "core", "misc", "types"];

/// Finds every file that breaks one of the three rules.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(|file| [drawers(file), opening(file), contents_only(file)].concat()).collect()
}

fn drawers(file: &RustFile) -> Vec<Finding> {
    let mend = "name it after what it holds";
    let path = Path::new(&file.path).with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    let in_path = parts.filter(|part| SAY_NOTHING.contains(&part.as_str())).map(|part| (1, part));
    let modules = file.code.words().filter(|word| word.text == "mod").filter_map(|word| {
        let name: String =
            word.rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        SAY_NOTHING.contains(&name.as_str()).then_some((word.line, name))
    });
    in_path
        .chain(modules)
        .map(|(line, name)| Finding::new(&file.path, line, format!("`{name}` says nothing"), mend))
        .collect()
}

fn opening(file: &RustFile) -> Vec<Finding> {
    if file.text.starts_with("//!") {
        return Vec::new();
    }
    let mend = "begin it with two to ten lines: what it owns, and what it must never do";
    vec![Finding::new(&file.path, 1, "the file does not begin with `//!`", mend)]
}

fn contents_only(file: &RustFile) -> Vec<Finding> {
    if !file.path.ends_with("/lib.rs") {
        return Vec::new();
    }
    let functions = file.code.words().filter(|word| word.text == "fn");
    let mend = "move it to a module; `lib.rs` is a table of contents";
    functions.map(|word| Finding::new(&file.path, word.line, "`lib.rs` holds a function", mend)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::made::tree;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let (_folder, tree) = tree(&[(path, text)]);
        check(&tree).into_iter().map(|finding| (finding.line, finding.what)).collect()
    }

    #[test]
    fn drawers_are_found_as_files_folders_and_modules() {
        let says = |name: &str| format!("`{name}` says nothing");
        assert_eq!(found("crates/a/src/utils.rs", "//! x\n"), [(1, says("utils"))]);
        assert_eq!(found("crates/a/tests/common/mod.rs", "//! x\n"), [(1, says("common"))]);
        assert_eq!(found("crates/core/src/x.rs", "//! x\n"), [(1, says("core"))]);
        assert_eq!(found("crates/a/src/x.rs", "//! x\n\npub(crate) mod types;\n"), [(3, says("types"))]);
    }

    #[test]
    fn a_name_that_only_contains_one_is_fine() {
        let text = "//! mod utils\nmod commonplace;\nmod address_types;\nuse core::fmt;\n// mod misc;\n";
        assert!(found("crates/a/src/coreutils.rs", text).is_empty());
    }

    #[test]
    fn every_file_opens_with_what_it_owns() {
        let missing = [(1, "the file does not begin with `//!`".to_owned())];
        for path in
            ["crates/a/build.rs", "crates/a/tests/x.rs", "tests/probe/src/main.rs", "fuzz/fuzz_targets/x.rs"]
        {
            assert_eq!(found(path, "use x;\n//! late\n"), missing, "{path}");
        }
    }

    #[test]
    fn lib_holds_no_function() {
        let text = "//! x\nmod a;\npub use a::fn_like;\n\nfn b() {}\n";
        assert_eq!(found("crates/a/src/lib.rs", text), [(5, "`lib.rs` holds a function".to_owned())]);
        assert!(found("crates/a/src/a.rs", text).is_empty());
    }
}
