//! What this crate is for stands in it alone: a second rule for skips would pass where a test must fail, and a second mask would search for
//! nothing.
#![expect(clippy::expect_used, reason = "a test that cannot read the tests has failed")]

use std::fs;
use std::path::{Path, PathBuf};

use lockgate_needs::{REQUIRE, masked};

/// Returns the paths below `tests/` of the Rust files with a line that is meant, without this one.
fn files_with(is_meant: impl Fn(&str) -> bool) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder `tests`");
    let (mut waiting, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = waiting.pop() {
        let entries = fs::read_dir(&folder).expect("a folder of the tests");
        let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        for path in paths {
            if path.is_dir() {
                waiting.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(&path).expect("a file of Rust");
                let name = path.strip_prefix(root).expect("a file of the tests").display().to_string();
                found.extend(
                    (name != "needs/tests/one_place.rs" && text.lines().any(&is_meant)).then_some(name),
                );
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_rule_for_skips_stands_once() {
    assert_eq!(files_with(|line| line.contains(REQUIRE)), ["needs/src/skip.rs"]);
    // The words of a skip, by whatever macro, as `xtask/src/skips.rs` reads them.
    let tells = |line: &str| {
        let line = line.trim_start().to_ascii_lowercase();
        line.contains("print") && line.contains("(\"skip")
    };
    assert_eq!(files_with(tells), ["needs/src/skip.rs"]);
}

#[test]
fn the_mask_stands_once() {
    let mask = format!("0x{}", masked([0]));
    assert_eq!(files_with(|line| line.contains(&mask)), ["needs/src/canary.rs"]);
    let is_telling = |line: &str| line.contains("TELLING") && line.contains("usize");
    assert_eq!(files_with(is_telling), ["needs/src/canary.rs"]);
}
