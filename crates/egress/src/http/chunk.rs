//! Parser of chunked bodies (RFC 9112 §7.1): refuses whatever two readers could take for two different bodies. Only the data goes on,
//! framed anew; sizes, extensions and line ends are dropped.

use std::io;

use super::head::check_trailers;
use super::response::unusable;

/// The longest line with a chunk's size, extensions included.
const LONGEST_SIZE_LINE: usize = 256;
/// Another hexadecimal digit is read only while the size so far is below this: 15 digits at most, leading zeros aside.
const SIZE_BEFORE_LAST_DIGIT: u64 = 1 << (4 * 14);
/// The largest trailer section.
const LARGEST_TRAILER: usize = 8 * 1024;
const BAD_TRAILERS: &str = "the trailers of the chunked body are malformed, or more than 128 fields or 8 KiB";

/// Which deviations are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkSyntax {
    /// None, and trailers are as well-formed as a head: for agents.
    Strict,
    /// White space after a size without an extension, and trailers that may be malformed: for upstreams.
    Lenient,
}

/// A request's body is malformed or may not go on, and some of it may have been sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RefusedBody(pub(crate) &'static str);

/// Finds the data and the end of a chunked body, whatever pieces the body comes in.
#[derive(Clone, Debug)]
pub(crate) struct ChunkScanner {
    syntax: ChunkSyntax,
    state: State,
    line: usize,
    size: u64,
    /// The lines of the trailer section so far.
    trailers: Vec<u8>,
}

/// The octets of framing at the beginning of a piece, and the octets of data after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) framing: usize,
    pub(crate) data: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first digit of a size.
    SizeStart,
    Size,
    /// White space between a size and the `;` of an extension.
    BeforeExtension,
    Extension,
    SizeLf,
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
}

impl ChunkScanner {
    pub(crate) fn new(syntax: ChunkSyntax) -> Self {
        Self { syntax, state: State::SizeStart, line: 0, size: 0, trailers: Vec::new() }
    }

    /// Returns why no more of a body is read, by what is wrong with it.
    pub(crate) fn error(&self, why: &'static str) -> io::Error {
        match self.syntax {
            ChunkSyntax::Strict => io::Error::other(RefusedBody(why)),
            ChunkSyntax::Lenient => unusable(why),
        }
    }

