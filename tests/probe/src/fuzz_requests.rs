//! A hostile client: sends prepared requests to the planes of a sidecar, reads each answer to its end, and searches it for secrets.
//! It makes up nothing itself, so the same input can be sent again; it keeps only what it found and counted.
//!
//! The file has one line of JSON for all planes, `[{"name", "at", "opening", "lines"}, …]`, and one for each request, `{"to", "method",
//! "wild", "send"}`. A tame request has one answer, on a connection that is kept; a wild one may have any number, and has a new connection.
//! Characters are octets (ISO 8859-1). A placeholder is written as text of its length: the variable's name, padded with dots.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lockgate_needs::{TELLING, unmasked};
use serde_json::{Value, json};

use crate::Probe;
use crate::canary::forms;
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[Probe {
    name: "fuzz-requests",
    usage: "MASKED-HEX[,MASKED-HEX…] FILE (done: a secret was told; absent: none was)",
    run: fuzz,
}];

/// More than there are processors: an upstream is slow.
const THREADS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(10);
/// How many findings and missed answers each thread shows.
const SHOWN: usize = 5;
/// A masked credential.
const STARS: &[u8] = b"****************";
/// The largest answer.
const LARGEST: usize = 8 << 20;

fn fuzz(arguments: &[String]) -> Option<Report> {
    let [masked, file] = arguments else { return None };
    let secrets: Vec<Vec<u8>> = masked.split(',').map(unmasked).collect::<Option<_>>()?;
    let search = Search::of(&secrets);
    let text = fs::read_to_string(file).ok()?;
    let (first, requests) = text.split_once('\n')?;
    let planes: Value = serde_json::from_str(first).ok()?;
    let planes: Vec<Plane> = planes.as_array()?.iter().map(Plane::of).collect::<Option<_>>()?;
    let tallies: Vec<Vec<Tally>> = std::thread::scope(|scope| {
        let client = |thread| {
            let (planes, search) = (&planes, &search);
            move || Client::new(planes, search).say_all(requests.lines().skip(thread).step_by(THREADS))
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(client(thread))).collect();
        threads.into_iter().map(|thread| thread.join().ok()).collect::<Option<_>>()
    })?;
    let mut told = serde_json::Map::new();
    let mut found = false;
    for (at, plane) in planes.iter().enumerate() {
        let sum = tallies.iter().fold(Tally::default(), |sum, of_thread| sum.and(&of_thread[at]));
        found |= sum.counts.contains_key("found");
        told.insert(plane.name.clone(), json!({ "counts": sum.counts, "shown": sum.shown }));
    }
    Some(if found { Report::done(told) } else { Report::absent(told) })
}

struct Plane {
    name: String,
    dial: Dial,
    /// Sent first on each connection, and answered.
    opening: Vec<u8>,
    /// Requests and answers are lines of JSON.
    lines: bool,
}

type Dial = Box<dyn Fn() -> io::Result<UnixStream> + Sync>;

impl Plane {
    fn of(text: &Value) -> Option<Self> {
        let at = text["at"].as_str()?;
        let dial: Dial = if let Some(path) = at.strip_prefix("unix:").map(str::to_owned) {
            Box::new(move || UnixStream::connect(&path))
        } else {
            let at = at.to_socket_addrs().ok()?.next()?;
            Box::new(move || Ok(OwnedFd::from(TcpStream::connect_timeout(&at, PATIENCE)?).into()))
        };
        let (name, opening) = (text["name"].as_str()?.to_owned(), text["opening"].as_str()?.into());
        Some(Self { name, dial, opening, lines: text["lines"].as_bool()? })
    }
}

/// One thread's connections and results.
struct Client<'a> {
    planes: &'a [Plane],
    search: &'a Search,
    placeholders: Vec<(String, String)>,
    kept: Vec<Option<Wire>>,
    told: Vec<Tally>,
}

