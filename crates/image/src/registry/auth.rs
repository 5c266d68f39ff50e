//! Authentication at a registry: its challenges, and the credentials or tokens that answer them.

use data_encoding::BASE64;
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::client::{Answer, Ask, Client, failed, refused};
use super::request::{Login, Transport};
use super::url::Url;
use crate::error::Error;
use crate::manifest::parse;

/// The largest answer of a token service.
const LARGEST: u64 = 64 << 10;

/// A registry's challenge.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

/// Returns the `Authorization` that answers a registry's 401, for reading one repository.
pub(super) async fn answer(
    client: &Client<'_>,
    asked: &Url,
    denied: &Answer,
    repository: &str,
    login: Option<&Login>,
    transport: Transport,
) -> Result<HeaderValue, Error> {
    // A password is for the registry: the target of its redirect must not choose where the password goes.
    if let Some(other) = &denied.other {
        return Err(refused(other, "the registry sends there, and there it is asked who asks"));
    }
    let fields = denied.headers.get_all(header::WWW_AUTHENTICATE).iter();
    let challenge = fields.filter_map(|field| Challenge::parse(field.to_str().ok()?)).next();
    match (challenge, login) {
        (Some(Challenge::Basic), Some(login)) => Ok(basic(login)),
        (Some(Challenge::Bearer { realm, service }), login) => {
            let mut url =
                Url::parse(&realm).ok_or_else(|| refused(asked, "its token service is no address"))?;
            // A password goes in the clear to this machine only, unless the user allowed it for the registry.
            let exposed = login.is_some() && transport == Transport::Tls && !is_this_machine(&url.host);
            if url.transport == Transport::Plain && (asked.transport == Transport::Tls || exposed) {
                return Err(refused(asked, "its token service is in the clear"));
            }
            let service = service.map(|s| format!("service={}&", encoded(&s))).unwrap_or_default();
            let divide = if url.target.contains('?') { '&' } else { '?' };
            url.target = format!(
                "{}{divide}{service}scope={}",
                url.target,
                encoded(&format!("repository:{repository}:pull"))
            );
            token(client, url, login).await
        }
        (Some(Challenge::Basic) | None, _) => {
            Err(refused(asked, "it wants to know who asks; name a credential with --credential"))
        }
    }
}

/// Whether a host is this machine, so that nothing crosses a network.
pub(super) fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

async fn token(client: &Client<'_>, url: Url, login: Option<&Login>) -> Result<HeaderValue, Error> {
    // A token service sends one of the two, or both with the same value.
    #[derive(Deserialize)]
    struct Token {
        token: Option<Zeroizing<String>>,
        access_token: Option<Zeroizing<String>>,
    }
    let ask = Ask { url, accept: "application/json", authorization: login.map(basic), from: 0 };
    let answer = client.get(&ask).await?;
    if !answer.status.is_success() {
        let hint = match (answer.status, login) {
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None) => {
                "; name a credential with --credential"
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some(_)) => "; it refuses the credential",
            _ => "",
        };
        let why = format!("its token service answered {}{hint}", answer.status.as_u16());
        return Err(refused(&ask.url, &why));
    }
    let body = Zeroizing::new(answer.read(LARGEST).await.map_err(|source| failed(&ask.url, source))?);
    let Token { token, access_token } = parse("token", &body)?;
    let token =
        token.or(access_token).and_then(|token| sensitive(Zeroizing::new(format!("Bearer {}", *token))));
    token.ok_or_else(|| refused(&ask.url, "its token service gave a token that is none"))
}

fn basic(login: &Login) -> HeaderValue {
    let both = Zeroizing::new(format!("{}:{}", login.username, *login.password));
    let text = Zeroizing::new(format!("Basic {}", BASE64.encode(both.as_bytes())));
    sensitive(text).unwrap_or_else(|| HeaderValue::from_static("Basic"))
}

fn sensitive(text: Zeroizing<String>) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

