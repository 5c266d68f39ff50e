//! Checks that `unsafe` stays in its folders, and that every unsafe block there says why it is sound.

use super::finding::Finding;
use super::tree::{RustFile, Tree};

/// How many lines above an unsafe block its `SAFETY:` comment may begin.
const REACH: usize = 4;

/// What a folder that may use `unsafe` must do for it.
enum Room {
    /// Every block and every `unsafe impl` has a `SAFETY:` comment.
    Explained,
    /// Nothing: its code does on purpose what it should not.
    Attacker,
}

/// The only folders that may use `unsafe`. The probe attacks the kernel by raw system calls; the world makes namespaces.
const ROOMS: [(&str, Room); 3] =
    [("crates/sys/", Room::Explained), ("tests/world/", Room::Explained), ("tests/probe/", Room::Attacker)];

/// Finds every `unsafe` outside those folders, and every unexplained one inside.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().flat_map(check_file).collect()
}

fn check_file(file: &RustFile) -> Vec<Finding> {
    let room = ROOMS.iter().find(|(folder, _)| file.path.starts_with(folder)).map(|(_, room)| room);
    let comments: Vec<&str> = file.code.comments.lines().collect();
    let mut findings = Vec::new();
    for word in file.code.words().filter(|word| word.text == "unsafe") {
        match room {
            None => {
                let mend = "move the call to crates/sys and give it a safe name";
                findings.push(Finding::new(&file.path, word.line, "`unsafe` outside crates/sys", mend));
            }
            Some(Room::Explained) if owes_a_reason(word.rest) && !explained(&comments, word.line) => {
                let mend = format!("write `// SAFETY: …` within the {REACH} lines above it");
                findings.push(Finding::new(
                    &file.path,
                    word.line,
                    "unsafe code without a `SAFETY:` comment",
                    mend,
                ));
            }
            Some(Room::Explained | Room::Attacker) => {}
        }
    }
    findings
}

/// Whether it is a block or an implementation; a declaration states its callers' duties in its own documentation.
fn owes_a_reason(rest: &str) -> bool {
    rest.starts_with('{') || rest.starts_with("impl")
}

fn explained(comments: &[&str], line: usize) -> bool {
    let above = line.saturating_sub(1 + REACH)..line.min(comments.len());
    comments.get(above).is_some_and(|lines| lines.iter().any(|line| line.contains("SAFETY:")))
}

#[cfg(test)]
mod tests {
    use super::super::tree::made::tree;
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let (_folder, tree) = tree(&[(path, text)]);
        check(&tree).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn outside_its_rooms_it_is_found_in_any_form() {
        let text = "//! x\nfn a() { unsafe { b() } }\nunsafe fn b() {}\n#[unsafe(no_mangle)]\nunsafe\nimpl Send for X {}\n";
        assert_eq!(lines("crates/egress/src/a.rs", text), [2, 3, 4, 5]);
        assert_eq!(lines("xtask/src/a.rs", text), [2, 3, 4, 5]);
        assert_eq!(lines("tests/conformance/tests/a.rs", text), [2, 3, 4, 5]);
        assert!(lines("tests/probe/src/a.rs", text).is_empty());
    }

    #[test]
    fn words_comments_and_strings_are_not_code() {
        let text =
            "// unsafe { }\nconst A: &str = \"unsafe { }\";\n#![forbid(unsafe_code)]\nfn unsafely() {}\n";
        assert!(lines("crates/egress/src/a.rs", text).is_empty());
    }

    #[test]
    fn a_block_is_explained_by_a_near_comment_only() {
        let near = "// SAFETY: long\n// reason\n\nlet x = 1;\nunsafe { a() }\n";
        let far = "// SAFETY: long\n// reason\n\n\nlet x = 1;\nunsafe { a() }\n";
        let string = "let x = \"SAFETY:\";\nunsafe { a() }\n";
        let below = "unsafe { a() }\n// SAFETY: late\n";
        assert!(lines("crates/sys/src/a.rs", near).is_empty());
        assert_eq!(lines("crates/sys/src/a.rs", far), [6]);
        assert_eq!(lines("crates/sys/src/a.rs", string), [2]);
        assert_eq!(lines("crates/sys/src/a.rs", below), [1]);
    }

    #[test]
    fn declarations_owe_no_reason_but_implementations_do() {
        let text = "unsafe extern \"C\" {}\nunsafe fn a() {}\nunsafe impl Send for X {}\n";
        assert_eq!(lines("crates/sys/src/a.rs", text), [3]);
    }
}
