//! Tracks whether the command has the whole screen to itself, as an editor or a pager has: messages would be written over it.
//! Recognised from its output: xterm's alternate screen, by the private modes 47, 1047 and 1049 (ECMA-48 §5.4; ctlseqs).

/// Restores the screen: the usual one, with its cursor, and no reports of the mouse.
pub(crate) const LEAVE: &[u8] =
    b"\x1b[?1049l\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[m";

/// The longest sequence of interest.
const LONGEST: usize = 32;

/// A parser of the output, in whatever pieces it comes.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    is_full: bool,
    /// The start of a sequence that has not ended.
    begun: Vec<u8>,
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
                ([0x1b], b'[') | ([0x1b, b'['], b'?') => self.begun.push(*octet),
                ([0x1b], b'c') => self.end(false), // a full reset
                ([0x1b, b'[', b'?', ..], b'0'..=b'9' | b';') if self.begun.len() < LONGEST => {
                    self.begun.push(*octet);
                }
                ([0x1b, b'[', b'?', modes @ ..], b'h' | b'l') if is_alternate(modes) => {
                    self.end(*octet == b'h');
                }
                _ => self.begun.clear(),
            }
        }
    }

    fn end(&mut self, is_full: bool) {
        self.is_full = is_full;
        self.begun.clear();
    }
}

fn is_alternate(modes: &[u8]) -> bool {
    modes.split(|octet| *octet == b';').any(|mode| matches!(mode, b"47" | b"1047" | b"1049"))
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
}