impl Challenge {
    /// Parses a list of challenges, of which it returns the first that is `Basic …`, or `Bearer realm="…",service="…"`: RFC 9110
    /// section 11.6.1.
    fn parse(field: &str) -> Option<Self> {
        let mut bearer = None::<Parameters>;
        for element in elements(field)? {
            let (scheme, parameter) = begins_challenge(element);
            if let Some(scheme) = scheme {
                if let Some(whole) = bearer.take().and_then(Parameters::whole) {
                    return Some(whole);
                }
                if scheme.eq_ignore_ascii_case("basic") {
                    return Some(Self::Basic);
                }
                bearer = scheme.eq_ignore_ascii_case("bearer").then(Parameters::default);
            }
            let (Some(bearer), Some((name, value))) = (&mut bearer, parameter.split_once('=')) else {
                continue;
            };
            match name.trim().to_ascii_lowercase().as_str() {
                "realm" => bearer.realm = Some(unquoted(value)),
                "service" => bearer.service = Some(unquoted(value)),
                _ => {}
            }
        }
        bearer.and_then(Parameters::whole)
    }
}

/// The parameters of a challenge `Bearer`.
#[derive(Default)]
struct Parameters {
    realm: Option<String>,
    service: Option<String>,
}

impl Parameters {
    fn whole(self) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: self.realm?, service: self.service })
    }
}

