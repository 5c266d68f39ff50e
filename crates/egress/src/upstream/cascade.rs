//! Connects through an upstream proxy: `CONNECT`, in the clear or over TLS, or SOCKS 5.
//!
//! The proxy is asked for the granted name. The name's addresses have been judged before, as far as it resolves here.

use std::io;

use credential::Credential;
use data_encoding::BASE64;
use policy::{Host, Port, Proxy, ProxyScheme};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use super::dial::{Dialled, dial_proxy};
use super::trust::{Offer, Trust};
use crate::credentials::USERNAME;
use crate::duplex::Duplex;
use crate::gate::Gate;
use crate::resolve::Answers;

/// The most octets of response heads to a `CONNECT`, the interim ones among them.
const LARGEST: usize = 16 * 1024;

/// Connects to a host through a proxy that the policy declares, with its credential.
pub(super) async fn through(gate: &Gate, proxy: &Proxy, host: &Host, port: Port) -> io::Result<Dialled> {
    let credential = match &proxy.credential {
        Some(id) => {
            let held = gate.credentials().of(id).await;
            Some(held.map_err(|denial| refusal(proxy, &denial.reason))?)
        }
        None => None,
    };
    let credential = credential.as_ref().map(|held| held.credential());
    let connector = ProxyConnector { answers: gate.answers(), trust: gate.trust(), credential };
    connector.connect(proxy, host, port).await
}

fn refusal(proxy: &Proxy, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, format!("proxy {}: {why}", proxy.id))
}

/// Connects through proxies: with a resolver for their names, the authorities to verify them, and a credential for them.
pub(super) struct ProxyConnector<'a> {
    pub(super) answers: &'a Answers,
    pub(super) trust: &'a Trust,
    pub(super) credential: Option<&'a Credential>,
}

impl ProxyConnector<'_> {
    /// Connects to a host through a proxy.
    pub(super) async fn connect(&self, proxy: &Proxy, host: &Host, port: Port) -> io::Result<Dialled> {
        let refused = |why: String| refusal(proxy, &why);
        let failed = |what: &str, error: &io::Error| {
            io::Error::new(error.kind(), format!("proxy {} {what}: {error}", proxy.id))
        };
        let found = self.answers.of(&proxy.host).await.map_err(|denial| refused(denial.reason))?;
        proxy.vet(&found).map_err(|denial| refused(denial.reason))?;
        let mut stream =
            dial_proxy(&found, proxy.port).await.map_err(|error| failed("cannot be reached", &error))?;
        match proxy.scheme {
            ProxyScheme::Http => {
                connect(&mut stream, host, port, self.credential).await.map_err(refused)?;
                Ok(Dialled::Tcp(stream))
            }
            ProxyScheme::Https => {
                let name = match &proxy.host {
                    Host::Name(name) => {
                        ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?
                    }
                    Host::Address(address) => ServerName::from(*address),
                };
                let connector = TlsConnector::from(self.trust.config(Offer::Version1)?);
                let mut stream = connector
                    .connect(name, stream)
                    .await
                    .map_err(|error| failed("cannot be spoken to over TLS", &error))?;
                connect(&mut stream, host, port, self.credential).await.map_err(refused)?;
                Ok(Dialled::Tls(Box::new(stream)))
            }
            ProxyScheme::Socks5 => {
                socks5(&mut stream, host, port, self.credential).await.map_err(refused)?;
                Ok(Dialled::Tcp(stream))
            }
        }
    }
}

/// Returns the user and the password for a proxy. Both must be set: an empty one would be another identity.
fn user(credential: &Credential) -> Result<(&[u8], &[u8]), String> {
    let field = |name: &str| match credential.field(name) {
        Some(secret) => Ok(secret.expose()),
        None => Err(format!("its credential has no `{name}`")),
    };
    Ok((field(USERNAME)?, field("password")?))
}

/// Sends a `CONNECT` and reads the head of its response.
async fn connect(
    stream: &mut impl Duplex,
    host: &Host,
    port: Port,
    credential: Option<&Credential>,
) -> Result<(), String> {
    let mut head =
        Zeroizing::new(format!("CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n").into_bytes());
    if let Some(credential) = credential {
        let (user, password) = user(credential)?;
        let both = Zeroizing::new([user, b":", password].concat());
        let encoded = Zeroizing::new(BASE64.encode(&both));
        head.extend(b"proxy-authorization: Basic ");
        head.extend(encoded.bytes());
        head.extend(b"\r\n");
    }
    head.extend(b"\r\n");
    stream.write_all(&head).await.map_err(|e| e.to_string())?;
    stream.flush().await.map_err(|e| e.to_string())?;
    match final_status(stream).await? {
        200..=299 => Ok(()),
        code => Err(not_connected(code, port)),
    }
}

