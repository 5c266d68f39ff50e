//! The JSON form of S2 on the Unix socket: a line `{"capability", "method", "url", "headers", "body"}` is answered with a line of
//! JSON. Each is converted to a request to the gateway, so that it may do no more than any other request.

use std::collections::BTreeMap;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::BytesMut;
use data_encoding::BASE64;
use policy::{Denial, Guard, Plane, ProviderId};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, Interest};
use tokio::net::UnixStream;

use crate::audit;
use crate::gate::Gate;
use crate::http::abandoned::Abandoned;
use crate::http::head::{Buffered, LARGEST_HEAD};
use crate::http::outgoing::within_stall_limit;
use crate::http::request::Via;
use crate::http::reserved_memory::{NO_ROOM, ReservedMemory};
use crate::http::response::{MOST_FIELDS, has_no_body};
use crate::http::serve1::serve_requests;
use crate::http::stream::AgentStream;

/// The largest request line without its end, and the largest response that is converted to one.
const LARGEST: usize = 1024 * 1024;
const LARGEST_ANSWER: u64 = 2 * 1024 * 1024;
/// How much of an answer waits to be converted.
const PIECE: usize = 64 * 1024;
/// Room for the fields that an answer gets on its way: how long it is, that it was cut, that the connection ends.
const ADDED_FIELDS: usize = 4;
/// How long the agent may be silent, within a line and between lines.
const IDLE: Duration = Duration::from_secs(120);
/// How often it is looked whether the agent has hung up.
const LOOK: Duration = Duration::from_millis(250);

/// One request, as a line of JSON has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    /// The provider whose credential is used. Without it no request to the world is sent with one; the gateway's own paths, which a URL
    /// may be, have their own ways to say.
    #[serde(default)]
    capability: Option<String>,
    method: String,
    url: String,
    #[serde(default)]
    headers: Option<BTreeMap<String, FieldValues>>,
    #[serde(default)]
    body: Option<String>,
}

/// The values of a header, as an answer tells them: text, or a list where the field comes more than once.
#[derive(Deserialize)]
#[serde(untagged, expecting = "the value of a header is text, or a list of texts")]
enum FieldValues {
    One(String),
    Several(Vec<String>),
}

impl FieldValues {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Several(values) => values,
        }
    }
}

/// Serves lines until the agent ends the connection.
pub(super) async fn serve(gate: Rc<Gate>, mut agent: Buffered<UnixStream>) -> io::Result<()> {
    loop {
        let (line, reserved) = match next_line(&mut agent).await? {
            Some(Ok(line)) => line,
            Some(Err((status, why))) => {
                let answer = refused(&gate, UNREAD, unreadable(why.into()), status);
                return write_line(&mut agent, &answer).await;
            }
            None => return Ok(()),
        };
        let (answer, _reserved) = match parse(&line) {
            Ok(request) => match send_unless_abandoned(&gate, &request, &agent.reader).await? {
                Some((answer, reserved)) => (answer, Some(reserved)),
                None => (no_room(), None),
            },
            Err(Unreadable { target, denial }) => (refused(&gate, &target, denial, 400), None),
        };
        drop((line, reserved));
        write_line(&mut agent, &answer).await?;
    }
}

/// The answer in place of one for which there is no memory. That is known once it has come, so nobody is told to try again.
fn no_room() -> serde_json::Value {
    let why = "the gateway has no room for the answer; the request was sent, and may have been carried out";
    json!({"error": why, "status": 429, "guard": Guard::Framing.code()})
}

