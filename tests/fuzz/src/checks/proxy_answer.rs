//! Answers of an upstream proxy. The input's first octet selects the proxy's protocol and whether we have a credential for it; the
//! rest is sent whatever the proxy is asked. Exactly the answers that agree yield a connection, whose first octets are what follows
//! them. The password goes only where it was asked for, and into no error.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use credential::{Credential, Secret, Value};
use data_encoding::BASE64;
use egress::{Detour, Files, Outside};
use policy::Proxy;
use tokio::io::AsyncReadExt;

use crate::platform::Platform;

const HOST: &str = "up.example.com";
const PORT: u16 = 8080;
/// How long anything may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(20);
/// The largest answer to a `CONNECT`.
const LARGEST: usize = 16 * 1024;
/// The length that an error, of one line, must stay below.
const LINE: usize = 200;

static SECRET: LazyLock<String> = LazyLock::new(|| Platform::new().secret().to_owned());

thread_local! {
    static OUTSIDE: Outside = Outside::new(Files::default());
    static PROXY: RefCell<ScriptedProxy> = RefCell::new(ScriptedProxy::open());
}

/// A proxy that gives each connection the next of its answers, whatever it is asked, and tells what it was sent.
struct ScriptedProxy {
    port: u16,
    answers: Sender<Vec<u8>>,
    sent: Receiver<Vec<u8>>,
}

impl ScriptedProxy {
    fn open() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (answers, answer) = channel::<Vec<u8>>();
        let (tell, sent) = channel();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let answer = answer.recv().expect("each connection has an answer");
                stream.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
                let _ = stream.write_all(&answer);
                let _ = stream.shutdown(Shutdown::Write);
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all);
                let _ = tell.send(all);
            }
        });
        Self { port, answers, sent }
    }
}

/// Connects through an upstream proxy that answers with the input.
pub fn proxy_answer(input: &[u8]) {
    let Some((way, answer)) = input.split_first() else { return };
    let (socks, known) = (way & 1 == 1, way & 2 == 2);
    PROXY.with_borrow(|proxy| {
        proxy.answers.send(answer.to_vec()).expect("it listens");
        let outcome = OUTSIDE.with(|outside| reach(outside, proxy.port, socks, known));
        let sent = proxy.sent.recv_timeout(PATIENCE).expect("the connection ends");
        let (agreed, expected) = if socks { read_socks(answer, known) } else { read_connect(answer, known) };
        match &outcome {
            Ok(rest) => {
                let end = agreed.unwrap_or_else(|| panic!("no connection was agreed to: {}", show(answer)));
                assert_eq!(rest.escape_ascii().to_string(), show(&answer[end..]));
            }
            Err(error) => {
                assert!(agreed.is_none(), "{error}, of {}", show(answer));
                assert!(!error.contains(SECRET.as_str()), "{error}");
                assert!(!error.contains(&BASE64.encode(SECRET.as_bytes())[..12]), "{error}");
                assert!(error.len() < LINE && !error.contains(char::is_control), "{error}");
            }
        }
        // A proxy that has ended may not get the rest.
        assert!(expected.starts_with(&sent), "{} was sent, not {}", show(&sent), show(&expected));
        assert!(outcome.is_err() || sent == expected, "{} was sent, not {}", show(&sent), show(&expected));
    });
}

/// Opens a connection through the proxy, and reads it to its end.
fn reach(outside: &Outside, port: u16, socks: bool, known: bool) -> Result<Vec<u8>, String> {
    let scheme = if socks { "socks5" } else { "http" };
    let proxy = Proxy::parse("p", &format!("{scheme}://127.0.0.1:{port}"), None).expect("a constant proxy");
    let credential = known.then(|| {
        let mut credential = Credential::default();
        for (name, value) in [("username", "me"), ("password", SECRET.as_str())] {
            let value = Value::new(Secret::from_text(value.into())).expect("a constant value");
            credential.set(name.parse().expect("a constant name"), value);
        }
        credential
    });
    let detour = Detour { proxy, credential, direct: Vec::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let work = async {
            let mut stream =
                outside.connect(HOST, PORT, Some(&detour)).await.map_err(|error| error.to_string())?;
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.map_err(|error| error.to_string())?;
            Ok(rest)
        };
        tokio::time::timeout(PATIENCE, work).await.expect("it ends with the proxy's answer")
    })
}

/// Returns where the head of an agreeing answer ends (RFC 9110 §9.3.6), and what the client sends for it.
fn read_connect(answer: &[u8], known: bool) -> (Option<usize>, Vec<u8>) {
    let pair = BASE64.encode(format!("me:{}", *SECRET).as_bytes());
    let who = if known { format!("proxy-authorization: Basic {pair}\r\n") } else { String::new() };
    let sent = format!("CONNECT {HOST}:{PORT} HTTP/1.1\r\nhost: {HOST}:{PORT}\r\n{who}\r\n").into_bytes();
    let head_end = |from: usize| {
        // A line may end without its CR (RFC 9112 §2.2).
        let is_end =
            |end: &usize| [&b"\n\r\n"[..], b"\n\n"].iter().any(|it| answer[from..*end].ends_with(it));
        (from..=answer.len().min(LARGEST)).find(is_end)
    };
    let status = |from: usize, end: usize| {
        let mut fields = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut fields);
        // The parser reads the whole head, and nothing beyond it.
        let is_whole = response.parse(&answer[from..end]) == Ok(httparse::Status::Complete(end - from));
        response.code.filter(|_| is_whole)
    };
    let mut from = 0;
    let agreed = loop {
        let Some(end) = head_end(from) else { break None };
        match status(from, end) {
            Some(200..=299) => break Some(end),
            // Interim ones come before the final one (RFC 9110 §15.2). To another protocol nobody asked to change.
            Some(100 | 102..=199) => from = end,
            _ => break None,
        }
    };
    (agreed, sent)
}

/// Returns the same for SOCKS 5 (RFC 1928, RFC 1929).
fn read_socks(answer: &[u8], known: bool) -> (Option<usize>, Vec<u8>) {
    let offered: &[u8] = if known { &[2, 0] } else { &[0] };
    let mut sent = vec![5, offered.len() as u8];
    sent.extend(offered);
    let agreed = (|| {
        let (chosen, mut rest) = answer.split_at_checked(2)?;
        let [5, chosen] = chosen else { return None };
        if !offered.contains(chosen) {
            return None;
        }
        if *chosen == 2 {
            sent.extend([1, 2, b'm', b'e', u8::try_from(SECRET.len()).expect("a short secret")]);
            sent.extend(SECRET.bytes());
            let (status, behind) = rest.split_at_checked(2)?;
            if status[1] != 0 {
                return None;
            }
            rest = behind;
        }
        sent.extend([5, 1, 0, 3, HOST.len() as u8]);
        sent.extend(HOST.bytes());
        sent.extend(PORT.to_be_bytes());
        let [5, 0, _, kind, rest @ ..] = rest else { return None };
        let (length, rest) = match (kind, rest) {
            (1, rest) => (4, rest),
            (4, rest) => (16, rest),
            (3, [length, rest @ ..]) => (usize::from(*length), rest),
            _ => return None,
        };
        rest.get(length + 2..).map(|behind| answer.len() - behind.len())
    })();
    (agreed, sent)
}

fn show(octets: &[u8]) -> String {
    octets.escape_ascii().to_string()
}
