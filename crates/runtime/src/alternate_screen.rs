//! Tracks what a command makes of the terminal: whether it has the whole screen to itself, as an editor or a pager has (messages would
//! be written over it), and what must be undone where it did not end by itself. Recognised from its output: xterm's alternate screen,
//! by the private modes 47, 1047 and 1049; other private modes (ECMA-48 §5.4; ctlseqs); and how keys are told: xterm's `modifyOtherKeys`,
//! and the flags of kitty's keyboard protocol, which programs push and pop.

/// Leaves the alternate screen, and its colours.
const LEAVE: &str = "\x1b[?1049l\x1b[m";
/// Private modes that would be in the way of whoever has the terminal next, and what they usually are: application cursor keys, the
/// visible cursor, reports of the mouse and of the focus, bracketed paste, and output that is held back until it is whole.
const MODES: [(&[u8], &str); 12] = [
    (b"1", "\x1b[?1l"),
    (b"9", "\x1b[?9l"),
    (b"25", "\x1b[?25h"),
    (b"1000", "\x1b[?1000l"),
    (b"1002", "\x1b[?1002l"),
    (b"1003", "\x1b[?1003l"),
    (b"1004", "\x1b[?1004l"),
    (b"1005", "\x1b[?1005l"),
    (b"1006", "\x1b[?1006l"),
    (b"1015", "\x1b[?1015l"),
    (b"2004", "\x1b[?2004l"),
    (b"2026", "\x1b[?2026l"),
];

/// The resource of xterm's that makes it tell of modifier keys with any other key.
const MODIFY_OTHER_KEYS: u16 = 4;

/// The longest sequence of interest.
const LONGEST: usize = 32;

/// A parser of the output, in whatever pieces it comes.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    is_full: bool,
    /// Which of [`MODES`] are not as usual.
    changed: [bool; MODES.len()],
    /// How keys are told, of the usual screen and of the alternate one: each has a stack of its own.
    keys: [Keys; 2],
    /// Whether modified keys are told as xterm's `modifyOtherKeys` has it.
    are_modified_told: bool,
    /// The start of a sequence that has not ended.
    begun: Vec<u8>,
}

/// What a program made of the flags of kitty's keyboard protocol.
#[derive(Clone, Copy, Debug, Default)]
struct Keys {
    pushed: u16,
    /// The lowest level of the stack at which they were set, and not to none.
    set_at: Option<u16>,
}

impl Keys {
    fn undo(self) -> String {
        let set = if self.set_at.is_some() { "\x1b[=0u" } else { "" };
        match self.pushed {
            0 => set.to_owned(),
            pushed => format!("\x1b[<{pushed}u{set}"),
        }
    }
}

impl Screen {
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    pub(crate) fn see(&mut self, octets: &[u8]) {
        for octet in octets {
            match (self.begun.as_slice(), octet) {
                (_, 0x1b) => self.begun = vec![0x1b],
                ([], _) => {}
                ([0x1b], b'[') | ([0x1b, b'['], b'?' | b'<'..=b'>') => self.begun.push(*octet),
                ([0x1b], b'c') => *self = Self::default(), // a full reset
                ([0x1b, b'[', _, ..], b'0'..=b'9' | b';') if self.begun.len() < LONGEST => {
                    self.begun.push(*octet);
                }
                ([0x1b, b'[', kind, ..], last) => {
                    let (kind, begun) = (*kind, std::mem::take(&mut self.begun));
                    let numbers = begun[3..].split(|octet| *octet == b';');
                    self.end(kind, numbers, *last);
                }
                _ => self.begun.clear(),
            }
        }
    }