/// A line with the memory that it takes, or the status and the reason with which it is refused.
type Line = Result<(BytesMut, ReservedMemory), (u16, &'static str)>;

/// Reads the next line. `None` at the end of the connection.
async fn next_line(agent: &mut Buffered<UnixStream>) -> io::Result<Option<Line>> {
    let Some(mut reserved) = ReservedMemory::for_octets(0) else { return Ok(Some(Err((429, NO_ROOM)))) };
    let mut searched = 0;
    loop {
        let end = end_of_line(&agent.ahead, &mut searched);
        let length = end.map_or(agent.ahead.len(), |end| end + 1);
        if end.unwrap_or(length) > LARGEST {
            return Ok(Some(Err((413, "the line is longer than 1 MiB"))));
        }
        if reserved.grow_to(length).is_none() {
            return Ok(Some(Err((429, NO_ROOM))));
        }
        if end.is_some() {
            return Ok(Some(Ok((agent.ahead.split_to(length), reserved))));
        }
        if agent.fill(IDLE).await? == 0 {
            return Ok((length > 0).then(|| Ok((agent.ahead.split(), reserved))));
        }
    }
}

/// Finds where a line ends, in what was not searched before.
fn end_of_line(ahead: &[u8], searched: &mut usize) -> Option<usize> {
    let from = std::mem::replace(searched, ahead.len());
    ahead[from..].iter().position(|octet| *octet == b'\n').map(|at| from + at)
}

/// The target in the record of a line that has none.
const UNREAD: &str = "unreadable request";

/// A line that cannot be converted to a request: its target, and what is wrong.
struct Unreadable {
    target: String,
    denial: Denial,
}

/// A line that was converted to a request of HTTP/1.
struct Wire {
    method: String,
    octets: Vec<u8>,
    answerer: Answerer,
}

/// Whose word an answer's header fields are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answerer {
    /// `/proxy`, which takes the upstream's `X-Truncated` away, and says by its own that it cut the answer.
    Proxy,
    /// The upstream.
    Upstream,
    /// A model, behind `/llm`, whose answer tells at its end how much it took.
    Model,
}

/// The gateway's path for requests with a credential, and the one for those to models.
const PROXY: &str = "/proxy";
const LLM: &str = "/llm";

/// Converts a line to a request of HTTP/1.
fn parse(line: &[u8]) -> Result<Wire, Unreadable> {
    let request: JsonRequest = serde_json::from_slice(line).map_err(|error| {
        let denial = unreadable(error.to_string().escape_default().to_string());
        Unreadable { target: UNREAD.into(), denial }
    })?;
    let path = request.url.split('?').next().unwrap_or_default();
    let answerer = if request.capability.is_some() || path == PROXY {
        Answerer::Proxy
    } else if path.strip_prefix(LLM).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        Answerer::Model
    } else {
        Answerer::Upstream
    };
    match to_http1(&request) {
        Ok(octets) => Ok(Wire { method: request.method, octets, answerer }),
        Err(denial) => Err(Unreadable { target: request.url, denial }),
    }
}

/// The denial of a line that cannot be read, with the guard of such a head.
fn unreadable(why: String) -> Denial {
    Denial::new(Guard::Framing, why)
}

/// Records a refused line, and returns the answer to it.
fn refused(gate: &Rc<Gate>, target: &str, denial: Denial, status: u16) -> serde_json::Value {
    let denial = audit::record_refused_unasked(gate, Plane::Gateway, target, denial);
    json!({"error": denial.reason, "status": status, "guard": denial.guard.code()})
}

async fn write_line(agent: &mut Buffered<UnixStream>, answer: &serde_json::Value) -> io::Result<()> {
    within_stall_limit(agent.reader.write_all(format!("{answer}\n").as_bytes())).await
}

/// Writes a request as HTTP/1. Refuses what could break lines; the rest is left for the parser of heads to refuse.
fn to_http1(request: &JsonRequest) -> Result<Vec<u8>, Denial> {
    let clean = |text: &str| !text.contains(['\r', '\n', '\0']);
    let fields = || request.headers.iter().flatten();
    let headers =
        || fields().flat_map(|(name, values)| values.as_slice().iter().map(move |value| (name, value)));
    let shaped = clean(&request.method)
        && clean(&request.url)
        && fields().all(|(n, _)| clean(n))
        && headers().all(|(_, v)| clean(v));
    if !shaped || request.method.contains(' ') || request.url.contains(' ') {
        return Err(unreadable("a line break or a space stands where none may".into()));
    }
    if request.url.is_empty() {
        let why = "`url` is empty: it is the whole address, https://host/path";
        return Err(Denial::new(Guard::Syntax, why));
    }
    let body = request.body.as_deref().unwrap_or("");
    let mut out = match &request.capability {
        Some(provider) if provider.parse::<ProviderId>().is_ok() => format!(
            "{} {PROXY} HTTP/1.1\r\nhost: sidecar\r\nx-provider: {provider}\r\nx-target: {}\r\n",
            request.method, request.url
        ),
        Some(_) => {
            let why = "`capability` is no provider's name; leave it out where no credential is to be used";
            return Err(Denial::new(Guard::Syntax, why));
        }
        None => {
            let authority = request.url.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
            format!("{} {} HTTP/1.1\r\nhost: {}\r\n", request.method, request.url, authority.unwrap_or(""))
        }
    };
    // Beside a capability, `X-Provider` and `X-Target` are given twice, which `/proxy` refuses.
    for (name, value) in headers() {
        let framing = ["host", "content-length", "transfer-encoding", "connection"];
        if !framing.contains(&name.to_ascii_lowercase().as_str()) {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        // The parser refuses it anyway: a long name with many values is not written out as often.
        if out.len() > LARGEST_HEAD {
            break;
        }
    }
    out.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()));
    out.push_str(body);
    Ok(out.into_bytes())
}

