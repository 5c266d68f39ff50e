//! Octets both ways. A buffer is borrowed only while there is something to read, so an idle connection holds none;
//! a busy one is handed to the kernel, which moves the octets through a pipe without showing them to us.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::exchange::{Exchange, Flow, Pinned};
use crate::http::Buffered;
use crate::upstream::Dialled;

/// The size of the shared buffer.
const BUFFER: usize = 64 * 1024;
/// How many full buffers in a row make a connection busy.
const BUSY: u32 = 4;
/// How long the other side of a connection may rest when one has ended: it would hold its place for nobody.
const HALF_CLOSED: Duration = Duration::from_secs(600);
/// How much a pipe may hold.
const PIPE: usize = 1 << 20;

thread_local! {
    /// One buffer for all connections: it is never held across a wait.
    static SHARED: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Copies both ways until both sides have ended, or nothing has moved for `idle`.
pub(super) async fn both_ways(
    mut exchange: Exchange<Pinned>,
    mut agent: Buffered<TcpStream>,
    mut upstream: Dialled,
    idle: Duration,
) -> io::Result<()> {
    let _ = agent.reader.set_nodelay(true);
    let ahead = std::mem::take(&mut agent.ahead);
    if !ahead.is_empty() {
        upstream.write_all(&ahead).await?;
    }
    let flow = Flow::of(exchange.record(), ahead.len());
    drop(ahead);
    let moved = Cell::new(Instant::now());
    let outcome = match upstream {
        Dialled::Tcp(upstream) => {
            between(&agent.reader, &upstream, (&flow.sent, &flow.received), &moved, idle).await
        }
        // Inside a proxy's TLS the octets have to pass by here.
        Dialled::Tls(upstream) => {
            let (from_upstream, to_upstream) = tokio::io::split(upstream);
            let (from_agent, to_agent) = agent.reader.into_split();
            tokio::select! {
                outcome = async {
                    tokio::try_join!(
                        through(from_agent, to_upstream, &flow.sent, &moved),
                        through(from_upstream, to_agent, &flow.received, &moved),
                    )
                } => outcome.map(drop),
                () = rest(&moved, idle) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
    };
    drop(flow);
    if let Err(error) = &outcome
        && error.kind() == io::ErrorKind::TimedOut
    {
        exchange.record().fail("nothing moved for too long");
    }
    outcome
}

/// Copies both ways between two connections, and counts what goes to the second and what comes from it.
pub(super) async fn between(
    first: &TcpStream,
    second: &TcpStream,
    (there, back): (&Cell<u64>, &Cell<u64>),
    moved: &Cell<Instant>,
    idle: Duration,
) -> io::Result<()> {
    let ended = Cell::new(false);
    tokio::select! {
        outcome = async {
            tokio::try_join!(
                one_way(first, second, there, moved, &ended),
                one_way(second, first, back, moved, &ended),
            )
        } => outcome.map(drop),
        () = rest(moved, idle) => Err(io::ErrorKind::TimedOut.into()),
        () = rest_after_end(moved, &ended) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Ends when one side has ended and nothing has moved since for [`HALF_CLOSED`].
async fn rest_after_end(moved: &Cell<Instant>, ended: &Cell<bool>) {
    loop {
        rest(moved, HALF_CLOSED).await;
        if ended.get() {
            return;
        }
        // Both are there and say nothing: that may last.
        tokio::time::sleep(HALF_CLOSED).await;
    }
}

/// Copies one way between any two streams.
async fn through(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
) -> io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
        count.set(count.get() + read as u64);
        moved.set(Instant::now());
    }
}

/// Ends when nothing has moved for `idle`.
async fn rest(moved: &Cell<Instant>, idle: Duration) {
    loop {
        let until = moved.get() + idle;
        if Instant::now() >= until {
            return;
        }
        tokio::time::sleep_until(until).await;
    }
}

async fn one_way(
    from: &TcpStream,
    to: &TcpStream,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
    ended: &Cell<bool>,
) -> io::Result<()> {
    let mut full = 0;
    loop {
        if full >= BUSY {
            full = 0;
            if splice_while_busy(from, to, count, moved).await? == 0 {
                break;
            }
        }
        from.readable().await?;
        let (read, left) = match SHARED.with_borrow_mut(|buffer| read_and_write(from, to, buffer)) {
            Ok(step) => step,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        if read == 0 {
            break;
        }
        full = if read == BUFFER { full + 1 } else { 0 };
        write_left(to, &left).await?;
        count.set(count.get() + read as u64);
        moved.set(Instant::now());
    }
    moved.set(Instant::now());
    if ended.replace(true) {
        return Ok(()); // both ways have: the connections are closed now
    }
    rustix::net::shutdown(to, rustix::net::Shutdown::Write).or_else(|errno| match errno {
        rustix::io::Errno::NOTCONN => Ok(()),
        other => Err(other.into()),
    })
}

/// Reads once and writes what it can at once; what is left over is returned.
fn read_and_write(from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> io::Result<(usize, Vec<u8>)> {
    let read = from.try_read(buffer)?;
    if read == 0 {
        return Ok((0, Vec::new()));
    }
    let written = match to.try_write(&buffer[..read]) {
        Ok(written) => written,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => return Err(error),
    };
    Ok((read, buffer[written..read].to_vec()))
}

async fn write_left(to: &TcpStream, mut left: &[u8]) -> io::Result<()> {
    while !left.is_empty() {
        to.writable().await?;
        match to.try_write(left) {
            Ok(written) => left = &left[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Moves octets by `splice(2)` until the source ends; how many were moved last, 0 at the end.
async fn splice_while_busy(
    from: &TcpStream,
    to: &TcpStream,
    count: &Cell<u64>,
    moved: &Cell<Instant>,
) -> io::Result<usize> {
    let (out, into) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let room = rustix::pipe::fcntl_setpipe_size(&into, PIPE).unwrap_or(BUFFER);
    loop {
        let read = splice_when(from, Interest::READABLE, || splice(from, &into, room)).await?;
        if read == 0 {
            return Ok(0);
        }
        let mut left = read;
        while left > 0 {
            left -= splice_when(to, Interest::WRITABLE, || splice_out(&out, to, left)).await?;
        }
        count.set(count.get() + read as u64);
        moved.set(Instant::now());
    }
}

fn splice(from: &TcpStream, into: &OwnedFd, room: usize) -> io::Result<usize> {
    Ok(rustix::pipe::splice(from, None, into, None, room, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?)
}

fn splice_out(out: &OwnedFd, to: &TcpStream, left: usize) -> io::Result<usize> {
    Ok(rustix::pipe::splice(out, None, to, None, left, SpliceFlags::NONBLOCK | SpliceFlags::MOVE)?)
}

async fn splice_when(
    socket: &TcpStream,
    interest: Interest,
    mut step: impl FnMut() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        socket.ready(interest).await?;
        match socket.try_io(interest, &mut step) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}
