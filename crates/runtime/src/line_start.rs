//! Remembers whether the output carried to the terminal ended with a newline, so that our own messages start on a fresh line.
//! It does not know what a command writes directly to the caller's terminal, nor what other programs write there.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the last octet was no newline.
static IS_IN_A_LINE: AtomicBool = AtomicBool::new(false);

/// Remembers how the octets that were copied there end.
pub(crate) fn carried(octets: &[u8]) {
    if let Some(last) = octets.last() {
        IS_IN_A_LINE.store(*last != b'\n', Ordering::Relaxed);
    }
}

/// Whether a line was begun there and has not ended. The caller writes whole lines, so asking ends the line.
pub fn ends_a_line_begun() -> bool {
    IS_IN_A_LINE.swap(false, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_begun_is_ended_once() {
        carried(b"a\nb");
        carried(b"");
        assert!(ends_a_line_begun() && !ends_a_line_begun());
        carried(b"b");
        carried(b"\n");
        assert!(!ends_a_line_begun());
    }
}
