//! Lists what the tests skipped. A test that cannot run here says so by `lockgate_needs::missing`, which prints a line
//! `skipped: REASON`, and passes; nextest keeps the output of passing tests in its JUnit report. This module reads those lines.
//!
//! It knows only as much of JUnit as nextest writes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Returns one line for each distinct reason, with the tests that gave it.
pub(crate) fn read(report: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(report).with_context(|| format!("failed to read {}", report.display()))?;
    Ok(by_reason(&text))
}

fn by_reason(report: &str) -> Vec<String> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for case in report.split("<testcase ").skip(1) {
        let name = case.strip_prefix("name=\"").and_then(|rest| rest.split('"').next()).unwrap_or("a test");
        for line in case.lines().map(spoken).filter(|line| is_skip(line)) {
            match reasons.iter_mut().find(|(reason, _)| *reason == line) {
                Some((_, tests)) if tests.last().is_some_and(|last| last == name) => {}
                Some((_, tests)) => tests.push(name.to_owned()),
                None => reasons.push((line, vec![name.to_owned()])),
            }
        }
    }
    reasons.into_iter().map(|(reason, tests)| format!("{reason} ({})", tests.join(", "))).collect()
}

/// Returns a line of a test's output without the markup around it.
fn spoken(line: &str) -> String {
    let line = line.trim();
    let line = ["<system-out>", "<system-err>"].iter().find_map(|tag| line.strip_prefix(tag)).unwrap_or(line);
    let line = line.split("</system-").next().unwrap_or(line);
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    entities.iter().fold(line.trim().to_owned(), |text, (entity, letter)| text.replace(entity, letter))
}

fn is_skip(line: &str) -> bool {
    line.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("skip"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_gathered_with_their_tests() {
        let report = concat!(
            "<testsuite><testcase name=\"a::one\" classname=\"x\">\n",
            "<system-out>running 1 test\nskipped: no &lt;nft&gt; &amp; no root\ntest ok</system-out>\n",
            "<system-err>SKIP: twice</system-err></testcase>\n",
            "<testcase name=\"two\" classname=\"x\"><system-out>\nskipped: no &lt;nft&gt; &amp; no root\n</system-out>",
            "</testcase><testcase name=\"three\"><system-out>I skipped nothing\n</system-out></testcase></testsuite>",
        );
        assert_eq!(by_reason(report), ["skipped: no <nft> & no root (a::one, two)", "SKIP: twice (a::one)"]);
    }

    #[test]
    fn an_absent_report_is_an_error_and_not_an_empty_list() {
        assert!(read(Path::new("/nonexistent/junit.xml")).is_err());
    }
}