/// Reads heads up to that of the final response, and returns its status. Interim ones come before it (RFC 9110 §15.2), but for a 101,
/// which was not asked for.
async fn final_status(stream: &mut impl Duplex) -> Result<u16, String> {
    let mut left = LARGEST;
    loop {
        match read_status(stream, &mut left).await? {
            100 | 102..=199 => {}
            status => return Ok(status),
        }
    }
}

/// Reads one head of as many octets as are left, and returns its status.
async fn read_status(stream: &mut impl Duplex, left: &mut usize) -> Result<u16, String> {
    // Read octet by octet: the octets after the head belong to the connection.
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        *left = left.checked_sub(1).ok_or("its answer is too large")?;
        answer.push(stream.read_u8().await.map_err(|e| e.to_string())?);
    }
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut response = httparse::Response::new(&mut fields);
    match (response.parse(&answer), response.code) {
        // If the parser ends the head earlier, the octets after it were the connection's and are lost.
        (Ok(httparse::Status::Complete(end)), Some(code)) if end == answer.len() => Ok(code),
        // Nothing is read behind a refusal.
        (Ok(_), Some(code)) if code >= 300 => Ok(code),
        _ => Err("its answer cannot be read".into()),
    }
}

/// Says what became of a `CONNECT`. Plain `http://` is asked for by it too, and Squid as shipped, for one, allows port 443 alone.
fn not_connected(code: u16, port: Port) -> String {
    match (code, port.number()) {
        (403 | 405, port) if port != 443 => format!(
            "it answered {code} to a CONNECT to port {port}: many proxies allow port 443 alone; ask over https, or have this port allowed there"
        ),
        _ => format!("it answered {code}"),
    }
}

/// Asks a SOCKS 5 proxy for a connection (RFC 1928).
async fn socks5(
    stream: &mut impl Duplex,
    host: &Host,
    port: Port,
    credential: Option<&Credential>,
) -> Result<(), String> {
    socks5_authenticate(stream, credential).await?;
    let request = socks5_request(host, port)?;
    stream.write_all(&request).await.map_err(|e| e.to_string())?;
    socks5_reply(stream).await
}

/// Agrees on a method of authentication, and sends user and password if there is a credential and the proxy wants it (RFC 1929).
async fn socks5_authenticate(
    stream: &mut impl Duplex,
    credential: Option<&Credential>,
) -> Result<(), String> {
    const NO_AUTHENTICATION: u8 = 0;
    const USER_AND_PASSWORD: u8 = 2;
    let text = |e: io::Error| e.to_string();
    // The login first: some proxies take the first method that they know.
    let offer: &[u8] = match credential {
        Some(_) => &[5, 2, USER_AND_PASSWORD, NO_AUTHENTICATION],
        None => &[5, 1, NO_AUTHENTICATION],
    };
    stream.write_all(offer).await.map_err(text)?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await.map_err(text)?;
    let credential = match (chosen, credential) {
        ([5, NO_AUTHENTICATION], _) => return Ok(()),
        ([5, USER_AND_PASSWORD], Some(credential)) => credential,
        _ => return Err("it wants another way to authenticate".into()),
    };
    let (user, password) = user(credential)?;
    let (Ok(user_length), Ok(password_length)) = (u8::try_from(user.len()), u8::try_from(password.len()))
    else {
        return Err("its user or password is longer than 255 octets".into());
    };
    let message = Zeroizing::new([&[1, user_length][..], user, &[password_length], password].concat());
    stream.write_all(&message).await.map_err(text)?;
    stream.read_exact(&mut chosen).await.map_err(text)?;
    if chosen[1] != 0 {
        return Err("it refused user and password".into());
    }
    Ok(())
}

/// Encodes a SOCKS 5 `CONNECT` (RFC 1928 §4).
fn socks5_request(host: &Host, port: Port) -> Result<Vec<u8>, String> {
    let mut request = vec![5, 1, 0];
    match host {
        Host::Name(name) => {
            let length = u8::try_from(name.as_str().len()).map_err(|_| "the name is too long".to_owned())?;
            request.extend([3, length]);
            request.extend(name.as_str().bytes());
        }
        Host::Address(std::net::IpAddr::V4(v4)) => {
            request.push(1);
            request.extend(v4.octets());
        }
        Host::Address(std::net::IpAddr::V6(v6)) => {
            request.push(4);
            request.extend(v6.octets());
        }
    }
    request.extend(port.number().to_be_bytes());
    Ok(request)
}

