//! Judges what a connection carries by its first octets: TLS, plain HTTP, or something else.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};

use super::client_hello::{self, Hello, LARGEST_HELLO, ServerName};
use crate::http::Buffered;

/// How long the first octets may take from a client that speaks first.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// The longest first line that is examined.
const LONGEST_LINE: usize = 8 * 1024;

/// The types of TLS records (RFC 8446 §5.1, RFC 6520 §3). A ClientHello is in a handshake record. Some servers skip an alert before it,
/// and some ignore a record's version (Go, wolfSSL, Java's), so the type alone begins TLS where [`is_record`] does not tell otherwise.
const RECORDS: RangeInclusive<u8> = 0x14..=0x18;

/// The signature of a binary PROXY protocol header (version 2, §2.2), and the first word of one in text (§2.1).
const PREFACE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const PREFACE_WORD: &[u8] = b"PROXY";

/// What a connection carries.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// TLS, with the server name of its ClientHello.
    Tls(ServerName),
    /// HTTP/1 in the clear.
    Http,
    /// A PROXY protocol header. Any protocol may follow it.
    Preface,
    /// Another protocol in which the client speaks first.
    Other,
    /// Nothing: the client ended its direction before it sent an octet.
    End,
    /// The client sent too little, and broke off.
    Nothing,
    /// The client sent too little in this time.
    Late(Duration),
}

impl Carried {
    /// Says how a connection failed that did not say what it carries.
    pub(super) fn unsaid(&self) -> String {
        match self {
            Self::Late(patience) => format!("it did not say within {} s what it carries", patience.as_secs()),
            _ => "the connection ended before it said what it carries".into(),
        }
    }
}

/// Judges the octets read so far. Returns `None` while more are needed.
pub(super) fn judge(bytes: &[u8]) -> Option<Carried> {
    let first = *bytes.first()?;
    if RECORDS.contains(&first) && is_record(bytes)? {
        return match client_hello::read(bytes) {
            Hello::Complete(name) => Some(Carried::Tls(name.map_or(ServerName::None, ServerName::Said))),
            Hello::Refused(lacking) => Some(Carried::Tls(ServerName::Refused(lacking))),
            Hello::Malformed => Some(Carried::Tls(ServerName::Unread)),
            Hello::Partial if bytes.len() >= LARGEST_HELLO => Some(Carried::Tls(ServerName::Unread)),
            Hello::Partial => None,
        };
    }
    if is_oldest_hello(bytes)? {
        return Some(Carried::Tls(ServerName::Unread));
    }
    if bytes.starts_with(PREFACE) {
        return Some(Carried::Preface);
    }
    if PREFACE.starts_with(bytes) {
        return None;
    }
    // Some servers skip empty lines and blanks before a request (RFC 9112 §2.2), so they are skipped here.
    let start = match bytes.iter().position(|b| !is_blank(*b) && *b != b'\n') {
        Some(start) => start,
        // A request may stand behind them, which some servers find. The HTTP plane refuses the blanks.
        None if bytes.len() >= LONGEST_LINE => return Some(Carried::Http),
        None => return None,
    };
    let bytes = &bytes[start..];
    let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
    let is_whole = line.len() < bytes.len();
    let mut words = line.split(|b| is_blank(*b)).filter(|word| !word.is_empty());
    match words.next() {
        // Octets that do not begin with a word cannot become a request, and no more may come for now.
        Some(method) if !method[0].is_ascii_alphabetic() || !method.iter().all(u8::is_ascii_graphic) => {
            Some(Carried::Other)
        }
        Some(word) if is_whole && word.eq_ignore_ascii_case(PREFACE_WORD) => Some(Carried::Preface),
        Some(method) if is_whole && is_request(method, words) => Some(Carried::Http),
        _ if is_whole => Some(Carried::Other),
        _ if bytes.len() >= LONGEST_LINE => Some(Carried::Http), // the HTTP plane refuses it for its length
        _ => None,
    }
}

/// Whether octets that begin with the type of a record may be one that a server takes or skips before a ClientHello; `None` while more are
/// needed. Any may whose version is of TLS. Of one with another version more is asked, since other protocols begin with such octets, such
/// as MongoDB's with the length of a message.
fn is_record(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [_, 3, ..] => Some(true),
        // A hello of SSL 2 behind three octets with its length, as NSS takes one.
        [_, _, _, 1, ..] => Some(true),
        // No hello fits into so few octets, so another record stands behind what is skipped, or goes on with it.
        [_, _, _, 0, length @ 0..=16, rest @ ..] => {
            rest.get(usize::from(*length)).map(|next| RECORDS.contains(next))
        }
        // A hello begins with its type, and several alerts with the level of one.
        [_, _, _, _, _, content, ..] => Some(matches!(content, 1 | 2)),
        _ => None,
    }
}

