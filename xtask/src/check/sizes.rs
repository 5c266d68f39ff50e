//! Checks the length of files: at most 400 lines, tests not counted.

use super::finding::Finding;
use super::tree::{RustFile, Tree};

/// The most lines a file may have before its tests.
const MOST: usize = 400;

/// Finds every file beneath `crates/` and `xtask/` that is too long.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let counted = |file: &&RustFile| {
        (file.path.starts_with("crates/") || file.path.starts_with("xtask/")) && !is_test_file(&file.path)
    };
    tree.files
        .iter()
        .filter(counted)
        .map(|file| (file, length(&file.code.code)))
        .filter(|(_, lines)| *lines > MOST)
        .map(|(file, lines)| {
            let mend = "split it by noun or verb, or move a table to a data file";
            Finding::new(&file.path, MOST + 1, format!("{lines} lines, at most {MOST}"), mend)
        })
        .collect()
}

/// Whether a file holds only tests.
fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// Counts lines up to the first `#[cfg(test)]` before a `mod` with a body. A `mod tests;` ends nothing: its tests are elsewhere.
pub(super) fn length(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let begins_tests = |at: usize| {
        lines[at].starts_with("#[cfg(test)]")
            && lines[at..]
                .iter()
                .map(|line| line.trim_start_matches("#[cfg(test)]").trim())
                .find(|line| !line.is_empty() && !line.starts_with('#'))
                .is_some_and(|line| line.split_whitespace().any(|word| word == "mod") && line.ends_with('{'))
    };
    (0..lines.len()).find(|at| begins_tests(*at)).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::super::tree::made::tree;
    use super::*;

    fn of_lines(count: usize) -> String {
        "const A: u8 = 0;\n".repeat(count)
    }

    #[test]
    fn the_limit_is_inclusive_and_the_first_line_over_it_is_named() {
        let (fits, over) = (of_lines(400), of_lines(401));
        let (_folder, tree) = tree(&[("crates/a/src/fits.rs", &fits), ("xtask/src/over.rs", &over)]);
        let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("xtask/src/over.rs:401: 401 lines, at most 400"), "{}", found[0]);
    }

    #[test]
    fn tests_are_not_counted() {
        assert_eq!(length("a\nb\n#[cfg(test)]\nmod tests {\nc\n}\n"), 2);
        assert_eq!(length("a\n#[cfg(test)]\n#[path = \"x\"]\n\npub(crate) mod tests {\n"), 1);
        assert_eq!(length("#[cfg(test)] mod tests {\n}\n"), 0);
    }

    #[test]
    fn other_uses_of_the_attribute_end_nothing() {
        assert_eq!(length("#[cfg(test)]\nuse x::mod_y;\na\n"), 3);
        assert_eq!(length("#[cfg(test)]\nmod tests;\na\n"), 3);
        assert_eq!(length("#[cfg(test)]\nfn model() {}\na\n"), 3);
    }

    #[test]
    fn files_of_tests_and_other_folders_are_free() {
        let long = of_lines(900);
        let paths = ["crates/a/tests/x.rs", "crates/a/src/x/tests.rs", "tests/probe/src/x.rs"];
        let (_folder, tree) = tree(&paths.map(|path| (path, long.as_str())));
        assert!(check(&tree).is_empty());
    }
}