impl<'a> Client<'a> {
    fn new(planes: &'a [Plane], search: &'a Search) -> Self {
        let placeholders = std::env::vars().filter(|(_, value)| value.starts_with("lgph_"));
        let placeholders = placeholders.map(|(name, value)| (format!("{name:.<0$}", value.len()), value));
        let (kept, told) = planes.iter().map(|_| (None, Tally::default())).unzip();
        Self { planes, search, placeholders: placeholders.collect(), kept, told }
    }

    fn say_all<'b>(mut self, requests: impl Iterator<Item = &'b str>) -> Vec<Tally> {
        for line in requests {
            let Ok(request) = serde_json::from_str::<Value>(line) else { continue };
            let at = request["to"].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or(0);
            let mut send = request["send"].as_str().unwrap_or_default().to_owned();
            for (standin, placeholder) in &self.placeholders {
                send = send.replace(standin, placeholder);
            }
            let octets: Vec<u8> = send.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect();
            let method = request["method"].as_str().unwrap_or_default();
            self.told[at].add("sent", 1);
            let (heard, bodies) = match request["wild"].as_bool() {
                Some(true) => self.wildly(at, method, &octets),
                _ => self.tamely(at, method, &octets),
            };
            let masked = |text: &Vec<u8>| text.windows(STARS.len()).any(|window| window == STARS);
            self.told[at].add("masked", u64::from(masked(&heard) || masked(&bodies)));
            for text in [&heard, &bodies] {
                if let Some(form) = self.search.look(text) {
                    let answer = String::from_utf8_lossy(&text[..text.len().min(4000)]).into_owned();
                    self.told[at].add("found", 1);
                    self.told[at].shown.insert(0, json!({ "form": form, "request": line, "answer": answer }));
                }
            }
        }
        self.told
    }

    /// Sends one request with one answer. Returns everything received, and the body without framing.
    fn tamely(&mut self, at: usize, method: &str, octets: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (plane, told, mut heard) = (&self.planes[at], &mut self.told[at], Vec::new());
        // A kept connection may have been closed meanwhile; a new one may not.
        for kept in [self.kept[at].take(), None] {
            let is_new = kept.is_none();
            let mut wire = match kept.map_or_else(|| Wire::dial(plane), Ok) {
                Ok(wire) => wire,
                Err(error) => {
                    told.missed(&error, octets, &heard);
                    break;
                }
            };
            // The sidecar refuses some requests before it has read them to the end, and still answers.
            let _ = wire.link.write_all(octets);
            let answer = wire.answer(method, plane.lines);
            while answer.as_ref().is_ok_and(|answer| answer.last) && wire.fill().is_ok() {}
            heard.append(&mut wire.heard);
            match answer {
                Ok(answer) => {
                    told.answered(&answer);
                    if !answer.last && method != "CONNECT" && wire.at == heard.len() {
                        wire.at = 0;
                        self.kept[at] = Some(wire);
                    }
                    return (heard, answer.body);
                }
                Err(error) if is_new || !heard.is_empty() || is_silence(&error) => {
                    told.missed(&error, octets, &heard);
                    break;
                }
                Err(_) => {}
            }
        }
        (heard, Vec::new())
    }

    /// Sends octets, and returns everything until the end.
    fn wildly(&mut self, at: usize, method: &str, octets: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (plane, told, mut bodies) = (&self.planes[at], &mut self.told[at], Vec::new());
        let mut wire = match Wire::dial(plane) {
            Ok(wire) => wire,
            Err(error) => {
                told.missed(&error, octets, &[]);
                return (bodies.clone(), bodies);
            }
        };
        let _ = wire.link.write_all(octets).and_then(|()| wire.link.shutdown(Shutdown::Write));
        let mut method = method;
        let error = loop {
            match wire.answer(method, plane.lines) {
                Ok(answer) => {
                    told.answered(&answer);
                    bodies.extend(answer.body);
                }
                Err(error) => break error,
            }
            method = "GET";
        };
        // If answers cannot be told apart, the rest is read undivided.
        while !is_silence(&error) && wire.fill().is_ok() {}
        if is_silence(&error) {
            told.missed(&error, octets, &wire.heard);
        }
        (wire.heard, bodies)
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A connection and everything received over it.
struct Wire {
    /// A socket of either family: the operations on the stream are the same.
    link: UnixStream,
    heard: Vec<u8>,
    /// How far it is parsed.
    at: usize,
}

struct Answer {
    status: u64,
    /// The answer is an upstream's, and not the sidecar's.
    upstream: bool,
    /// The answer is compressed, so a search in it finds nothing.
    packed: bool,
    /// No other answer follows on this connection.
    last: bool,
    body: Vec<u8>,
}

impl Wire {
    fn dial(plane: &Plane) -> io::Result<Self> {
        let link = (plane.dial)()?;
        link.set_write_timeout(Some(PATIENCE))?;
        link.set_read_timeout(Some(PATIENCE))?;
        let mut wire = Self { link, heard: Vec::new(), at: 0 };
        if !plane.opening.is_empty() {
            wire.link.write_all(&plane.opening)?;
            wire.answer("CONNECT", false)?;
        }
        Ok(wire)
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        let length = self.link.read(&mut piece)?;
        if length == 0 || self.heard.len() > LARGEST {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.heard.extend(&piece[..length]);
        Ok(())
    }

    /// Returns the octets before `mark`, and consumes both.
    fn until(&mut self, mark: &[u8]) -> io::Result<Vec<u8>> {
        let mut from = self.at;
        loop {
            if let Some(found) = self.heard[from..].windows(mark.len()).position(|window| window == mark) {
                let before = self.heard[self.at..from + found].to_vec();
                self.at = from + found + mark.len();
                return Ok(before);
            }
            from = self.at.max((self.heard.len() + 1).saturating_sub(mark.len()));
            self.fill()?;
        }
    }

    fn exactly(&mut self, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
        while self.heard.len() - self.at < length {
            self.fill()?;
        }
        into.extend(&self.heard[self.at..self.at + length]);
        self.at += length;
        Ok(())
    }

    fn answer(&mut self, method: &str, lines: bool) -> io::Result<Answer> {
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        if lines {
            let line = self.until(b"\n")?;
            return Answer::of_line(&line).ok_or_else(odd);
        }
        let (status, head) = loop {
            let head = String::from_utf8_lossy(&self.until(b"\r\n\r\n")?).to_ascii_lowercase();
            let status: u64 = head.get(9..12).and_then(|digits| digits.parse().ok()).ok_or_else(odd)?;
            // Another answer follows an interim one (RFC 9110 §15.2).
            if status >= 200 || status == 101 {
                break (status, head);
            }
        };
        let field = |name: &str| {
            head.split("\r\n").find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
        };
        // RFC 9112 §6.3.
        let bare =
            method == "HEAD" || [101, 204, 304].contains(&status) || (method, status) == ("CONNECT", 200);
        let mut last = status == 101 || field("connection") == Some("close");
        let mut body = Vec::new();
        if bare {
            // Its fields describe a body that does not come.
        } else if field("transfer-encoding").is_some() {
            let mut size = 1;
            while size > 0 {
                let line = String::from_utf8_lossy(&self.until(b"\r\n")?).into_owned();
                size = usize::from_str_radix(line.trim(), 16).map_err(|_| odd())?;
                self.exactly(size, &mut body)?;
                self.until(b"\r\n")?;
            }
        } else if let Some(length) = field("content-length") {
            self.exactly(length.parse().map_err(|_| odd())?, &mut body)?;
        } else {
            while self.fill().is_ok() {}
            body.extend(&self.heard[self.at..]);
            (self.at, last) = (self.heard.len(), true);
        }
        let packed = !body.is_empty() && field("content-encoding").is_some_and(|coding| coding != "identity");
        Ok(Answer { status, upstream: field("server") == Some("world"), packed, last, body })
    }
}

impl Answer {
    fn of_line(line: &[u8]) -> Option<Self> {
        let told: Value = serde_json::from_slice(line).ok()?;
        let (status, headers) = (told["status"].as_u64()?, &told["headers"]);
        let body = told["body"].as_str().unwrap_or_default().as_bytes().to_vec();
        let (upstream, packed) =
            (headers["server"] == "world", !body.is_empty() && headers["content-encoding"].is_string());
        Some(Self { status, upstream, packed, last: false, body })
    }
}

/// The results of one plane: `sent`, `upstream STATUS`, `own STATUS`, `masked`, `packed`, `missed`, `found`.
#[derive(Default)]
struct Tally {
    counts: BTreeMap<String, u64>,
    shown: Vec<Value>,
}

impl Tally {
    fn add(&mut self, key: &str, times: u64) {
        *self.counts.entry(key.to_owned()).or_default() += times;
    }

    fn answered(&mut self, answer: &Answer) {
        let who = if answer.upstream { "upstream" } else { "own" };
        self.add(&format!("{who} {}", answer.status), 1);
        self.add("packed", u64::from(answer.packed));
    }

    /// Records a request without an answer, or a connection that did not end.
    fn missed(&mut self, error: &io::Error, octets: &[u8], heard: &[u8]) {
        self.add("missed", 1);
        let (sent, heard) = (String::from_utf8_lossy(octets), String::from_utf8_lossy(heard));
        self.shown.push(json!({ "error": error.to_string(), "request": sent, "heard": heard }));
    }

    fn and(mut self, other: &Self) -> Self {
        other.counts.iter().for_each(|(key, times)| self.add(key, *times));
        self.shown.extend(other.shown.iter().take(SHOWN).cloned());
        self
    }
}

/// Finds every form of a secret in one pass.
struct Search {
    needles: Vec<(&'static str, Vec<u8>)>,
    /// Whether a needle begins with these two octets.
    begins: Vec<bool>,
}

impl Search {
    fn of(secrets: &[Vec<u8>]) -> Self {
        let mut needles = Vec::new();
        for secret in secrets {
            let join = |form: fn(&u8) -> String| secret.iter().map(form).collect::<String>().into_bytes();
            needles.extend(forms(secret));
            needles.push(("JSON", join(|octet| format!("\\u{octet:04x}"))));
            needles.push(("backwards", secret.iter().rev().copied().collect()));
            needles.extend(secret.windows(TELLING).map(|part| ("a part", part.to_vec())));
        }
        let mut begins = vec![false; 1 << 16];
        needles.iter().for_each(|(_, needle)| begins[pair(needle)] = true);
        Self { needles, begins }
    }

    fn look(&self, text: &[u8]) -> Option<&'static str> {
        (1..text.len()).map(|end| &text[end - 1..]).filter(|rest| self.begins[pair(rest)]).find_map(|rest| {
            self.needles.iter().find(|(_, needle)| rest.starts_with(needle)).map(|(form, _)| *form)
        })
    }
}

/// Returns the first two octets of a text as a number.
fn pair(text: &[u8]) -> usize {
    usize::from(text[0]) << 8 | usize::from(text[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_every_form() {
        let secret = b"q+/<&>'canary-0123456789-abcdefghij-KLMN".to_vec();
        let search = Search::of(&[b"another of them, 40 octets of it in all.".to_vec(), secret.clone()]);
        for (form, needle) in &search.needles {
            assert!(search.look(&[b"some, ", needle.as_slice(), b" more"].concat()).is_some(), "{form}");
        }
        assert_eq!(search.look(&secret[10..18]), Some("a part"));
        assert_eq!(search.look(b"GET /echo-auth?as=plain, and \x01 no secret, of any kind"), None);
        assert_eq!(search.look(b""), None);
    }
}