/// Whether the octets are a hello in the form of SSL 2, which some servers still take for one of TLS (RFC 5246 §E.2); `None` while more
/// are needed. The first two octets hold its length. A first octet above `0xbf` is a length that no server accepts.
fn is_oldest_hello(bytes: &[u8]) -> Option<bool> {
    match bytes {
        [0x80..=0xbf] | [0x80..=0xbf, _] | [0x80..=0xbf, _, 1] | [0x80..=0xbf, _, 1, 0] => None,
        [0x80..=0xbf, _, 1, 3, ..] | [0x80..=0xbf, _, 1, 0, 2, ..] => Some(true),
        _ => Some(false),
    }
}

/// Whether some server could take a line for a request line, even one that RFC 9112 does not allow: with another version or none, with
/// any method, with blanks around it. The HTTP plane parses such a line strictly and refuses it. Taken for another protocol it would be
/// carried unread, and `Host` could name another host than the granted one (E10). Node serves `POST /x` without a version, and lines of
/// RTSP and ICE.
fn is_request<'a>(method: &[u8], mut words: impl Iterator<Item = &'a [u8]>) -> bool {
    let Some(target) = words.next() else { return false };
    // NATS has a CONNECT as well, followed by an object.
    let is_tunnel = method.eq_ignore_ascii_case(b"CONNECT") && !target.starts_with(b"{");
    is_tunnel || is_target(target) || is_version(target) || words.any(is_version)
}

/// Whether a word may be a request target: a path, `*`, or a URI with its scheme.
fn is_target(word: &[u8]) -> bool {
    let scheme = word.windows(3).position(|three| three == b"://").and_then(|end| word.get(..end));
    let is_scheme =
        |it: &[u8]| !it.is_empty() && it.iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b));
    word == b"*" || word.starts_with(b"/") || scheme.is_some_and(is_scheme)
}

/// Whether a word begins like the version of a protocol that some server takes for HTTP.
fn is_version(word: &[u8]) -> bool {
    [&b"HTTP/"[..], b"RTSP/", b"ICE/"]
        .iter()
        .any(|with| word.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with)))
}

/// Whether some server takes an octet for white space within a line: RFC 9112 §3 names the first five, and Python splits at the others
/// as well.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c | b'\r' | 0x1c..=0x1f | 0x85 | 0xa0)
}

/// Judges the octets of a client that sends no more. They are all that a server will see, so an unfinished line counts as one.
fn judge_at_end(bytes: &[u8]) -> Carried {
    if bytes.is_empty() { Carried::End } else { judge(&[bytes, b"\n"].concat()).unwrap_or(Carried::Nothing) }
}

