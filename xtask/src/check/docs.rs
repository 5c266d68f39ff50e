//! Checks the documents: that crates and links exist, that the changelog has a section for unreleased changes, and that the README
//! has the two commands a newcomer needs.

use std::path::Path;

use super::finding::Finding;
use super::tree::{Tree, files_with_extension};

/// The commands the README must show word for word.
const FIRST_COMMANDS: [&str; 2] = ["cargo run --release -- demo", "cargo xtask test"];

/// Finds documents that name what does not exist, or lack what they must have.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    match tree.text("ARCHITECTURE.md") {
        Some(text) => findings.extend(crates_exist(tree, &text)),
        None => findings.push(absent("ARCHITECTURE.md")),
    }
    match tree.text("CHANGELOG.md") {
        Some(text) if text.lines().any(|line| line.trim_end() == "## [Unreleased]") => {}
        Some(_) => {
            let what = "no `## [Unreleased]` section";
            findings.push(Finding::new("CHANGELOG.md", 1, what, "add it above the latest release"));
        }
        None => findings.push(absent("CHANGELOG.md")),
    }
    match tree.text("README.md") {
        Some(text) => {
            findings.extend(FIRST_COMMANDS.iter().filter(|command| !text.contains(*command)).map(|command| {
                Finding::new(
                    "README.md",
                    1,
                    format!("`{command}` is not shown"),
                    "a newcomer begins with it: add it",
                )
            }))
        }
        None => findings.push(absent("README.md")),
    }
    for page in pages(tree) {
        findings.extend(links_lead_somewhere(tree, &page));
    }
    findings
}

fn absent(path: &str) -> Finding {
    Finding::new(path, 1, "the file does not exist", "write it")
}

/// Checks `crates/NAME` anywhere, and code spans that are exactly `lockgate-NAME`: both must be a package of this workspace.
fn crates_exist(tree: &Tree, text: &str) -> Vec<Finding> {
    let folders = tree.packages("crates");
    let tests = tree.packages("tests");
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let by_folder =
            line.split("crates/").skip(1).map(leading_name).filter(|name| !folders.contains(name));
        let by_package = line.split('`').skip(1).step_by(2).filter_map(|span| span.strip_prefix("lockgate-"));
        let by_package = by_package
            .filter(|name| leading_name(name) == *name)
            .map(str::to_owned)
            .filter(|name| !folders.contains(name) && !tests.contains(name));
        findings.extend(by_folder.chain(by_package).filter(|name| !name.is_empty()).map(|name| {
            let what = format!("there is no crate `{name}`");
            Finding::new("ARCHITECTURE.md", at + 1, what, "correct the page, or add the crate")
        }));
    }
    findings
}

fn leading_name(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-')).collect()
}

/// Returns the Markdown files at the root and beneath `docs/`.
fn pages(tree: &Tree) -> Vec<String> {
    let beneath = files_with_extension(&tree.root, &["docs"], "md").unwrap_or_default();
    let entries = std::fs::read_dir(&tree.root).into_iter().flatten().flatten();
    let top = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut pages: Vec<String> = top.filter(|name| name.ends_with(".md")).chain(beneath).collect();
    pages.sort();
    pages
}

fn links_lead_somewhere(tree: &Tree, page: &str) -> Vec<Finding> {
    let text = tree.text(page).unwrap_or_default();
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    links(&text)
        .into_iter()
        .filter(|(_, target)| !leads_inside(&tree.root, folder, target))
        .map(|(line, target)| {
            let what = format!("the link `{target}` leads to nothing in this repository");
            Finding::new(page, line, what, "correct it, relative to this page")
        })
        .collect()
}

fn leads_inside(root: &Path, folder: &Path, target: &str) -> bool {
    let (Ok(root), Ok(path)) = (root.canonicalize(), root.join(folder).join(target).canonicalize()) else {
        return false;
    };
    path.starts_with(root)
}

/// Returns the files a page links to (inline and by reference), with their lines. URLs and anchors within the page are left out.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let prose: String = line.split('`').step_by(2).collect();
            let inline = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            let reference = prose.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: "));
            let targets = inline.chain(reference.map(|(_, target)| target));
            found.extend(targets.filter_map(file_of).map(|file| (at + 1, file.to_owned())));
        }
    }
    found
}

/// Returns the file part of a link's target, if it has one.
fn file_of(target: &str) -> Option<&str> {
    let address = target.split_whitespace().next()?.trim_start_matches('<').trim_end_matches('>');
    let file = address.split('#').next()?;
    (!file.is_empty() && !file.contains("://") && !file.starts_with("mailto:")).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::super::tree::made::tree;
    use super::*;

    const README: &str = "`cargo run --release -- demo`\n`cargo xtask test`\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let whole = [
            ("README.md", README),
            ("CHANGELOG.md", "# Changes\n\n## [Unreleased]\n"),
            ("ARCHITECTURE.md", "`crates/policy` is `lockgate-policy`\n"),
            ("crates/policy/Cargo.toml", ""),
        ];
        let (_folder, tree) = tree(&[&whole, files].concat());
        check(&tree)
            .iter()
            .map(|finding| format!("{}:{}: {}", finding.path, finding.line, finding.what))
            .collect()
    }

    #[test]
    fn documents_that_agree_with_the_tree_are_silent() {
        assert_eq!(found(&[]), [""; 0]);
    }

    #[test]
    fn crates_that_are_not_there_are_found() {
        let text = "x\ncrates/gone, `lockgate-lost`, `lockgate-exec-{run}`, lockgate-prose, crates/policy.\n";
        let expected = ["gone", "lost"].map(|name| format!("ARCHITECTURE.md:2: there is no crate `{name}`"));
        assert_eq!(found(&[("ARCHITECTURE.md", text)]), expected);
    }

    #[test]
    fn the_changelog_and_the_first_commands_are_needed() {
        let files = [("CHANGELOG.md", "## Unreleased\n"), ("README.md", "cargo xtask test\n")];
        let expected = [
            "CHANGELOG.md:1: no `## [Unreleased]` section",
            "README.md:1: `cargo run --release -- demo` is not shown",
        ];
        assert_eq!(found(&files), expected);
    }

    #[test]
    fn absent_documents_are_named() {
        let (_folder, tree) = tree(&[]);
        let paths: Vec<String> = check(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["ARCHITECTURE.md", "CHANGELOG.md", "README.md"]);
    }

    #[test]
    fn links_are_followed_from_their_own_page() {
        let page = "[a](../README.md#top) [b](other.md) ![c](gone.png \"title\")\n[d]: lost.md\n";
        let files = [("docs/page.md", page), ("docs/other.md", "[up](..)\n[out](../../..)\n")];
        let expected = [
            "docs/other.md:2: the link `../../..` leads to nothing in this repository",
            "docs/page.md:1: the link `gone.png` leads to nothing in this repository",
            "docs/page.md:2: the link `lost.md` leads to nothing in this repository",
        ];
        assert_eq!(found(&files), expected);
    }

    #[test]
    fn addresses_places_and_code_are_no_links_to_files() {
        let page = "[a](https://example.com/x) [b](#here) [c](mailto:a@example.com) `[d](gone)`\n```\n[e](gone)\n```\n";
        assert!(links(page).is_empty());
    }
}