/// As [`send`]; gives the request up if the agent hangs up meanwhile.
async fn send_unless_abandoned(
    gate: &Rc<Gate>,
    request: &Wire,
    agent: &UnixStream,
) -> io::Result<Option<(serde_json::Value, ReservedMemory)>> {
    tokio::select! {
        biased;
        sent = send(gate, request) => sent,
        () = hung_up(agent) => Err(Abandoned::because(&"its connection has ended")),
    }
}

/// Completes when the agent has shut both directions: one that only sends no more, as `nc -N`, still waits for its answer. It is looked for
/// in intervals, because any other event, such as the next line, would end a wait for it until that line is read.
async fn hung_up(agent: &UnixStream) {
    let is_hung_up = || {
        let mut cx = Context::from_waker(Waker::noop());
        let ready = pin!(agent.ready(Interest::WRITABLE)).poll(&mut cx);
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_write_closed())
    };
    while !is_hung_up() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Sends a request to the gateway, and converts the response to JSON. Returns it with the memory that it takes; `None` if others hold what
/// it needs.
async fn send(gate: &Rc<Gate>, request: &Wire) -> io::Result<Option<(serde_json::Value, ReservedMemory)>> {
    // Two sockets would take two more descriptors than a connection has.
    let (ours, theirs) = tokio::io::duplex(PIECE);
    let wire = request.octets.as_slice();
    let served = serve_requests(Rc::clone(gate), Via::JsonLine, AgentStream::Memory(theirs), wire.into());
    let (_, read) = tokio::join!(Box::pin(served), read_answer(ours, request.answerer));
    let Some((mut answer, reserved)) = read? else { return Ok(None) };
    let is_cut = answer.len() as u64 > LARGEST_ANSWER;
    answer.truncate(LARGEST_ANSWER as usize);
    let (mut told, is_whole) = as_json(&answer, request.answerer, &request.method);
    if is_cut || !is_whole {
        told["truncated"] = true.into();
    }
    Ok(Some((told, reserved)))
}

/// Reads an answer. Dropping the reading end when there is enough, or no room, makes the writer fail instead of waiting for a reader. That
/// of a model is read to its end: cut off before its usage, it would end the run's budget.
async fn read_answer(
    mut ours: DuplexStream,
    answerer: Answerer,
) -> io::Result<Option<(Vec<u8>, ReservedMemory)>> {
    let read = read_converted(&mut ours).await?;
    if answerer == Answerer::Model {
        tokio::io::copy(&mut ours, &mut tokio::io::sink()).await?;
    }
    Ok(read)
}

/// Reads an answer up to one octet more than is converted, and reserves its memory. `None` if others hold what it needs.
async fn read_converted(ours: &mut DuplexStream) -> io::Result<Option<(Vec<u8>, ReservedMemory)>> {
    let Some(mut reserved) = ReservedMemory::for_octets(0) else { return Ok(None) };
    let (mut ours, mut answer) = (ours.take(LARGEST_ANSWER + 1), Vec::new());
    while ours.read_buf(&mut answer).await? > 0 {
        // What is read, its body as text, and the line that it becomes.
        if reserved.grow_to(3 * answer.len()).is_none() {
            return Ok(None);
        }
    }
    Ok(Some((answer, reserved)))
}

