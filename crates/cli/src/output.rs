//! Output. stdout carries data and belongs to the command; messages for people go to stderr, are readable without colour, and
//! contain no control characters from elsewhere.

use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use runtime::Patient;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::stderr;

/// Prints a message on stderr, prefixed with the product's name. Further lines are indented, so that no text from elsewhere begins a
/// line. The message begins on a fresh line, whatever the command has written before.
pub(crate) fn tell(text: &str) {
    tell_within(text, stderr::PATIENCE);
}

/// Prints like [`tell`], and drops the message if the reader takes nothing for `patience`.
fn tell_within(text: &str, patience: Duration) {
    let clean = indented(text);
    let end = end_of_line();
    stderr::seek_to_end();
    // In one write, because the command writes to the same stream.
    let before = if runtime::ends_a_line_begun() { end } else { "" };
    stderr::write(format!("{before}lockgate: {}{end}", clean.replace('\n', end)).as_bytes(), patience);
}

/// Returns the line end of stderr. A terminal may be in raw mode, which needs the carriage return.
fn end_of_line() -> &'static str {
    if std::io::stderr().is_terminal() { "\r\n" } else { "\n" }
}

/// Removes control characters, and indents the lines after the first if one of them begins at the margin. All move together, so that
/// columns stay aligned.
fn indented(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(plain).collect();
    let is_needed = lines.iter().skip(1).any(|line| !line.starts_with("  "));
    lines.join(if is_needed { "\n  " } else { "\n" })
}

/// Prints a JSON line on stderr, on a line of its own. Returns whether it was taken: a reader may come late, and one that has gone
/// misses nothing.
pub(crate) fn report(line: &str) -> bool {
    stderr::forget_stuck();
    stderr::seek_to_end();
    let before = if runtime::ends_a_line_begun() { end_of_line() } else { "" };
    stderr::write(format!("{before}{}\n", escaped(line)).as_bytes(), LAST_PATIENCE)
}

/// Prints an error and its remedy.
pub(crate) fn error(error: &anyhow::Error, remedy: Option<&str>) {
    tell(&with_remedy(error, remedy));
}

/// Prints the error that ends this process. Only that end waits for it, so a pager may take its time.
pub(crate) fn last_error(error: &anyhow::Error, remedy: Option<&str>) {
    stderr::forget_stuck();
    tell_within(&with_remedy(error, remedy), LAST_PATIENCE);
}

fn with_remedy(error: &anyhow::Error, remedy: Option<&str>) -> String {
    let mut text = said(error).trim_end().to_owned();
    if let Some(remedy) = remedy {
        text.push_str("\n  ");
        text.push_str(remedy);
    }
    text
}

/// How long the last message waits for room.
const LAST_PATIENCE: Duration = Duration::from_secs(10);

/// Formats an error as a sentence.
pub(crate) fn said(error: &anyhow::Error) -> String {
    match error.downcast_ref::<runtime::Error>() {
        Some(error) => error.sentence(),
        None => format!("{error:#}"),
    }
}

/// The format of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Text,
    /// For programs, with stable keys.
    Json,
}

impl Form {
    /// Chooses by a `--json` flag.
    pub(crate) fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// The format of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListForm {
    /// For people.
    Text,
    /// Only the name of each, for a shell. Nothing is told of a list that is empty.
    Names,
    /// For programs, with stable keys.
    Json,
}

impl ListForm {
    /// Chooses by the flags `--json` and `--quiet`, of which the command line takes only one.
    pub(crate) fn of(json: bool, quiet: bool) -> Self {
        match (json, quiet) {
            (_, true) => Self::Names,
            (true, false) => Self::Json,
            (false, false) => Self::Text,
        }
    }
}

/// Replaces the control characters of foreign text.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { '\u{fffd}' } else { c }).collect()
}

/// Formats a path on one line, unambiguously: what would not be visible is escaped.
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

/// Formats text as a TOML string of one line, with what is invisible escaped, so that it is read back as the same.
pub(crate) fn toml_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            _ if is_hidden(c) => out.push_str(&match u32::from(c) {
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a character is invisible: it controls a terminal, ends a line, changes the direction of its neighbours (UAX #9, section 2),
/// or has no width.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Prints a line of data on stdout.
pub(crate) fn data(line: &str) -> std::io::Result<()> {
    text(format!("{}\n", escaped(line)).as_bytes())
}

/// Prints a line like [`data`], of what the exit code tells as well or of what was done: where its reader has gone, the command goes
/// on to its end, and to its code.
pub(crate) fn answer(line: &str) -> std::io::Result<()> {
    match data(line) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Writes octets to stdout unchanged, for a program.
pub(crate) fn text(octets: &[u8]) -> std::io::Result<()> {
    Stdout::default().write_all(octets)
}

/// Whether somebody may still read standard output.
pub(crate) fn has_reader() -> bool {
    let stdout = std::io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let is_asked = rustix::event::poll(&mut asked, Some(&Timespec::default())).is_ok();
    !is_asked || !asked[0].revents().contains(PollFlags::ERR)
}

/// Standard output, unbuffered. It is waited for, and its errors say what could not be done.
pub(crate) struct Stdout(Patient<std::io::Stdout>);

impl Default for Stdout {
    fn default() -> Self {
        Self(Patient::of(std::io::stdout()))
    }
}

impl Write for Stdout {
    fn write(&mut self, octets: &[u8]) -> std::io::Result<usize> {
        self.0.write(octets).map_err(unwritten)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Says what could not be done with an error of stdout.
fn unwritten(error: std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), format!("failed to write to standard output: {error}"))
}

/// Escapes invisible characters as JSON does, so that JSON keeps its meaning.
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

/// Describes a run's use of models in one line.
pub(crate) fn models(used: &egress::ModelUse) -> String {
    let cost = policy::MicroUsd::new(used.cost_micro_usd);
    let cached = if used.cached_tokens > 0 {
        format!(" and {} from a cache", used.cached_tokens)
    } else {
        String::new()
    };
    let unpriced =
        used.unpriced.as_ref().map(|model| format!(", and the price of `{}` is not known", plain(model)));
    let unmetered = match used.unmetered {
        0 => String::new(),
        1 => "; 1 answer did not tell its use".into(),
        many => format!("; {many} answers did not tell their use"),
    };
    format!(
        "{} request{} to models: {} tokens in{cached}, {} out, {cost}{}{unmetered}",
        used.requests,
        if used.requests == 1 { "" } else { "s" },
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
        // A JSON parser reads the original.
        let line = serde_json::json!({ "name": hostile }).to_string();
        let read: serde_json::Value = serde_json::from_str(&escaped(&line)).unwrap();
        assert_eq!(read["name"], hostile);
    }

    #[test]
    fn what_is_not_known_of_models_is_said() {
        let one = egress::ModelUse { requests: 1, unmetered: 1, ..egress::ModelUse::default() };
        let told = models(&one);
        assert!(told.starts_with("1 request to models: 0 tokens in, 0 out, "), "{told}");
        assert!(told.ends_with("; 1 answer did not tell its use"), "{told}");
        let more = egress::ModelUse { requests: 3, unmetered: 2, ..one };
        assert!(
            models(&more).starts_with("3 requests to models: ") && models(&more).contains("2 answers did")
        );
        assert!(!models(&egress::ModelUse { unmetered: 0, ..more }).contains("tell"));
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
