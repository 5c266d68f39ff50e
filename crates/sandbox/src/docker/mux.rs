//! The protocol on the standard streams of our containers: frames of several channels, multiplexed.
//!
//! ```text
//! channel (1 octet)  length (4 octets, little-endian)  that many octets
//! ```
//! An engine gives a container's standard streams to its maker and to nobody else, wherever the engine is. Nothing of them is in
//! an environment, on a command line or on a disk. Both ends run our binary, but the other end may have been taken over: the
//! length of a frame is bounded, and an unknown channel is an error.

use std::io;

use rustix::termios::Winsize;

/// The longest payload of a frame.
pub const LONGEST_FRAME: usize = 1 << 20;
/// How many octets of input may be in flight: input that a command does not read must not keep a signal back.
pub(crate) const WINDOW: usize = 256 << 10;
/// How many octets are read at once.
pub(crate) const CHUNK: usize = 32 << 10;

const HEAD: usize = 5;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// To the container: its brief, as JSON. The first frames.
    Begin = b'B',
    /// To the container: a heartbeat. From a member of the pool: its answer.
    Alive = b'.',
    /// To the agent: standard input.
    Input = b'i',
    /// To the agent: the end of standard input.
    InputEnd = b'e',
    /// To the agent: a signal for the command.
    Signal = b's',
    /// To the agent: the size of its terminal.
    Size = b'z',
    /// To the agent: nobody reads its standard output, or its standard error, any more.
    Closed = b'c',
    /// From the agent: how many octets of input the command took.
    Taken = b't',
    /// From the agent: standard output.
    Output = b'o',
    /// From the agent: standard error.
    Errors = b'r',
    /// From the agent: an event of the supervisor.
    Event = b'v',
    /// To a companion: a request of the socket broker, to begin or stop probing its health. From it: whether it is well.
    Probe = b'h',
    /// From the sidecar: it serves.
    Ready = b'R',
    /// From the sidecar: a message for the process that watches the run.
    SidecarMessage = b'n',
    /// From the sidecar: an audit record.
    Record = b'a',
    /// From the sidecar: a request to the platform. To the sidecar: the answer.
    Platform = b'p',
    /// To the sidecar: the generation of the credentials, when one changed.
    Generation = b'g',
    /// To the sidecar: the run is over. From it: everything is sent. To the agent: its container may end.
    Stop = b'x',
}

impl Channel {
    fn of(octet: u8) -> Option<Self> {
        use Channel::{
            Alive, Begin, Closed, Errors, Event, Generation, Input, InputEnd, Output, Platform, Probe, Ready,
            Record, SidecarMessage, Signal, Size, Stop, Taken,
        };
        let all = [
            Begin,
            Alive,
            Input,
            InputEnd,
            Signal,
            Size,
            Closed,
            Taken,
            Output,
            Errors,
            Event,
            Probe,
            Ready,
            SidecarMessage,
            Record,
            Platform,
            Generation,
            Stop,
        ];
        all.into_iter().find(|channel| *channel as u8 == octet)
    }
}

/// Encodes a payload as a frame, or as several if it is longer than [`LONGEST_FRAME`].
#[must_use]
pub fn frame(channel: Channel, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + HEAD);
    let mut rest = payload;
    loop {
        let (now, later) = rest.split_at(rest.len().min(LONGEST_FRAME));
        out.push(channel as u8);
        out.extend((now.len() as u32).to_le_bytes());
        out.extend(now);
        rest = later;
        if rest.is_empty() {
            return out;
        }
    }
}

/// A decoder of frames, fed with octets cut anywhere.
#[derive(Debug, Default)]
pub struct Frames {
    read: Vec<u8>,
    from: usize,
}

impl Frames {
    /// Adds octets that were read.
    pub fn feed(&mut self, octets: &[u8]) {
        if self.from > 0 && self.from >= self.read.len() / 2 {
            self.read.drain(..self.from);
            self.from = 0;
        }
        self.read.extend(octets);
    }

    /// Returns the next whole frame.
    ///
    /// # Errors
    /// When the channel is unknown, or the length above [`LONGEST_FRAME`].
    pub fn next_frame(&mut self) -> io::Result<Option<(Channel, &[u8])>> {
        let rest = &self.read[self.from..];
        let Some((head, body)) = rest.split_at_checked(HEAD) else { return Ok(None) };
        let bad = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
        let channel = Channel::of(head[0]).ok_or_else(|| bad("the line carries something else"))?;
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if length > LONGEST_FRAME {
            return Err(bad("a frame is longer than any of ours"));
        }
        if body.len() < length {
            return Ok(None);
        }
        let start = self.from + HEAD;
        self.from = start + length;
        Ok(Some((channel, &self.read[start..start + length])))
    }
}

/// Parses a terminal's size: rows and columns, two octets each.
pub(super) fn size_of(payload: &[u8]) -> Option<Winsize> {
    let [a, b, c, d] = payload.try_into().ok()?;
    let (ws_row, ws_col) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    Some(Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let whole = [
            frame(Channel::Begin, b"{}"),
            frame(Channel::InputEnd, b""),
            frame(Channel::Output, &[7; 70_000]),
        ]
        .concat();
        for cut in [1, 2, 3, 5, 7, 4096, whole.len()] {
            let mut frames = Frames::default();
            let mut seen = Vec::new();
            for piece in whole.chunks(cut) {
                frames.feed(piece);
                while let Some((channel, payload)) = frames.next_frame().unwrap() {
                    seen.push((channel, payload.len()));
                }
            }
            assert_eq!(
                seen,
                [(Channel::Begin, 2), (Channel::InputEnd, 0), (Channel::Output, 70_000)],
                "{cut}"
            );
        }
    }

    #[test]
    fn what_is_longer_than_a_frame_is_several() {
        let mut frames = Frames::default();
        frames.feed(&frame(Channel::Record, &vec![1; LONGEST_FRAME + 1]));
        assert_eq!(frames.next_frame().unwrap().map(|(_, p)| p.len()), Some(LONGEST_FRAME));
        assert_eq!(frames.next_frame().unwrap().map(|(_, p)| p.len()), Some(1));
        assert!(frames.next_frame().unwrap().is_none());
    }

    #[test]
    fn something_else_ends_the_line() {
        for wrong in [&b"HTTP/1.1 200"[..], b"o\xff\xff\xff\xff", b"\0\0\0\0\0"] {
            let mut frames = Frames::default();
            frames.feed(wrong);
            assert!(frames.next_frame().is_err(), "{wrong:?}");
        }
    }
}