/// Splits a field at its commas outside of quotes. `None` if a quote does not end.
fn elements(field: &str) -> Option<Vec<&str>> {
    let (mut found, mut begin, mut is_quoted, mut is_escaped) = (Vec::new(), 0, false, false);
    for (at, octet) in field.bytes().enumerate() {
        match octet {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => {
                found.push(field[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(field[begin..].trim());
    (!is_quoted).then_some(found)
}

/// Returns the scheme with which an element begins a challenge, and its parameter.
fn begins_challenge(element: &str) -> (Option<&str>, &str) {
    let end = element.find([' ', '\t', '=']).unwrap_or(element.len());
    let (token, rest) = (&element[..end], element[end..].trim_start());
    if token.is_empty() || rest.starts_with('=') { (None, element) } else { (Some(token), rest) }
}

/// Returns a parameter's value, a token or a quoted text.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    let Some(quoted) = value.strip_prefix('"') else { return value.to_owned() };
    let (mut text, mut characters) = (String::new(), quoted.chars());
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    text
}

/// Percent-encodes a value of a query, except the unreserved characters of RFC 3986 section 2.3 and a few that are safe there.
fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b':' | b'/');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::{Connect, Connecting, PullRequest, Stream, pull};
    use super::*;
    use crate::{Bounds, Owners, Store};

    /// Answers each connection with the next text, and records its host and what was sent.
    struct Script {
        answers: RefCell<Vec<&'static str>>,
        asked: RefCell<Vec<(String, tokio::task::JoinHandle<String>)>>,
    }

    impl Connect for Script {
        fn connect<'a>(&'a self, host: &'a str, _: u16, _: Transport) -> Connecting<'a> {
            Box::pin(async move {
                // This kind of error is not retried.
                let answer = self.answers.borrow_mut().pop().ok_or(std::io::ErrorKind::PermissionDenied)?;
                let (ours, mut theirs) = tokio::io::duplex(64 << 10);
                let said = tokio::task::spawn_local(async move {
                    let mut said = Vec::new();
                    while !said.ends_with(b"\r\n\r\n") {
                        let Ok(octet) = theirs.read_u8().await else { break };
                        said.push(octet);
                    }
                    let _ = theirs.write_all(answer.as_bytes()).await;
                    String::from_utf8(said).unwrap()
                });
                self.asked.borrow_mut().push((host.to_owned(), said));
                Ok(Box::new(ours) as Box<dyn Stream>)
            })
        }
    }

    /// Pulls, and returns the hosts that were sent a password, and the error.
    fn asked_with_password(answers: &[&'static str]) -> (Vec<String>, String) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let script = Script {
            answers: RefCell::new(answers.iter().rev().copied().collect()),
            asked: RefCell::default(),
        };
        let request = PullRequest {
            reference: &"registry.example/it".parse().unwrap(),
            login: Some(Login { username: "me".into(), password: "hush".to_owned().into() }),
            transport: Transport::Tls,
            bounds: Bounds { octets: 1 << 20, entries: 1000 },
            owners: Owners::Caller,
        };
        let error = pull(&store, &script, &request, &mut |_| {}).unwrap_err().to_string();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let basic = BASE64.encode(b"me:hush");
        let asked = script.asked.into_inner().into_iter();
        let hosts = asked.filter_map(|(host, said)| {
            let said = runtime.block_on(said).unwrap();
            said.contains(&basic).then_some(host)
        });
        (hosts.collect(), error)
    }

    /// Pulls an image of one layer of which the first four octets are here, and returns how it ended and the ranges that were asked for.
    fn continued(refusal: &'static str) -> (Result<crate::Listed, Error>, Vec<Option<String>>) {
        let leaked = |text: String| &*Box::leak(text.into_boxed_str());
        let answer =
            |body: &str| leaked(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        let layer = "\0".repeat(1024);
        let digest = crate::Digest::of(layer.as_bytes());
        let config = format!(r#"{{"rootfs":{{"diff_ids":["{digest}"]}}}}"#);
        let manifest = format!(
            r#"{{"config":{{"digest":"{}","size":1}},"layers":[{{"digest":"{digest}","size":1024}}]}}"#,
            crate::Digest::of(config.as_bytes())
        );
        let answers = [answer(&manifest), answer(&config), refusal, answer(&layer)];
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        std::fs::write(store.blob(&digest), "other octets").unwrap();
        let script =
            Script { answers: RefCell::new(answers.into_iter().rev().collect()), asked: RefCell::default() };
        let request = PullRequest {
            reference: &"registry.example/it".parse().unwrap(),
            login: None,
            transport: Transport::Tls,
            bounds: Bounds { octets: 1 << 20, entries: 1000 },
            owners: Owners::Caller,
        };
        let ended = pull(&store, &script, &request, &mut |_| {});
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let range =
            |said: String| said.lines().find_map(|line| line.strip_prefix("range: ").map(str::to_owned));
        let asked =
            script.asked.into_inner().into_iter().map(|(_, said)| range(runtime.block_on(said).unwrap()));
        (ended, asked.collect())
    }

    #[test]
    fn what_is_not_continued_begins_anew() {
        for refusal in [
            "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-3/1024\r\nContent-Length: 4\r\n\r\nabcd",
        ] {
            let (ended, ranges) = continued(refusal);
            assert!(ended.is_ok(), "{refusal}: {ended:?}");
            assert_eq!(ranges, [None, None, Some("bytes=12-".to_owned()), None]);
        }
    }

    const CHALLENGE: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\
        WWW-Authenticate: Bearer realm=\"https://token.example/\"\r\n\r\n";
    const TOKEN: &str = "HTTP/1.1 200 OK\r\n\r\n{\"token\":\"x\"}";

    #[test]
    fn a_place_the_registry_sends_to_names_no_token_service() {
        let moved = "HTTP/1.1 307 Temporary Redirect\r\nLocation: https://store.example/x\r\nContent-Length: 0\r\n\r\n";
        let (hosts, error) = asked_with_password(&[moved, CHALLENGE, TOKEN]);
        assert!(hosts.is_empty() && error.contains("store.example"), "{hosts:?}: {error}");
        let (hosts, error) = asked_with_password(&[CHALLENGE, TOKEN]);
        assert_eq!(hosts, ["token.example"], "{error}");
    }

    #[test]
    fn challenges_are_read() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.map(Into::into) })
        };
        let parse = Challenge::parse;
        assert_eq!(parse("Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(
            parse("bearer Realm=\"https://a/t\", service=\"s,x\",scope=\"y\""),
            bearer("https://a/t", Some("s,x"))
        );
        assert_eq!(parse("Bearer realm=\"https://a/t\""), bearer("https://a/t", None));
        let several = "Negotiate, Bearer realm=\"https://a/t\",service=\"s\", Basic realm=\"x\"";
        assert_eq!(parse(several), bearer("https://a/t", Some("s")));
        assert_eq!(parse("Negotiate YII==, Basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(parse("Bearer realm=https://a/t, service = s"), bearer("https://a/t", Some("s")));
        assert_eq!(parse("Digest realm=\"a, Basic \\\" b\", Bearer realm=\"x\\\"y\""), bearer("x\"y", None));
        for wrong in ["", ",,", "Digest x", "Bearer", "Bearer service=\"x\"", "Bearer realm=\"x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(encoded("a b&c=d/é"), "a%20b%26c%3Dd/%C3%A9");
    }
}