    /// Notes what a whole sequence means: its kind, its numbers and its last octet.
    fn end<'a>(&mut self, kind: u8, mut numbers: impl Iterator<Item = &'a [u8]>, last: u8) {
        let keys = &mut self.keys[usize::from(self.is_full)];
        let mut next = || std::str::from_utf8(numbers.next()?).ok()?.parse::<u16>().ok();
        match (kind, last) {
            (b'>', b'u') => keys.pushed = keys.pushed.saturating_add(1),
            (b'<', b'u') => {
                // The flags are those from before the push.
                keys.pushed = keys.pushed.saturating_sub(next().unwrap_or(1));
                keys.set_at = keys.set_at.filter(|level| *level <= keys.pushed);
            }
            (b'=', b'u') => match (next().unwrap_or(0), next().unwrap_or(1)) {
                (0, 1) => keys.set_at = keys.set_at.filter(|level| *level < keys.pushed),
                (1.., 1 | 2) => keys.set_at = keys.set_at.or(Some(keys.pushed)),
                _ => {}
            },
            (b'>', b'm') if next().is_none_or(|resource| resource == MODIFY_OTHER_KEYS) => {
                self.are_modified_told = next().unwrap_or(0) != 0;
            }
            (b'?', b'h' | b'l') => numbers.for_each(|mode| self.set(mode, last)),
            _ => {}
        }
    }

    /// Notes that a mode is set (`h`) or reset (`l`).
    fn set(&mut self, mode: &[u8], to: u8) {
        if matches!(mode, b"47" | b"1047" | b"1049") {
            self.is_full = to == b'h';
        }
        if let Some(at) = MODES.iter().position(|(known, _)| *known == mode) {
            self.changed[at] = !MODES[at].1.as_bytes().ends_with(&[to]);
        }
    }

    /// Returns what makes the terminal as it usually is.
    pub(crate) fn undo(&self) -> String {
        let leave = if self.is_full { self.keys[1].undo() + LEAVE } else { String::new() };
        let modified = if self.are_modified_told { "\x1b[>4m" } else { "" };
        let keys = [leave, self.keys[0].undo(), modified.to_owned()];
        let changed = MODES.iter().zip(self.changed).filter(|(_, is_changed)| *is_changed);
        keys.into_iter().chain(changed.map(|((_, usual), _)| (*usual).to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Screen;

    #[test]
    fn it_is_known_in_whatever_pieces_it_comes() {
        for (text, is_full) in [
            ("plain", false),
            ("\x1b[?1049h", true),
            ("\x1b[?1049h text \x1b[31m\x1b[?25l", true),
            ("\x1b[?1049hx\x1b[?1049l", false),
            ("\x1b[?25;1049h", true),
            ("\x1b[?47h", true),
            ("\x1b[?1047hx\x1bc", false),
            ("\x1b[?10490h\x1b[1049h\x1b]1049h\x1b[?1049;", false),
            ("\x1b\x1b[?1049h", true),
        ] {
            for piece in 1..=text.len() {
                let mut screen = Screen::default();
                text.as_bytes().chunks(piece).for_each(|piece| screen.see(piece));
                assert_eq!(screen.is_full(), is_full, "{text:?} by {piece}");
            }
        }
        let mut screen = Screen::default();
        screen.see(b"\x1b[?");
        screen.see(&[b'1'; 1 << 20]);
        assert!(screen.begun.len() < 64);
    }

    #[test]
    fn what_was_set_is_undone_and_nothing_else() {
        for (text, undone) in [
            ("plain \x1b[31m", ""),
            ("\x1b[?25l", "\x1b[?25h"),
            ("\x1b[?25l\x1b[?25h", ""),
            ("\x1b[?1000;1006h\x1b[?2004h\x1b[?1h", "\x1b[?1l\x1b[?1000l\x1b[?1006l\x1b[?2004l"),
            ("\x1b[?2004h$ \x1b[?2004l", ""),
            ("\x1b[?1049h\x1b[?1002h\x1b[?1003h", "\x1b[?1049l\x1b[m\x1b[?1002l\x1b[?1003l"),
            ("\x1b[?1049h\x1b[?25l\x1bc", ""),
            ("\x1b[?7l\x1b[25l\x1b[?12h", ""),
            ("\x1b[?9h\x1b[?2026h\x1b[?1005h", "\x1b[?9l\x1b[?1005l\x1b[?2026l"),
            ("\x1b[>1u\x1b[>5u\x1b[<u", "\x1b[<1u"),
            ("\x1b[>1u\x1b[?1049h\x1b[>7u\x1b[>4;2m", "\x1b[<1u\x1b[?1049l\x1b[m\x1b[<1u\x1b[>4m"),
            ("\x1b[?1049h\x1b[>1u\x1b[>4;1m\x1b[>4m\x1b[<1u\x1b[?1049l", ""),
            ("\x1b[=5;1u", "\x1b[=0u"),
            ("\x1b[=5;1u\x1b[=0;2u\x1b[=1;3u", "\x1b[=0u"),
            ("\x1b[>1u\x1b[=5u\x1b[<u", ""),
            ("\x1b[=5u\x1b[>1u\x1b[=3u\x1b[<u", "\x1b[=0u"),
            ("\x1b[=5u\x1b[=0u\x1b[?u\x1b[>c\x1b[>0q\x1b[<9u", ""),
        ] {
            let mut screen = Screen::default();
            screen.see(text.as_bytes());
            assert_eq!(screen.undo(), undone, "{text:?}");
        }
    }
}