/// Reads the reply to a SOCKS 5 request (RFC 1928 §6), to the end of its bound address.
async fn socks5_reply(stream: &mut impl Duplex) -> Result<(), String> {
    let text = |e: io::Error| e.to_string();
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.map_err(text)?;
    if head[0] != 5 {
        return Err("its answer cannot be read".into());
    }
    if head[1] != 0 {
        return Err(format!("it refused the connection with code {}", head[1]));
    }
    let rest = match head[3] {
        1 => 4,
        4 => 16,
        3 => usize::from(stream.read_u8().await.map_err(text)?),
        _ => return Err("its answer cannot be read".into()),
    };
    let mut bound = vec![0; rest + 2];
    stream.read_exact(&mut bound).await.map(drop).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the outcome of a proxy's answer, and the octets that are left for the connection.
    async fn outcome(socks: &str, answer: &[u8]) -> (Result<(), String>, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(answer).await.unwrap();
        theirs.shutdown().await.unwrap();
        let (host, port) = (Host::parse("up.example").unwrap(), Port::new(443).unwrap());
        let done = match socks {
            "socks5" => socks5(&mut ours, &host, port, None).await,
            _ => connect(&mut ours, &host, port, None).await,
        };
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.unwrap();
        (done, rest)
    }

    #[tokio::test]
    async fn what_follows_an_answer_is_the_connections() {
        let (done, rest) = outcome("http", b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello\r\n\r\n").await;
        assert_eq!((done, &rest[..]), (Ok(()), &b"hello\r\n\r\n"[..]));
        let (done, _) = outcome("http", b"HTTP/1.1 200 OK\n\nhello\r\n\r\n").await;
        assert_eq!(done, Err("its answer cannot be read".into()));
        let (done, _) = outcome("http", b"HTTP/1.1 407 x\r\n\r\n").await;
        assert_eq!(done, Err("it answered 407".into()));
    }

    #[tokio::test]
    async fn interim_answers_come_before_the_final_one() {
        const INTERIM: &str = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        for (last, told) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Ok(())),
            ("HTTP/1.1 407 x\r\n\r\n", Err("it answered 407")),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", Err("it answered 101")),
            ("HTTP/1.1 100 Continue\n\nhello\r\n\r\n", Err("its answer cannot be read")),
        ] {
            let (done, rest) = outcome("http", format!("{INTERIM}{last}hello").as_bytes()).await;
            assert_eq!((done, &rest[..]), (told.map_err(str::to_owned), &b"hello"[..]), "{last}");
        }
        // They share one bound.
        let answer = INTERIM.repeat(LARGEST / INTERIM.len() + 1);
        assert_eq!(outcome("http", answer.as_bytes()).await.0, Err("its answer is too large".into()));
    }

    #[test]
    fn a_refused_port_is_told_with_what_to_do() {
        let refused = not_connected(403, Port::new(80).unwrap());
        assert!(refused.starts_with("it answered 403") && refused.contains("over https"), "{refused}");
        assert_eq!(not_connected(403, Port::new(443).unwrap()), "it answered 403");
        assert_eq!(not_connected(407, Port::new(80).unwrap()), "it answered 407");
    }

    #[tokio::test]
    async fn a_proxy_may_ask_for_no_login_although_there_is_one() {
        let mut credential = Credential::default();
        for field in ["username", "password"] {
            let value = credential::Value::new(credential::Secret::from_text("bob".into())).unwrap();
            credential.set(field.parse().unwrap(), value);
        }
        for (chosen, outcome, told) in [
            (&b"\x05\0"[..], Ok(()), &b"\x05\x02\x02\0"[..]),
            (b"\x05\x02\x01\0", Ok(()), b"\x05\x02\x02\0\x01\x03bob\x03bob"),
            (b"\x05\x01", Err("it wants another way to authenticate".to_owned()), b"\x05\x02\x02\0"),
        ] {
            let (mut ours, mut theirs) = tokio::io::duplex(1024);
            theirs.write_all(chosen).await.unwrap();
            assert_eq!(socks5_authenticate(&mut ours, Some(&credential)).await, outcome);
            drop(ours);
            let mut asked = Vec::new();
            theirs.read_to_end(&mut asked).await.unwrap();
            assert_eq!(asked, told);
        }
    }

    #[tokio::test]
    async fn a_credential_without_a_field_is_not_sent_with_an_empty_one() {
        let mut credential = Credential::default();
        let name = credential::Value::new(credential::Secret::from_text("bob".into())).unwrap();
        credential.set("username".parse().unwrap(), name);
        let (host, port) = (Host::parse("up.example").unwrap(), Port::new(443).unwrap());
        let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
        theirs.write_all(b"\x05\x02").await.unwrap();
        let missing = Err("its credential has no `password`".to_owned());
        assert_eq!(connect(&mut ours, &host, port, Some(&credential)).await, missing);
        assert_eq!(socks5(&mut ours, &host, port, Some(&credential)).await, missing);
    }

    #[tokio::test]
    async fn an_answer_of_another_protocol_is_none() {
        let (done, rest) = outcome("socks5", b"\x05\0\x05\0\0\x01\x7f\0\0\x01\x01\xbbhello").await;
        assert_eq!((done, &rest[..]), (Ok(()), &b"hello"[..]));
        let (done, _) = outcome("socks5", b"\x05\0\x04\0\0\x01\x7f\0\0\x01\x01\xbbhello").await;
        assert_eq!(done, Err("its answer cannot be read".into()));
    }
}