    /// Returns the trailer section of a body that is done, with its empty line.
    pub(crate) fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Scans a piece up to the end of its next run of data.
    ///
    /// # Errors
    /// The body is malformed.
    pub(crate) fn scan(&mut self, piece: &[u8]) -> Result<Step, &'static str> {
        let mut at = 0;
        while at < piece.len() && self.state != State::Done {
            if let State::Data { left } = self.state {
                let run = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len() - at);
                let left = left - run as u64;
                self.state = if left == 0 { State::DataCr } else { State::Data { left } };
                return Ok(Step { framing: at, data: run });
            }
            self.state = self.step(piece[at])?;
            if matches!(self.state, State::Trailer | State::TrailerLf | State::EndLf | State::Done)
                || self.state == State::TrailerStart && !self.trailers.is_empty()
            {
                self.trailers.push(piece[at]);
            }
            at += 1;
        }
        Ok(Step { framing: at, data: 0 })
    }

    /// Scans a whole piece or up to the end of the body, and returns how much of that is framing and how much is data.
    ///
    /// # Errors
    /// The body is malformed.
    pub(crate) fn scan_whole(&mut self, piece: &[u8]) -> Result<Step, &'static str> {
        let mut whole = Step { framing: 0, data: 0 };
        while whole.framing + whole.data < piece.len() && !self.is_done() {
            let step = self.scan(&piece[whole.framing + whole.data..])?;
            whole.framing += step.framing;
            whole.data += step.data;
        }
        Ok(whole)
    }

    fn step(&mut self, byte: u8) -> Result<State, &'static str> {
        self.line += 1;
        let lenient = self.syntax == ChunkSyntax::Lenient;
        match (self.state, byte) {
            (State::SizeStart | State::Size, b)
                if b.is_ascii_hexdigit()
                    && self.size < SIZE_BEFORE_LAST_DIGIT
                    && self.line <= LONGEST_SIZE_LINE =>
            {
                self.size = self.size * 16 + u64::from((b as char).to_digit(16).unwrap_or(0));
                Ok(State::Size)
            }
            (State::Size, b'\r') => Ok(State::SizeLf),
            (State::Size, b';') => Ok(State::Extension),
            (State::Size, b' ' | b'\t') if lenient => Ok(State::Extension),
            // RFC 9112 §7.1.1: white space may stand between a size and the `;` of an extension.
            (State::Size | State::BeforeExtension, b' ' | b'\t') if self.line <= LONGEST_SIZE_LINE => {
                Ok(State::BeforeExtension)
            }
            (State::BeforeExtension, b';') => Ok(State::Extension),
            (State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, b)
                if self.line <= LONGEST_SIZE_LINE && (b == b'\t' || (b >= b' ' && b != 0x7f)) =>
            {
                Ok(State::Extension)
            }
            (State::SizeLf, b'\n') => {
                let size = std::mem::take(&mut self.size);
                self.line = 0;
                Ok(if size == 0 { State::TrailerStart } else { State::Data { left: size } })
            }
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => {
                self.line = 0;
                Ok(State::SizeStart)
            }
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::EndLf, b'\n') if lenient => Ok(State::Done),
            (State::EndLf, b'\n') => {
                let section = self.trailers.strip_suffix(b"\r").unwrap_or_default();
                check_trailers(section).map(|()| State::Done).map_err(|_| BAD_TRAILERS)
            }
            (State::TrailerStart | State::Trailer, b)
                if b != b'\n' && b != b'\r' && self.line <= LARGEST_TRAILER =>
            {
                Ok(State::Trailer)
            }
            (State::Trailer, b'\r') => Ok(State::TrailerLf),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            (State::TrailerStart | State::Trailer | State::TrailerLf, _) if !self.trailers.is_empty() => {
                Err(BAD_TRAILERS)
            }
            _ => Err("the chunked body is malformed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_of(body: &[u8], syntax: ChunkSyntax, piece: usize) -> Result<Option<usize>, &'static str> {
        let mut scanner = ChunkScanner::new(syntax);
        let mut total = 0;
        for part in body.chunks(piece) {
            let step = scanner.scan_whole(part)?;
            total += step.framing + step.data;
            if scanner.is_done() {
                return Ok(Some(total));
            }
        }
        Ok(None)
    }

    proptest::proptest! {
        #[test]
        fn the_end_does_not_depend_on_the_pieces(sizes in proptest::collection::vec(1usize..40, 0..6), piece in 1usize..50) {
            let mut body = Vec::new();
            for size in sizes {
                body.extend(format!("{size:x}\r\n").bytes());
                body.extend(std::iter::repeat_n(b'\n', size));
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n\r\n");
            let end = body.len();
            body.extend(b"GET / HTTP/1.1\r\n");
            proptest::prop_assert_eq!(end_of(&body, ChunkSyntax::Strict, piece), Ok(Some(end)));
        }

        #[test]
        fn any_octets_are_survived(body: Vec<u8>, piece in 1usize..9) {
            let _ = end_of(&body, ChunkSyntax::Lenient, piece);
        }
    }

    #[test]
    fn an_agent_gets_no_leeway() {
        for body in [
            "5\nhello\r\n",
            "+5\r\nhello",
            "5 \r\nhello\r\n",
            "0 \r\n\r\n",
            "5 x\r\nhello\r\n",
            "5 5\r\nhello\r\n",
            "\r\n",
            "0x5\r\n",
            "fffffffffffffffff\r\n",
            "5\r\nhelloX",
        ] {
            assert!(end_of(body.as_bytes(), ChunkSyntax::Strict, 3).is_err(), "{body:?}");
        }
        assert!(end_of(b"5;x=y\r\nhello\r\n0\r\nX: y\r\n\r\n", ChunkSyntax::Lenient, 3).unwrap().is_some());
    }

    #[test]
    fn trailers_of_an_agent_are_as_well_formed_as_a_head() {
        let read = |section: &str, syntax| {
            let body = format!("5\r\nhello\r\n0\r\n{section}\r\n");
            end_of(body.as_bytes(), syntax, 3).map(|end| end == Some(body.len()))
        };
        let longest = format!("X:{}\r\n", "y".repeat(LARGEST_TRAILER - 2));
        for good in ["X: y\r\n", "X:\r\nX-Sum: \u{e9}\r\n", &"a: b\r\n".repeat(128), &longest] {
            assert_eq!(read(good, ChunkSyntax::Strict), Ok(true), "{good:?}");
        }
        let too_long = format!("X:{}\r\n", "y".repeat(LARGEST_TRAILER - 1));
        for bad in [
            " X: y\r\n",
            "X : y\r\n",
            ": y\r\n",
            "X\r\n",
            "X: y\0\r\n",
            "X: y\r\n z\r\n",
            "X: y\n",
            "X: y\rz\r\n",
            &"a: b\r\n".repeat(129),
            &too_long,
        ] {
            assert_eq!(read(bad, ChunkSyntax::Strict), Err(BAD_TRAILERS), "{bad:?}");
        }
        assert_eq!(read("X : y\r\n", ChunkSyntax::Lenient), Ok(true));
    }

    #[test]
    fn leading_zeros_are_no_digits_of_a_size() {
        for size in ["000", "00000000000000000000", &"0".repeat(LONGEST_SIZE_LINE)] {
            let body = format!("{size}\r\n\r\n");
            assert_eq!(end_of(body.as_bytes(), ChunkSyntax::Strict, 7), Ok(Some(body.len())), "{body:?}");
        }
        let body = "0000000000000000005\r\nhello\r\n0\r\n\r\n";
        assert_eq!(end_of(body.as_bytes(), ChunkSyntax::Strict, 7), Ok(Some(body.len())));
        for size in ["0000fffffffffffffff", "fffffffffffffff"] {
            assert_eq!(end_of(format!("{size}\r\nx").as_bytes(), ChunkSyntax::Strict, 7), Ok(None), "{size}");
        }
        for size in ["1000000000000000", "00001000000000000000", &"0".repeat(LONGEST_SIZE_LINE + 1)] {
            assert!(end_of(format!("{size}\r\n").as_bytes(), ChunkSyntax::Strict, 7).is_err(), "{size}");
        }
    }

    // RFC 9112 §7.1.1: what ends the line for one reader ends the chunk's data for none.
    #[test]
    fn an_extension_is_text_of_one_line_and_of_a_bounded_length() {
        let line = |extension: &str, syntax| {
            let body = format!("5;{extension}\r\nhello\r\n0\r\n\r\n");
            end_of(body.as_bytes(), syntax, 3).map(|end| end == Some(body.len()))
        };
        let longest = "x".repeat(LONGEST_SIZE_LINE - "5;".len());
        for syntax in [ChunkSyntax::Strict, ChunkSyntax::Lenient] {
            for good in ["", "x", "x=\"y z\"", "x\t=y", "~", "\u{e9}", &longest] {
                assert_eq!(line(good, syntax), Ok(true), "{good:?}");
            }
            for bad in ["\n", "x\n", "x\ry", "x\0", "x\u{1f}", "x\u{7f}", "\u{b}", &format!("{longest}x")] {
                assert!(line(bad, syntax).is_err(), "{bad:?}");
            }
        }
        for size in ["5 ", "5\t", "5 \t "] {
            let body = format!("{size}\r\nhello\r\n0\r\n\r\n");
            assert_eq!(end_of(body.as_bytes(), ChunkSyntax::Lenient, 3), Ok(Some(body.len())), "{size:?}");
        }
    }

    #[test]
    fn white_space_may_stand_before_an_extension() {
        for size in ["5 ; ext = 1", "5\t;x", "5 \t ;x=\"y\"", "5;x"] {
            let body = format!("{size}\r\nhello\r\n0 ;x\r\n\r\n");
            for syntax in [ChunkSyntax::Strict, ChunkSyntax::Lenient] {
                assert_eq!(end_of(body.as_bytes(), syntax, 3), Ok(Some(body.len())), "{body:?}");
            }
        }
        let long = format!("5{};x\r\nhello\r\n", " ".repeat(LONGEST_SIZE_LINE));
        assert!(end_of(long.as_bytes(), ChunkSyntax::Strict, 300).is_err());
    }
}