/// Reads until it is clear what the connection carries.
pub(super) async fn sniff<R: AsyncRead + Unpin>(agent: &mut Buffered<R>, patience: Duration) -> Carried {
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        if let Some(carried) = judge(&agent.ahead) {
            return carried;
        }
        agent.ahead.reserve(2048);
        match tokio::time::timeout_at(deadline, agent.reader.read_buf(&mut agent.ahead)).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0)) => return judge_at_end(&agent.ahead),
            Ok(Err(_)) => return Carried::Nothing,
            Err(_) => return Carried::Late(patience),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse_request_head;
    use crate::tunnel::client_hello::tests::client_hello;

    #[test]
    fn protocols_are_told_apart() {
        assert_eq!(judge(b"GET / HTTP/1.1\r\n"), Some(Carried::Http));
        assert_eq!(judge(b"GET / HT"), None);
        // E10: a line that some server reads as a request is one.
        for line in [
            "GET / HTTP/1.2",
            "GET / HTTP/1.01",
            "GET / HTTP/1.1 ",
            " GET / HTTP/1.1",
            "\tGET\t/\tHTTP/1.1",
            "GET / http/1.1",
            "FOO2 / HTTP/1.1 x",
            "G@T{{x}} / HTTP/1.1",
            "GET /",
            "get http://a.example/",
            "GET HTTP/1.1",
            "GET\x0b/ HTTP/1.1",
            "\x0bGET / HTTP/1.1",
            " \r\nGET / HTTP/1.1",
            "\x1cGET\x1f/\x0cHTTP/1.1",
            "POST /x",
            "PUT  /x ",
            "unheard-of_2 /x y",
            "M-SEARCH *",
            "OPTIONS *",
            "POST /x RTSP/1.1",
            "SOURCE x ICE/1.0",
            "OPTIONS rtsp://a.example RTSP/1.0",
            "POST rtsp://a.example/x",
            "GET ws://a.example/x",
            "POST /x\0HTTP/1.1",
            "CONNECT a.example:443",
            "CONNECT a.example",
        ] {
            let request = format!("{line}\r\nHost: b\r\n\r\n");
            assert_eq!(judge(request.as_bytes()), Some(Carried::Http), "{line}");
            for end in 1..line.len() {
                assert_eq!(judge(&request.as_bytes()[..end]), None, "{line} up to {end}");
            }
        }
        assert_eq!(judge(b"GET\xa0/ HTTP/1.1\r\n"), Some(Carried::Http));
        // A client of another protocol is not kept waiting for the end of a line.
        for bytes in [&b"1"[..], b"42 ", b"_x", b"#", b"$4", b"*1", b"~", b"9PUB x 3", b"\x10\x0c\0\x04MQTT"]
        {
            assert_eq!(judge(bytes), Some(Carried::Other), "{bytes:?}");
        }
        assert_eq!(judge(b"*1\r\n$4\r\nPING\r\n"), Some(Carried::Other));
        assert_eq!(judge(b"AMQP\0\0\x09\x01"), Some(Carried::Other));
        for line in [
            "GET key", // a Redis command
            "SET key :// x",
            "SSH-2.0-OpenSSH_9.9 Debian-3",
            "EHLO a.example",
            "MAIL FROM:<a@a.example>",
            "USER me 0 * :me",
            "STAT",
            "CONNECT {\"verbose\":false}",
            "CONNECT", // of STOMP
            "metric.a 1 1700000000",
            "POST x",
        ] {
            assert_eq!(judge(format!("{line}\r\n").as_bytes()), Some(Carried::Other), "{line}");
        }
        assert_eq!(judge(b"\0\0\0\x08\x04\xd2\x16\x2f"), Some(Carried::Other)); // PostgreSQL asking for TLS
        assert_eq!(judge(b"\x16\x03\x01\x40"), None);
        let said = ServerName::Said("a.example".into());
        assert_eq!(judge(&client_hello(Some(b"a.example"))), Some(Carried::Tls(said)));
        assert_eq!(judge(&client_hello(None)), Some(Carried::Tls(ServerName::None)));
        assert_eq!(judge(b""), None);
    }

    #[test]
    fn what_begins_like_a_record_of_tls_and_is_none_is_another_protocol() {
        // MongoDB: the length of a message, the number of a request, no answer's number, and OP_MSG or OP_QUERY.
        for (length, number, code) in [0x114_u32, 0x115, 0x218, 0x416, 0x1417]
            .into_iter()
            .flat_map(|length| [0_u32, 1, 7, 0x6b8b_4567].map(|number| (length, number)))
            .flat_map(|(length, number)| [2013_u32, 2004].map(|code| (length, number, code)))
        {
            let message = [length, number, 0, code, 0].map(u32::to_le_bytes).concat();
            assert_eq!(judge(&message), Some(Carried::Other), "{}", message.escape_ascii());
            assert_eq!(judge(&message[..5]), None);
        }
        for other in [
            &b"\x15\0\x2f\x0emc.example.com\x63\xdd\x01"[..], // Minecraft
            b"\x17\0\xff\x05\x0fmcc.example.com\x63\xdd\x01",
            b"\x15\0\0\0\x64\xff\xff\0\0\x02\0\x08\x009P2000.L", // 9P
        ] {
            assert_eq!(judge(other), Some(Carried::Other), "{}", other.escape_ascii());
        }
    }

    #[test]
    fn as_many_blanks_as_are_examined_are_left_to_the_http_plane() {
        for blanks in [&b"\r\n"[..], b" ", b"\n", b"\t\x0b"] {
            let blanks = blanks.repeat(LONGEST_LINE / blanks.len());
            assert_eq!(judge(&blanks[..LONGEST_LINE - 1]), None);
            assert_eq!(judge(&blanks), Some(Carried::Http));
            assert_eq!(judge(&[&blanks[..], b"GET / HTTP/1.1\r\n"].concat()), Some(Carried::Http));
            assert_eq!(judge(&[&blanks[..], b"*1\r\n"].concat()), Some(Carried::Other));
            // It refuses them, alone and before a request that comes later.
            for behind in [&b"\r\n\r\n"[..], b"GET / HTTP/1.1\r\nHost: b\r\n\r\n"] {
                assert!(parse_request_head(&[&blanks[..], behind].concat()).is_err());
            }
        }
        assert!(parse_request_head(b"\r\n\r\n").is_err(), "the first of many empty lines");
    }

    #[test]
    fn what_ends_is_judged_by_what_there_is() {
        for (bytes, carried) in [
            (&b""[..], Carried::End),
            (b"ruok", Carried::Other),
            (b"hello world", Carried::Other),
            (b"GET /x", Carried::Http),
            (b"POST /x HTTP/1.1\r", Carried::Http),
            (b"PROXY TCP4", Carried::Preface),
            (b"\r\n", Carried::Nothing),
            (b"\x16\x03\x01\x40", Carried::Nothing),
        ] {
            assert_eq!(judge_at_end(bytes), carried, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_preface_is_told_from_what_it_hides() {
        for preface in [&b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"[..], b"PROXY UNKNOWN\r\n", PREFACE] {
            for behind in [&b""[..], b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"] {
                assert_eq!(judge(&[preface, behind].concat()), Some(Carried::Preface));
            }
            for end in 1..preface.len() {
                assert_eq!(judge(&preface[..end]), None, "up to {end}");
            }
        }
        assert_eq!(judge(b"\r\n\r\n\0\r\nQUIT "), Some(Carried::Other));
        assert_eq!(judge(b"PROXYING on\r\n"), Some(Carried::Other));
    }

    #[test]
    fn a_hello_is_one_in_every_form_that_some_server_takes() {
        let hello = client_hello(Some(b"a.example"));
        for version in [[2, 1], [0, 0], [0xff, 0xff]] {
            let odd = [&[0x16][..], &version, &hello[3..]].concat();
            assert_eq!(judge(&odd), Some(Carried::Tls(ServerName::Unread)), "{version:?}");
            // In two records, the first as short as one can be, and behind an alert or a ChangeCipherSpec of that version.
            for before in [&b"\x16\0\0\0\x01\x01"[..], b"\x15\0\0\0\x02\x07\x5a", b"\x14\0\0\0\x01\x01"] {
                let odd = [&before[..1], &version, &before[3..], &hello].concat();
                assert_eq!(judge(&odd), Some(Carried::Tls(ServerName::Unread)), "{}", odd.escape_ascii());
            }
        }
        // After a warning alert, and after the ChangeCipherSpec that TLS 1.3 sends for the sake of middleboxes.
        for before in [&b"\x15\x03\x01\0\x02\x01\x5a"[..], b"\x14\x03\x03\0\x01\x01"] {
            let hello = [before, &hello].concat();
            assert_eq!(judge(&hello), Some(Carried::Tls(ServerName::Unread)), "{before:?}");
        }
        // A ClientHello that is longer than any that is read.
        let long = [&[0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &hello[9..], &[0; LARGEST_HELLO]].concat();
        assert_eq!(judge(&long), Some(Carried::Tls(ServerName::Unread)));
        for start in [&b"\x80\x2e\x01\x03\x01\0\x15"[..], b"\x80\x2e\x01\0\x02\0\x15"] {
            for cut in 1..4 {
                assert_eq!(judge(&start[..cut]), None);
            }
            assert_eq!(judge(start), Some(Carried::Tls(ServerName::Unread)), "{start:?}");
        }
        // After an empty record of another version, which has one behind it, and behind a length of three octets.
        let behind = [&b"\x16\x02\0\0\0"[..], &hello].concat();
        for hello in [&behind[..], b"\x14\x40\0\x01\x03\x01\0\x15"] {
            assert_eq!(judge(hello), Some(Carried::Tls(ServerName::Unread)), "{}", hello.escape_ascii());
        }
        // Telnet, asking not to be echoed, and text that begins with a letter beyond ASCII.
        for other in [&b"\xff\xfd\x01"[..], "ü".as_bytes(), b"\x80\x02\x05"] {
            assert_eq!(judge(other), Some(Carried::Other), "{other:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_judgement_stands_when_more_comes(bytes: Vec<u8>, cut in 0usize..64) {
            let cut = cut.min(bytes.len());
            if let Some(early) = judge(&bytes[..cut]) {
                proptest::prop_assert_eq!(Some(early), judge(&bytes));
            }
        }
    }
}
