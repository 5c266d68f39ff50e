//! Asks an HTTP proxy for a connection, by `CONNECT`.

use credential::Credential;
use data_encoding::BASE64;
use policy::{Host, Port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use super::proxy_error::ProxyError;
use super::proxy_login::login;
use crate::duplex::Duplex;

/// The most octets of response heads to a `CONNECT`, the interim ones among them.
const LARGEST: usize = 16 * 1024;

/// The status of a proxy that wants a login, and the one way in which it is given here (RFC 7617).
const PROXY_LOGIN: u16 = 407;
const BASIC: &str = "Basic";

/// Sends a `CONNECT` and reads the head of its response.
pub(super) async fn connect(
    stream: &mut impl Duplex,
    host: &Host,
    port: Port,
    credential: Option<&Credential>,
) -> Result<(), ProxyError> {
    let asked = format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n");
    // Joined at once: a buffer that grows leaves copies of the login behind.
    let head = Zeroizing::new(match credential {
        Some(credential) => {
            let (user, password) = login(credential)?;
            let both = Zeroizing::new([user, b":", password].concat());
            let encoded = Zeroizing::new(BASE64.encode(&both));
            [&asked, "proxy-authorization: Basic ", &encoded, "\r\n\r\n"].concat()
        }
        None => asked + "\r\n",
    });
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await?;
    let Head { status, logins } = final_head(stream).await?;
    match (status, credential) {
        (200..=299, _) => Ok(()),
        (PROXY_LOGIN, _) if !logins.is_empty() && !logins.contains(&BASIC) => {
            Err(ProxyError::OtherLogin(logins.join(" and ")))
        }
        (PROXY_LOGIN, Some(_)) => Err(ProxyError::WrongLogin),
        (PROXY_LOGIN, None) => Err(ProxyError::NoLogin),
        _ => Err(ProxyError::Status { status, port }),
    }
}

/// What counts of the head of a response.
struct Head {
    status: u16,
    /// The ways to authenticate that it offers, of those that have a name here.
    logins: Vec<&'static str>,
}

/// Reads heads up to that of the final response, and returns it. Interim ones come before it (RFC 9110 §15.2), but for a 101,
/// which was not asked for.
async fn final_head(stream: &mut impl Duplex) -> Result<Head, ProxyError> {
    let mut left = LARGEST;
    loop {
        let head = read_head(stream, &mut left).await?;
        if !matches!(head.status, 100 | 102..=199) {
            return Ok(head);
        }
    }
}

/// Reads one head of as many octets as are left.
async fn read_head(stream: &mut impl Duplex, left: &mut usize) -> Result<Head, ProxyError> {
    // Read octet by octet: the octets after the head belong to the connection. A line may end without its CR (RFC 9112 §2.2).
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n\r\n") && !answer.ends_with(b"\n\n") {
        *left = left.checked_sub(1).ok_or(ProxyError::LargeAnswer)?;
        answer.push(stream.read_u8().await?);
    }
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(&answer);
    let status = match (parsed, response.code) {
        // The parser ends it where it was ended here, or its octets would be the connection's and lost.
        (Ok(httparse::Status::Complete(end)), Some(code)) if end == answer.len() => code,
        // Nothing is read behind a refusal.
        (Ok(_), Some(code)) if code >= 300 => code,
        _ => return Err(ProxyError::Unreadable),
    };
    Ok(Head { status, logins: logins_in(response.headers) })
}

/// Returns the ways to authenticate that a head offers (RFC 9110 §11.7.1). The text is a proxy's, and only known names are told of it.
fn logins_in(fields: &[httparse::Header<'_>]) -> Vec<&'static str> {
    let named = fields.iter().filter(|field| field.name.eq_ignore_ascii_case("proxy-authenticate"));
    let challenges: Vec<&[u8]> = named.flat_map(|field| field.value.split(|octet| *octet == b',')).collect();
    let is_offered = |login: &&str| {
        challenges.iter().any(|challenge| {
            let name = challenge.trim_ascii().split(|octet| *octet == b' ').next().unwrap_or_default();
            name.eq_ignore_ascii_case(login.as_bytes())
        })
    };
    [BASIC, "Digest", "NTLM", "Negotiate", "Kerberos", "Bearer"].into_iter().filter(is_offered).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the outcome of a proxy's answer, and the octets that are left for the connection.
    async fn outcome(answer: &[u8]) -> (Result<(), String>, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(answer).await.unwrap();
        theirs.shutdown().await.unwrap();
        let (host, port) = (Host::parse("up.example").unwrap(), Port::new(443).unwrap());
        let done = connect(&mut ours, &host, port, None).await.map_err(|error| error.to_string());
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.unwrap();
        (done, rest)
    }

    #[tokio::test]
    async fn what_follows_an_answer_is_the_connections() {
        let (done, rest) = outcome(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello\r\n\r\n").await;
        assert_eq!((done, &rest[..]), (Ok(()), &b"hello\r\n\r\n"[..]));
        for bare in ["HTTP/1.0 200 OK\n\n", "HTTP/1.1 200 OK\nX: y\n\n", "HTTP/1.1 200 OK\r\nX: y\n\r\n"] {
            let (done, rest) = outcome(format!("{bare}hello\r\n\r\n").as_bytes()).await;
            assert_eq!((done, &rest[..]), (Ok(()), &b"hello\r\n\r\n"[..]), "{bare:?}");
        }
        let (done, _) = outcome(b"SSH-2.0-x\n\nhello").await;
        assert_eq!(done, Err("its answer cannot be read".into()));
    }

    #[tokio::test]
    async fn a_login_that_is_wanted_is_told_by_what_is_missing() {
        let told = async |challenges: &str| {
            let (done, _) = outcome(format!("HTTP/1.1 407 x\r\n{challenges}\r\n").as_bytes()).await;
            done.unwrap_err()
        };
        for missing in
            ["", "Proxy-Authenticate: Digest realm=\"x\"\r\nproxy-authenticate: basic realm=\"x\"\r\n"]
        {
            assert!(told(missing).await.starts_with("it wants a user and a password"), "{missing}");
        }
        let other = told("Proxy-Authenticate: Negotiate, NTLM\r\nProxy-Authenticate: Hunter2\r\n").await;
        assert!(other.starts_with("it takes a login by NTLM and Negotiate alone"), "{other}");
        assert!(!other.contains("Hunter2"), "{other}");
    }

    #[tokio::test]
    async fn interim_answers_come_before_the_final_one() {
        const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        for (last, told) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Ok(())),
            ("HTTP/1.1 404 x\r\n\r\n", Err("it answered 404")),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Err("it answered 101")),
            ("HTTP/1.1 100 Continue\n\nhello\r\n\r\n", Err("its answer cannot be read")),
        ] {
            let (done, rest) = outcome(format!("{INTERIM}{last}hello").as_bytes()).await;
            assert_eq!((done, &rest[..]), (told.map_err(str::to_owned), &b"hello"[..]), "{last}");
        }
        // They share one bound.
        let answer = INTERIM.repeat(LARGEST / INTERIM.len() + 1);
        assert_eq!(outcome(answer.as_bytes()).await.0, Err("its answer is too large".into()));
    }
}