/// Converts a response to JSON; a body that is not text, or hardly any, is in base64. Also returns whether the body is whole.
fn as_json(mut answer: &[u8], answerer: Answerer, method: &str) -> (serde_json::Value, bool) {
    // Interim responses are left out.
    while answer.starts_with(b"HTTP/1.1 1") {
        let Some(end) = answer.windows(4).position(|w| w == b"\r\n\r\n") else { break };
        answer = &answer[end + 4..];
    }
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS + ADDED_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(head)) = response.parse(answer) else {
        return (json!({"error": "the upstream did not answer", "status": 502}), true);
    };
    let status = response.code.unwrap_or(0);
    let headers = fields_as_json(response.headers);
    let framed = &answer[head..];
    let (body, is_whole) = if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        dechunk(framed)
    } else {
        let length = headers.get("content-length").and_then(|it| it.as_str()?.parse::<usize>().ok());
        (framed.to_vec(), length.is_none_or(|length| framed.len() == length))
    };
    // The gateway cuts an answer to what `X-Max-Response-Size` allows.
    let is_cut = answerer == Answerer::Proxy && headers.get("x-truncated").is_some_and(|cut| cut == "true");
    let is_whole = (is_whole || has_no_body(method, status)) && !is_cut;
    let told = match String::from_utf8(body) {
        Ok(text) if !grows_by_escapes(&text) => {
            json!({"status": status, "headers": headers, "body": text})
        }
        other => {
            let body = other.map_or_else(|error| error.into_bytes(), String::into_bytes);
            json!({"status": status, "headers": headers, "body": BASE64.encode(&body), "encoding": "base64"})
        }
    };
    (told, is_whole)
}

