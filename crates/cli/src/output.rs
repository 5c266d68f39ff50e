//! What people read. stdout is data and belongs to the program that is run; everything for people goes to stderr, is
//! readable without colour, and holds no control character that somebody else put in.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::stderr;

/// A line for the person, under the product's name; what follows on others is indented, so that nothing somebody else wrote begins one.
/// It begins a line of its own, whatever the program that is run has left there.
pub(crate) fn tell(text: &str) {
    tell_within(text, stderr::PATIENCE);
}

/// As [`tell`], and drops the line only once its reader has taken nothing for `patience`.
fn tell_within(text: &str, patience: Duration) {
    let clean = indented(text);
    let end = end_of_line();
    stderr::seek_to_end();
    // In one piece: the program that is run writes to the same place.
    let before = if runtime::ends_a_line_begun() { end } else { "" };
    stderr::write(format!("{before}lockgate: {}{end}", clean.replace('\n', end)).as_bytes(), patience);
}

/// How a line ends where things are told: raw terminals need the return as well.
fn end_of_line() -> &'static str {
    if std::io::stderr().is_terminal() { "\r\n" } else { "\n" }
}

/// Lines without what a terminal would obey. If a later one begins at the margin, all of them are moved, so that what stands below each
/// other stays so.
fn indented(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    let is_needed = lines.iter().skip(1).any(|line| !line.starts_with("  "));
    lines.join(if is_needed { "\n  " } else { "\n" })
}

/// A line for programs that read what is told, by itself as well. Where nobody reads it any more, nobody misses it.
pub(crate) fn report(line: &str) -> std::io::Result<()> {
    stderr::seek_to_end();
    let before = if runtime::ends_a_line_begun() { end_of_line() } else { "" };
    match std::io::stderr().write_all(format!("{before}{}\n", escaped(line)).as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// An error: what happened and why, then what to do.
pub(crate) fn error(error: &anyhow::Error, remedy: Option<&str>) {
    let mut text = said(error).trim_end().to_owned();
    if let Some(remedy) = remedy {
        text.push_str("\n  ");
        text.push_str(remedy);
    }
    // Nothing waits behind it but the end of this process: a pager may take its time.
    stderr::forget_stuck();
    tell_within(&text, LAST_PATIENCE);
}

/// How long the last line waits for room.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// An error in a sentence.
pub(crate) fn said(error: &anyhow::Error) -> String {
    match error.downcast_ref::<runtime::Error>() {
        Some(error) => error.sentence(),
        None => format!("{error:#}"),
    }
}

/// How data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Text,
    /// For programs, with stable keys.
    Json,
}

impl Form {
    /// From a `--json` flag.
    pub(crate) fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// Text that somebody else wrote, without what a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '\u{fffd}' } else { c }).collect()
}

/// A path that somebody else chose, on one line and to be told from every other: what is not shown as itself is written out.
pub(crate) fn path(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                _ if is_hidden(c) => text.extend(c.escape_default()),
                _ => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|octet| text.push_str(&format!("\\x{octet:02x}")));
    }
    text
}

/// Whether a character is obeyed and not shown: it controls a terminal, ends a line, turns the direction of what stands beside it
/// (UAX #9, section 2), or takes no room.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A line of data, for people or for programs.
pub(crate) fn data(line: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{}", escaped(line)).map_err(unwritten)
}

/// A text as it is, for a program that reads it.
pub(crate) fn text(octets: &[u8]) -> std::io::Result<()> {
    std::io::stdout().write_all(octets).map_err(unwritten)
}

fn unwritten(error: std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("failed to write to standard output: {error}"))
}

/// Text of which a terminal obeys nothing: what is hidden is written as JSON writes it, to which it means the same.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) && !matches!(c, '\n' | '\t') {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out
}

/// What a run used of models, in one line.
pub(crate) fn models(used: &egress::ModelUse) -> String {
    let cost = policy::MicroUsd::new(used.cost_micro_usd);
    let cached = if used.cached_tokens > 0 {
        format!(" and {} from a cache", used.cached_tokens)
    } else {
        String::new()
    };
    let unpriced =
        used.unpriced.as_ref().map(|model| format!(", and the price of `{}` is not known", plain(model)));
    format!(
        "{} requests to models: {} tokens in{cached}, {} out, {cost}{}",
        used.requests,
        used.input_tokens,
        used.output_tokens,
        unpriced.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_somebody_else_wrote_begins_a_line_or_is_obeyed() {
        assert_eq!(
            indented("a\nlockgate: \u{1b}[31mb\n  c\r"),
            "a\n  lockgate: \u{fffd}[31mb\n    c\u{fffd}"
        );
        assert_eq!(indented("one"), "one");
        assert_eq!(indented("one\n  two"), "one\n  two");
        let hostile = "x\u{1b}]0;t\u{7}\u{9b}5m\u{202e}\u{e0041}";
        let shown = escaped(hostile);
        assert!(!shown.chars().any(is_hidden), "{shown}");
        // To a program it is what it was.
        let line = serde_json::json!({ "name": hostile }).to_string();
        let read: serde_json::Value = serde_json::from_str(&escaped(&line)).unwrap();
        assert_eq!(read["name"], hostile);
    }

    #[test]
    fn a_path_is_one_line_and_says_what_it_is() {
        for (given, expected) in [
            (&b"p\nlockgate: verified"[..], "p\\nlockgate: verified"),
            ("a\u{202e}txt.exe\u{2066}".as_bytes(), "a\\u{202e}txt.exe\\u{2066}"),
            (b"\x1b[2J\r\t", "\\u{1b}[2J\\r\\t"),
            (b"\xff\\n", "\\xff\\\\n"),
            ("\u{9b}\u{200b}\u{2028}".as_bytes(), "\\u{9b}\\u{200b}\\u{2028}"),
            ("src/näme 名.rs".as_bytes(), "src/näme 名.rs"),
        ] {
            assert_eq!(path(Path::new(std::ffi::OsStr::from_bytes(given))), expected);
        }
        assert_eq!(plain("a\u{202e}b\nc"), "a\u{fffd}b\u{fffd}c");
    }
}
