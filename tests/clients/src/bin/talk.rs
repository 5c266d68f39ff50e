//! `talk ADDRESS ROWS ANSWERS`: sends each row's octets to ADDRESS on a new connection, and writes down the answer and the world's records
//! of that time. It runs inside the world and judges nothing.
//!
//! A row is `{"id", "send", "pause_at"?, "tables"?, "answers"?, "settle"?, "reaches"?}`: the octets as characters of the same number, how
//! many of them go before a pause, the addresses of names from now on (`$TALK_TABLES`), how many responses to wait for, whether to wait
//! until no more is recorded, and whether to wait until a server records a connection. An answer is `{"id", "received", "closed", "ms",
//! "from", "to"}`: what came, whether the other side closed the connection before the time was over, and the last two offsets in
//! `$WORLD_RECORDS`.

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use serde_json::{Value, json};

/// How long ADDRESS may take to listen, and to answer one row.
const LISTENING: Duration = Duration::from_secs(20);
const ANSWERED: Duration = Duration::from_secs(5);
/// How long a row pauses: long enough for what went before to be read alone.
const PAUSE: Duration = Duration::from_millis(30);
/// How much of an answer is kept, in octets.
const KEPT: usize = 16 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, rows, answers] = arguments.as_slice() else {
        return Err("talk ADDRESS ROWS ANSWERS".into());
    };
    let records: PathBuf = env::var_os("WORLD_RECORDS").ok_or("WORLD_RECORDS is not set")?.into();
    let tables: Option<PathBuf> = env::var_os("TALK_TABLES").map(PathBuf::from);
    let length = || fs::metadata(&records).map(|file| file.len()).unwrap_or(0);
    await_listener(address)?;
    let mut said = String::new();
    for line in fs::read_to_string(rows)?.lines() {
        let row: Value = serde_json::from_str(line)?;
        if let (Some(path), Some(names)) = (&tables, row.get("tables")) {
            let whole = path.with_extension("talk");
            fs::write(&whole, names.to_string())?;
            fs::rename(&whole, path)?;
        }
        let octets: Vec<u8> = row["send"]
            .as_str()
            .ok_or("a row says nothing")?
            .chars()
            .map(|c| u8::try_from(u32::from(c)))
            .collect::<Result<_, _>>()?;
        let (from, begun) = (length(), Instant::now());
        let pause_at = row["pause_at"].as_u64().map(usize::try_from).transpose()?.unwrap_or(octets.len());
        let parts = octets.split_at(pause_at);
        let (received, closed) = converse(address, parts, row["answers"].as_u64().unwrap_or(1))?;
        let ms = u64::try_from(begun.elapsed().as_millis())?;
        if row["reaches"] == true && received.starts_with(b"HTTP/1.1 200 ") {
            await_visit(&records, from).map_err(|error| format!("{line}: {error}"))?;
        }
        if row["settle"] == true {
            settle(length);
        }
        let received: String = received.into_iter().take(KEPT).map(char::from).collect();
        said += &json!({ "id": row["id"], "received": received, "closed": closed, "ms": ms, "from": from, "to": length() })
            .to_string();
        said.push('\n');
    }
    fs::write(answers, said)?;
    Ok(())
}

/// Waits until nothing is recorded for a moment: the records of a cut connection come a little later.
fn settle(length: impl Fn() -> u64) {
    let (mut last, mut rests) = (length(), 0);
    for _ in 0..100 {
        sleep(Duration::from_millis(10));
        let now = length();
        rests = if now == last { rests + 1 } else { 0 };
        last = now;
        if rests == 3 {
            return;
        }
    }
}

/// Waits until a connection is recorded. A client's connection is complete before the server has accepted it.
fn await_visit(records: &Path, from: u64) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let from = usize::try_from(from)?;
    loop {
        let seen = fs::read(records)?;
        if String::from_utf8_lossy(&seen[from..]).contains(r#""event":"connect""#) {
            return Ok(());
        }
        if begun.elapsed() > ANSWERED {
            return Err("no server recorded the connection".into());
        }
        sleep(Duration::from_millis(2));
    }
}

fn await_listener(address: &str) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(address) {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > LISTENING => return Err(format!("{address}: {error}").into()),
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
}

/// Sends the octets, with a pause between the parts if there are two, and reads until the answer is whole, the other side closes, or the
/// time is over. Tells whether it closed.
fn converse(
    address: &str,
    (octets, rest): (&[u8], &[u8]),
    responses: u64,
) -> Result<(Vec<u8>, bool), Box<dyn Error>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let deadline = Instant::now() + ANSWERED;
    let mut received = Vec::new();
    // The other side may refuse before it has read everything.
    let _ = stream.write_all(octets);
    if !rest.is_empty() {
        sleep(PAUSE);
        let _ = stream.write_all(rest);
    }
    let (mut buffer, mut closed) = ([0; 4096], false);
    while !closed && !are_whole(&received, responses) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => closed = true,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(_) => closed = true,
        }
    }
    Ok((received, closed))
}

/// Whether that many responses have been received whole. The end of the connection ends one without a length.
fn are_whole(received: &[u8], responses: u64) -> bool {
    let mut rest = received;
    (0..responses).all(|_| {
        let after = after_response(rest);
        rest = after.unwrap_or_default();
        after.is_some()
    })
}

/// Returns the octets after the first response.
fn after_response(received: &[u8]) -> Option<&[u8]> {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
    let body = &received[end..];
    if let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length:")) {
        return body.get(length.trim().parse().ok()?..);
    }
    if head.contains("transfer-encoding") {
        let last = body.windows(5).position(|five| five == b"0\r\n\r\n")?;
        return body.get(last + 5..);
    }
    // A response that accepts a tunnel has no body.
    Some(body)
}
