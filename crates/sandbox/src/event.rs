//! The events that init reports to its parent, each in one message.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use sys::cgroup::Usage;
use sys::descriptor;
use sys::process::Exit;

use crate::failure::Failure;
use crate::need::Need;

/// The longest message.
const LONGEST: usize = 8192;

/// How a set-up command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetUpEnd {
    /// It exited, or a signal ended it.
    Ended(Exit),
    /// It reached its timeout.
    TimedOut,
    /// It could not be executed, with this error number.
    NotExecuted(i32),
}

impl SetUpEnd {
    /// Whether it exited with 0.
    #[must_use]
    pub fn succeeded(self) -> bool {
        self == Self::Ended(Exit::Code(0))
    }
}

impl std::fmt::Display for SetUpEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(Exit::Code(code)) => write!(f, "exited {code}"),
            Self::Ended(Exit::Signal(signal)) => write!(f, "ended by signal {signal}"),
            Self::TimedOut => f.write_str("timed out"),
            Self::NotExecuted(errno) => {
                write!(f, "could not be executed: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

/// An event that init reports to its parent.
#[derive(Debug)]
pub enum Event {
    /// The master side of the command's terminal.
    Terminal(OwnedFd),
    /// The command runs.
    Started {
        /// Notices about isolation that is weaker than planned.
        notices: Vec<String>,
        /// The workspace as it is shown, from an init that has covered what is protected in it.
        shown: Option<OwnedFd>,
    },
    /// A set-up command has ended.
    SetUp {
        /// Its index, from 0 on.
        number: u32,
        /// How it ended.
        end: SetUpEnd,
        /// How long it took.
        took: Duration,
    },
    /// A step failed. Nothing was run.
    Failed(Failure),
    /// The command could not be executed.
    NotExecuted {
        /// The error number.
        errno: i32,
    },
    /// The sandbox's resource usage, from a backend whose control group the parent cannot read.
    Used(Usage),
    /// The command has ended.
    Ended(Exit),
}

impl Event {
    pub(crate) fn send(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (message, fds) = self.message();
        descriptor::send(socket, &message, &fds)
    }

    /// Encodes the event as a message, with its descriptors.
    pub(crate) fn message(&self) -> (Vec<u8>, Vec<BorrowedFd<'_>>) {
        let fields = |list: &[&str]| list.join("\0").into_bytes();
        let number = |n: i32| n.to_le_bytes().to_vec();
        let (kind, body, fds): (u8, Vec<u8>, Vec<BorrowedFd<'_>>) = match self {
            Self::Terminal(master) => (b'T', Vec::new(), vec![master.as_fd()]),
            Self::Started { notices, shown } => {
                let notices = notices.iter().map(String::as_str).collect::<Vec<_>>();
                (b'S', fields(&notices), shown.iter().map(AsFd::as_fd).collect())
            }
            // The texts come last, since only they can be too long.
            Self::Failed(Failure { step, cause, need }) => {
                let sign = Need::sign(*need).to_string();
                (b'F', fields(&[&sign, step, cause]), Vec::new())
            }
            Self::NotExecuted { errno } => (b'X', number(*errno), Vec::new()),
            Self::SetUp { number, end, took } => (b'P', set_up(*number, *end, *took), Vec::new()),
            Self::Used(Usage { memory_peak, out_of_memory, short_outside, pids_refused }) => {
                let numbers =
                    [memory_peak.unwrap_or(0), *out_of_memory, u64::from(*short_outside), *pids_refused];
                (b'U', numbers.iter().flat_map(|n| n.to_le_bytes()).collect(), Vec::new())
            }
            Self::Ended(Exit::Code(code)) => (b'E', number(*code), Vec::new()),
            Self::Ended(Exit::Signal(signal)) => (b'K', number(*signal), Vec::new()),
        };
        let mut message = vec![kind];
        message.extend(body);
        message.truncate(LONGEST);
        (message, fds)
    }

    /// Receives the next event. Returns `None` if init is gone.
    ///
    /// # Errors
    /// When `recvmsg(2)` fails, or the message is no event.
    pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let mut buffer = [0; LONGEST];
        let (message, fds) = descriptor::receive(socket, &mut buffer)?;
        if message.is_empty() { Ok(None) } else { Self::parse(message, fds).map(Some) }
    }

    /// Decodes a message.
    pub(crate) fn parse(message: &[u8], mut fds: Vec<OwnedFd>) -> io::Result<Self> {
        let Some((kind, body)) = message.split_first() else { return Err(io::ErrorKind::InvalidData.into()) };
        let number = || {
            body.try_into().map(i32::from_le_bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
        };
        let mut fields = String::from_utf8_lossy(body).split('\0').map(str::to_owned).collect::<Vec<_>>();
        Ok(match kind {
            b'T' => Self::Terminal(fds.pop().ok_or(io::ErrorKind::InvalidData)?),
            b'S' => {
                fields.retain(|f| !f.is_empty());
                Self::Started { notices: fields, shown: fds.pop() }
            }
            b'F' => {
                let mut fields = fields.into_iter();
                let mut next = || fields.next().unwrap_or_default();
                let (sign, step, cause) = (next(), next(), next());
                Self::Failed(Failure { step, cause, need: Need::of_sign(&sign) })
            }
            b'X' => Self::NotExecuted { errno: number()? },
            b'P' => parse_set_up(body).ok_or(io::ErrorKind::InvalidData)?,
            b'U' => {
                let mut numbers = body.chunks_exact(8).map(|n| n.try_into().map_or(0, u64::from_le_bytes));
                let mut next = || numbers.next().ok_or(io::ErrorKind::InvalidData);
                let (peak, out_of_memory) = (next()?, next()?);
                let (short_outside, pids_refused) = (next()? != 0, next()?);
                let memory_peak = Some(peak).filter(|p| *p > 0);
                Self::Used(Usage { memory_peak, out_of_memory, short_outside, pids_refused })
            }
            b'E' => Self::Ended(Exit::Code(number()?)),
            b'K' => Self::Ended(Exit::Signal(number()?)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

/// Encodes the end of a set-up command: its index, its duration in milliseconds, the kind of its end, and the number for that kind.
fn set_up(number: u32, end: SetUpEnd, took: Duration) -> Vec<u8> {
    let (kind, value) = match end {
        SetUpEnd::Ended(Exit::Code(code)) => (b'E', code),
        SetUpEnd::Ended(Exit::Signal(signal)) => (b'K', signal),
        SetUpEnd::NotExecuted(errno) => (b'X', errno),
        SetUpEnd::TimedOut => (b'T', 0),
    };
    let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    [&number.to_le_bytes()[..], &milliseconds.to_le_bytes(), &[kind], &value.to_le_bytes()].concat()
}

fn parse_set_up(body: &[u8]) -> Option<Event> {
    let (number, rest) = body.split_first_chunk()?;
    let (milliseconds, rest) = rest.split_first_chunk()?;
    let (kind, value) = rest.split_first()?;
    let value = i32::from_le_bytes(value.try_into().ok()?);
    let end = match kind {
        b'E' => SetUpEnd::Ended(Exit::Code(value)),
        b'K' => SetUpEnd::Ended(Exit::Signal(value)),
        b'X' => SetUpEnd::NotExecuted(value),
        b'T' => SetUpEnd::TimedOut,
        _ => return None,
    };
    let took = Duration::from_millis(u64::from_le_bytes(*milliseconds));
    Some(Event::SetUp { number: u32::from_le_bytes(*number), end, took })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_set_up_command_ended_is_heard_as_it_was_told() {
        let ends = [
            SetUpEnd::Ended(Exit::Code(-1)),
            SetUpEnd::Ended(Exit::Signal(9)),
            SetUpEnd::NotExecuted(13),
            SetUpEnd::TimedOut,
        ];
        for end in ends {
            let told = Event::SetUp { number: 15, end, took: Duration::from_millis(70_000) };
            let (message, _) = told.message();
            match Event::parse(&message, Vec::new()) {
                Ok(Event::SetUp { number: 15, end: heard, took }) => {
                    assert_eq!((heard, took.as_secs()), (end, 70));
                }
                other => panic!("{other:?}"),
            }
            assert!((1..message.len()).all(|short| Event::parse(&message[..short], Vec::new()).is_err()));
        }
    }
}
