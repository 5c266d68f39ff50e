//! The line: what goes over the standard streams of a container of ours, as frames of several channels.
//!
//! ```text
//! channel (1 octet)  length (4 octets, little-endian)  that many octets
//! ```
//! An engine gives a container's standard streams to whoever made it and to nobody else, wherever the engine is; nothing of
//! it is in an environment, on a command line or on a disk. Both ends are ours, but what is at the other one may have been
//! taken over: a frame has a bound, and a channel that is not known ends the line.

use std::io;

/// The longest frame.
pub const LONGEST_FRAME: usize = 1 << 20;
/// How many octets of input may be under way that were not taken: what a command does not read must not keep a signal back.
pub(crate) const WINDOW: usize = 256 << 10;
/// How much is moved at once.
pub(crate) const CHUNK: usize = 32 << 10;

const HEAD: usize = 5;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Channel {
    /// To the container: what it is to do, as JSON. The first frame.
    Begin = b'B',
    /// To the container: nothing but that the shim is there.
    Alive = b'.',
    /// To the agent: what it reads.
    Input = b'i',
    /// To the agent: there is nothing more to read.
    InputEnd = b'e',
    /// To the agent: a signal for the command.
    Signal = b's',
    /// To the agent: the size of its terminal.
    Size = b'z',
    /// To the agent: nobody reads its output any more, or its errors.
    Closed = b'c',
    /// From the agent: how many octets of input were taken.
    Taken = b't',
    /// From the agent: what it writes.
    Output = b'o',
    /// From the agent: what it writes to its standard error.
    Errors = b'r',
    /// From the agent: what happened.
    Event = b'v',
    /// To a companion: that its health is asked for, or not any more, as on a broker; from it: whether it is well.
    Probe = b'h',
    /// From the sidecar: it serves.
    Ready = b'R',
    /// From the sidecar: what it tells whoever watches the run.
    SidecarMessage = b'n',
    /// From the sidecar: a record.
    Record = b'a',
    /// From the sidecar: a question for the platform; to the sidecar: its answer.
    Platform = b'p',
    /// To the sidecar: what says that a credential changed.
    Generation = b'g',
    /// To the sidecar: the run is over; from it: it has told everything.
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

/// One frame, as it goes over the line. What is longer than a frame is cut into several.
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

/// Frames out of octets, however they are cut.
#[derive(Debug, Default)]
pub struct Frames {
    read: Vec<u8>,
    from: usize,
}

impl Frames {
    /// Takes what was read.
    pub fn feed(&mut self, octets: &[u8]) {
        if self.from > 0 && self.from >= self.read.len() / 2 {
            self.read.drain(..self.from);
            self.from = 0;
        }
        self.read.extend(octets);
    }

    /// The next whole frame.
    ///
    /// # Errors
    /// When the other end does not speak this.
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