/// Converts header fields to JSON. The values of one that is repeated are a list: those of `Set-Cookie` cannot be joined.
fn fields_as_json(fields: &[httparse::Header<'_>]) -> serde_json::Map<String, serde_json::Value> {
    let mut all = serde_json::Map::new();
    for field in fields {
        let value = serde_json::Value::from(String::from_utf8_lossy(field.value));
        match all.entry(field.name.to_ascii_lowercase()) {
            serde_json::map::Entry::Vacant(free) => {
                free.insert(value);
            }
            serde_json::map::Entry::Occupied(mut taken) => match taken.get_mut() {
                serde_json::Value::Array(list) => list.push(value),
                first => *first = serde_json::Value::Array(vec![first.take(), value]),
            },
        }
    }
    all
}

/// Whether a text would be more than twice as long in JSON: by more than if every fourth octet were a control octet, which takes six. Line
/// ends and tabs take two, RFC 8259 section 7.
fn grows_by_escapes(text: &str) -> bool {
    let more = text.bytes().map(|octet| match octet {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 8 | 12 => 1,
        _ if octet.is_ascii_control() => 5,
        _ => 0,
    });
    more.sum::<usize>() * 4 > text.len() * 5
}

/// Returns the data of a chunked body, as far as it is well-formed, and whether its end was there.
fn dechunk(framed: &[u8]) -> (Vec<u8>, bool) {
    use crate::http::chunk::{ChunkScanner, ChunkSyntax};
    let (mut scanner, mut at, mut out) = (ChunkScanner::new(ChunkSyntax::Lenient), 0, Vec::new());
    while at < framed.len() && !scanner.is_done() {
        let Ok(step) = scanner.scan(&framed[at..]) else { break };
        at += step.framing;
        out.extend(&framed[at..at + step.data]);
        at += step.data;
    }
    (out, scanner.is_done())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::*;
    use crate::fixture::gate_for;

    #[tokio::test]
    async fn a_line_takes_no_descriptor_but_its_upstreams() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = upstream.local_addr().unwrap().port();
        let policy =
            format!("[[egress.allow]]\nhost = \"up.test\"\nports = [{port}]\naddresses = [\"127.0.0.1\"]\n");
        let gate = gate_for(&policy, vec![Ipv4Addr::LOCALHOST.into()], None);
        let line = format!(r#"{{"method": "GET", "url": "http://up.test:{port}/"}}"#);
        let Ok(wire) = parse(line.as_bytes()) else { panic!("it is no request") };
        let count = |of: &str| std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count();
        // Descriptors are the whole process's. Where other tests run in it at the same time, as under plain `cargo test`, theirs cannot be
        // told from these, and only the answer is checked: the harness's thread and this one are alone under nextest.
        let open = || (count("task") <= 2).then(|| count("fd"));
        let before = open();
        let answers = async {
            let (mut stream, _) = upstream.accept().await.unwrap();
            // The connection to the upstream, and its other end, which is here.
            let opened = before.and_then(|before| open()?.checked_sub(before));
            assert!(opened.is_none_or(|opened| opened == 2), "{opened:?}");
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            stream
        };
        let (answer, _stream) =
            LocalSet::new().run_until(async { tokio::join!(send(&gate, &wire), answers) }).await;
        let (told, _reserved) = answer.unwrap().expect("there is room");
        assert_eq!((told["status"].as_u64(), told["body"].as_str()), (Some(200), Some("ok")), "{told}");
    }

    #[tokio::test]
    async fn a_line_that_comes_octet_by_octet_is_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut agent = Buffered::new(ours);
        let writes = async {
            for octet in b"a line\nnext" {
                theirs.write_all(&[*octet]).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (line, ()) = tokio::join!(next_line(&mut agent), writes);
        let Some(Ok((line, _))) = line.unwrap() else { panic!("it is a line") };
        assert_eq!(line, "a line\n");
    }

    /// From its start each time, a line of 1 MiB that comes octet by octet would be 512 GiB to search.
    #[test]
    fn a_line_is_searched_once() {
        let mut searched = 0;
        assert_eq!((end_of_line(b"a li", &mut searched), searched), (None, 4));
        // As if what was searched had held one.
        assert_eq!((end_of_line(b"\n\n\n\nne", &mut searched), searched), (None, 6));
        assert_eq!(end_of_line(b"a line\n\n", &mut searched), Some(6));
    }

    /// Returns what the gateway's socket answers to a line.
    async fn asked(gate: &Rc<Gate>, line: serde_json::Value) -> serde_json::Value {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        theirs.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let served = serve(Rc::clone(gate), Buffered::new(ours));
        let (_, read) = tokio::join!(served, theirs.read_to_end(&mut answer));
        read.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_with_an_agent_that_hangs_up_and_not_with_one_that_sends_no_more() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let rule = format!("[[egress.allow]]\nurl = \"http://{at}/*\"\n");
        let gate = gate_for(&rule, vec![Ipv4Addr::LOCALHOST.into()], None);
        let line = format!("{}\n", json!({"method": "GET", "url": format!("http://{at}/")}));
        for hangs_up in [true, false] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let asks = async {
                theirs.write_all(line.as_bytes()).await.unwrap();
                let (mut stream, _) = upstream.accept().await.unwrap();
                let mut request = BytesMut::new();
                while !request.ends_with(b"\r\n\r\n") {
                    assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").await.unwrap();
                if hangs_up {
                    drop(theirs);
                    let ended = tokio::time::timeout(10 * LOOK, stream.read_u8()).await;
                    return assert!(ended.expect("the request goes on").is_err());
                }
                theirs.shutdown().await.unwrap();
                tokio::time::sleep(10 * LOOK).await;
                stream.write_all(b"ok").await.unwrap();
                let mut answer = String::new();
                theirs.read_to_string(&mut answer).await.unwrap();
                assert!(answer.contains("\"body\":\"ok\""), "{answer}");
            };
            let served = serve(Rc::clone(&gate), Buffered::new(ours));
            let (served, ()) = LocalSet::new().run_until(async { tokio::join!(served, asks) }).await;
            assert_eq!(served.is_err(), hangs_up);
        }
    }

    #[tokio::test]
    async fn the_end_of_a_line_does_not_count() {
        for (length, is_read) in [(LARGEST, true), (LARGEST + 1, false)] {
            for end in ["\n", ""] {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                let line = format!("{}{end}", "x".repeat(length));
                let writes = async {
                    let _ = theirs.write_all(line.as_bytes()).await;
                    let _ = theirs.shutdown().await;
                };
                let mut agent = Buffered::new(ours);
                let (read, ()) = tokio::join!(next_line(&mut agent), writes);
                assert_eq!(matches!(read, Ok(Some(Ok(_)))), is_read, "{length} {end:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_line_without_a_capability_uses_no_credential() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let policy = format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://{at}/bound/*\"]\n\
             [egress]\nscrub = \"best-effort\"\nallow = [{{ url = \"http://{at}/free/*\" }}]\n"
        );
        let gate = gate_for(&policy, vec![Ipv4Addr::LOCALHOST.into()], None);
        let asks = async {
            for capability in [json!({}), json!({"capability": null})] {
                let mut line = capability;
                line["method"] = "GET".into();
                line["url"] = format!("http://{at}/bound/me").into();
                let told = asked(&gate, line).await;
                assert_eq!(told["status"], 403, "{told}");
                let why = told["body"].as_str().unwrap();
                assert!(why.contains("uri_not_authorized") && why.contains("capability"), "{told}");
            }
            // What takes no credential is sent.
            let line = json!({"method": "GET", "url": format!("http://{at}/free/")});
            let answers = async {
                let (mut stream, _) = upstream.accept().await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                stream
            };
            let (told, _stream) = tokio::join!(asked(&gate, line), answers);
            assert_eq!(told["body"], "ok", "{told}");
            // The gateway's own path has its fields from `headers`: it goes as far as the credential, which no platform gives here.
            let headers = json!({"X-Provider": "one", "X-Target": format!("http://{at}/bound/me")});
            let own = json!({"method": "GET", "url": "/proxy", "headers": headers});
            let told = asked(&gate, own.clone()).await;
            assert!(told.to_string().contains("credential_unavailable"), "{told}");
            let mut twice = own;
            twice["capability"] = "one".into();
            let told = asked(&gate, twice).await;
            assert!(told["status"] == 400 && told.to_string().contains("once each"), "{told}");
        };
        LocalSet::new().run_until(asks).await;
    }

    #[tokio::test]
    async fn what_a_line_lacks_is_called_by_its_name_there() {
        let gate = gate_for("", Vec::new(), None);
        let url = "https://api.example.com/";
        for (line, named) in [
            (json!({"method": "GET", "capability": "", "url": url}), "`capability`"),
            (json!({"method": "GET", "capability": "One", "url": url}), "`capability`"),
            (json!({"method": "GET", "capability": "one\r\n", "url": url}), "`capability`"),
            (json!({"method": "GET", "capability": "one", "url": ""}), "`url`"),
            (json!({"method": "GET", "url": ""}), "`url`"),
        ] {
            let told = asked(&gate, line).await;
            assert_eq!((&told["status"], &told["guard"]), (&json!(400), &json!("target_syntax")), "{told}");
            assert!(told["error"].as_str().is_some_and(|why| why.starts_with(named)), "{told}");
        }
    }

    #[tokio::test]
    async fn an_answer_of_a_model_is_read_to_its_end() {
        for (line, is_read) in [
            (json!({"method": "POST", "url": "/llm/v1/messages"}), true),
            (json!({"method": "POST", "url": "/llm?x"}), true),
            (json!({"method": "POST", "url": "/llms"}), false),
            (json!({"method": "POST", "url": "http://up.test/llm/v1/messages"}), false),
            (json!({"method": "POST", "url": "/llm/v1/messages", "capability": "one"}), false),
        ] {
            let Ok(wire) = parse(line.to_string().as_bytes()) else { panic!("{line} is no request") };
            let (ours, mut theirs) = tokio::io::duplex(PIECE);
            let answers = async {
                let written = theirs.write_all(&vec![b'x'; 2 * LARGEST_ANSWER as usize]).await;
                drop(theirs);
                written
            };
            let (read, written) = tokio::join!(read_answer(ours, wire.answerer), answers);
            let (answer, _reserved) = read.unwrap().expect("there is room");
            assert_eq!((answer.len() as u64, written.is_ok()), (LARGEST_ANSWER + 1, is_read), "{line}");
        }
    }

    #[test]
    fn a_body_is_told_as_text_unless_escapes_would_make_it_long() {
        for text in ["", "\n", "ok\n", "\"\\\"", "\r\n\t\n\n\n", "abc\u{1b}"] {
            assert!(!grows_by_escapes(text), "{text:?}");
            assert!(serde_json::to_string(text).unwrap().len() <= 2 + text.len() * 9 / 4);
        }
        for octets in ["\u{1b}", "ab\u{1b}", "\u{1}\u{2}\n\n"] {
            assert!(grows_by_escapes(octets), "{octets:?}");
        }
    }

    #[test]
    fn an_answer_that_broke_off_is_told_from_a_whole_one() {
        for (answer, method, body, whole) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwhole", "GET", "whole", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart", "GET", "part", false),
            ("HTTP/1.1 200 OK\r\nx-truncated: true\r\ncontent-length: 4\r\n\r\npart", "GET", "part", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "HEAD", "", true),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", "GET", "", true),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nall\r\n0\r\n\r\n",
                "GET",
                "all",
                true,
            ),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nall\r\n", "GET", "all", false),
            ("HTTP/1.1 200 OK\r\n\r\nto the end", "GET", "to the end", true),
        ] {
            for answerer in [Answerer::Proxy, Answerer::Upstream, Answerer::Model] {
                let whole = whole || (answerer != Answerer::Proxy && answer.contains("x-truncated"));
                let (told, is_whole) = as_json(answer.as_bytes(), answerer, method);
                assert_eq!((told["body"].as_str(), is_whole), (Some(body), whole), "{answer}");
            }
        }
    }

    #[tokio::test]
    async fn an_answer_of_the_most_fields_is_told() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let rule = format!("[[egress.allow]]\nurl = \"http://{at}/*\"\n");
        let gate = gate_for(&rule, vec![Ipv4Addr::LOCALHOST.into()], None);
        // Without a length, so that the sidecar adds one more.
        let head = format!("HTTP/1.1 200 OK\r\n{}\r\nall", "a: b\r\n".repeat(MOST_FIELDS));
        let answers = async {
            upstream.accept().await.unwrap().0.write_all(head.as_bytes()).await.unwrap();
        };
        let asks = asked(&gate, json!({"method": "GET", "url": format!("http://{at}/")}));
        let (told, ()) = LocalSet::new().run_until(async { tokio::join!(asks, answers) }).await;
        assert_eq!((&told["status"], &told["body"]), (&json!(200), &json!("all")), "{told}");
    }

    #[test]
    fn a_list_of_values_is_a_field_that_comes_more_than_once() {
        let wire = |headers: serde_json::Value| {
            let line = json!({"method": "GET", "url": "http://up.test/", "headers": headers}).to_string();
            parse(line.as_bytes()).map(|wire| String::from_utf8(wire.octets).unwrap())
        };
        let Ok(sent) =
            wire(json!({"x-a": ["1", "2"], "x-b": "3", "x-c": [], "Host": ["elsewhere", "other"]}))
        else {
            panic!("it is no request")
        };
        let fields = "host: up.test\r\nx-a: 1\r\nx-a: 2\r\nx-b: 3\r\ncontent-length: 0\r\n";
        assert!(sent.contains(fields) && !sent.contains("elsewhere") && !sent.contains("x-c"), "{sent}");
        for wrong in [json!({"x-a": ["1", "2\r\nx-b: 3"]}), json!({"x\r\n": []}), json!({"x-a": [["1"]]})] {
            assert!(wire(wrong.clone()).is_err(), "{wrong}");
        }
        let Ok(sent) = wire(json!({"x".repeat(LARGEST_HEAD): vec![""; 1000]})) else {
            panic!("it is no request")
        };
        assert!((LARGEST_HEAD..2 * LARGEST_HEAD).contains(&sent.len()), "{}", sent.len());
        let Err(refused) = wire(json!({"x-a": 1})) else { panic!("a number is no value") };
        assert!(refused.denial.reason.contains("a list of texts"), "{}", refused.denial.reason);
    }

    #[test]
    fn a_field_that_comes_twice_is_a_list() {
        let answer =
            b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nx: y\r\nset-cookie: b=2\r\nSet-cookie: c=3\r\n\r\n";
        let headers = &as_json(answer, Answerer::Upstream, "GET").0["headers"];
        assert_eq!(*headers, json!({"set-cookie": ["a=1", "b=2", "c=3"], "x": "y"}));
    }
}
