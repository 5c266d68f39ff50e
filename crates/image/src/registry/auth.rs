//! Who asks: what a registry wants to see before it gives anything, and how that is got.

use data_encoding::BASE64;
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::client::{Answer, Ask, Client, failed, refused};
use super::request::Login;
use super::url::Url;
use crate::error::Error;
use crate::manifest::parse;

/// The largest answer of a token service.
const LARGEST: u64 = 64 << 10;

/// What a registry asks for.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String> },
}

/// Gets what answers a 401 of a registry, for reading one repository.
pub(super) async fn answer(
    client: &Client<'_>,
    asked: &Url,
    denied: &Answer,
    repository: &str,
    login: Option<&Login>,
    plain_http: bool,
) -> Result<HeaderValue, Error> {
    let fields = denied.headers.get_all(header::WWW_AUTHENTICATE).iter();
    let challenge = fields.filter_map(|field| Challenge::parse(field.to_str().ok()?)).next();
    match (challenge, login) {
        (Some(Challenge::Basic), Some(login)) => Ok(basic(login)),
        (Some(Challenge::Bearer { realm, service }), login) => {
            let mut url =
                Url::parse(&realm).ok_or_else(|| refused(asked, "its token service is no address"))?;
            // In the clear a password goes to this machine at most, unless that was said of the registry.
            let exposed = login.is_some() && !(plain_http || is_this_machine(&url.host));
            if !url.secure && (asked.secure || exposed) {
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

/// Whether a host is this machine: what is sent there does not cross a network.
pub(super) fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

async fn token(client: &Client<'_>, url: Url, login: Option<&Login>) -> Result<HeaderValue, Error> {
    // One of the two, or both with the same value.
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
    /// Reads `Basic …`, or `Bearer realm="…",service="…"`, RFC 9110 section 11.
    fn parse(field: &str) -> Option<Self> {
        let (scheme, rest) = field.split_once(' ').unwrap_or((field, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        let mut rest = rest.trim_start();
        while let Some((name, value)) = rest.split_once("=\"") {
            let end = value.find('"')?;
            match name.trim().to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value[..end].to_owned()),
                "service" => service = Some(value[..end].to_owned()),
                _ => {}
            }
            rest = value[end + 1..].trim_start_matches([',', ' ']);
        }
        Some(Self::Bearer { realm: realm?, service })
    }
}

/// What may stand in a query as it is, RFC 3986 section 2.3; everything else is encoded.
fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b':' | b'/');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for wrong in ["", "Digest x", "Bearer", "Bearer service=\"x\"", "Bearer realm=\"x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(encoded("a b&c=d/é"), "a%20b%26c%3Dd/%C3%A9");
    }
}
