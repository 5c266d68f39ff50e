//! Which answer belongs to which host and path. The servers are told apart by the address they were reached at, the
//! services on the web address by the host that was named. It must not write to the wire.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::git::Repository;
use crate::registries::Registries;
use crate::response::Response;
use crate::wire::{Body, Head, latin1};

/// `/slow` and `/bytes` go no further than this.
const MAX_WAIT: Duration = Duration::from_secs(120);
const MAX_BYTES: u64 = 16 << 30;

/// The services behind the web address.
pub(crate) struct Services {
    pub(crate) registries: Registries,
    pub(crate) repository: Option<Repository>,
}

impl Services {
    /// The answer of `server` to a request that came over `scheme`.
    pub(crate) async fn answer(&self, server: &str, scheme: &str, head: &Head, body: &Body) -> Response {
        let (path, query) = head.target.split_once('?').unwrap_or((&head.target, ""));
        if server == "metadata" {
            return metadata(path, head);
        }
        let host = head.host();
        if server == "web" {
            if let Some(response) = self.registries.answer(&host, path) {
                return response;
            }
            let hosts_git = host == "git.example.org" || host == "github.com";
            if let Some(repository) =
                self.repository.as_ref().filter(|_| hosts_git && path.starts_with("/repo.git"))
            {
                return repository.answer(path, query, head, body).await;
            }
        }
        special(path, query, head, body).unwrap_or_else(|| Response::json(&echo(server, scheme, head, body)))
    }
}

/// The paths that every server but the metadata service knows.
fn special(path: &str, query: &str, head: &Head, body: &Body) -> Option<Response> {
    let parameter = |name: &str| {
        query
            .split('&')
            .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
    };
    if let Some(count) = path.strip_prefix("/bytes/") {
        return Some(Response::Bytes(count.parse().unwrap_or(0).min(MAX_BYTES)));
    }
    if let Some(status) = path.strip_prefix("/status/") {
        return Some(Response::of(status.parse().unwrap_or(400), "text/plain", "as you wish\n"));
    }
    match path {
        "/slow" => {
            let wait = Duration::from_millis(parameter("ms")?.parse().unwrap_or(0)).min(MAX_WAIT);
            Some(Response::Late(wait, json!({ "path": head.target, "waited_ms": wait.as_millis() })))
        }
        "/redirect" => {
            let location = percent_decoded(parameter("to")?);
            let headers = vec![("location".to_owned(), location)];
            Some(Response::Whole { status: 302, headers, body: Vec::new() })
        }
        "/mirror" => {
            Some(Response::of(200, head.header("content-type").unwrap_or("text/plain"), body.kept.clone()))
        }
        "/hang" => Some(Response::Hang),
        "/sse" => Some(Response::Events(5)),
        _ => None,
    }
}

/// What was asked, said back.
fn echo(server: &str, scheme: &str, head: &Head, body: &Body) -> Value {
    let mut headers = Map::new();
    for (name, value) in &head.headers {
        let name = name.to_ascii_lowercase();
        let joined = headers.get(&name).and_then(Value::as_str).map(|before| format!("{before}, {value}"));
        headers.insert(name, Value::String(joined.unwrap_or_else(|| value.clone())));
    }
    json!({
        "server": server,
        "scheme": scheme,
        "method": head.method,
        "path": head.target,
        "host": head.header("host"),
        "headers": headers,
        "body_length": body.length,
    })
}

/// A cloud's metadata service, with a credential that a test can search for.
fn metadata(path: &str, head: &Head) -> Response {
    let role = "/latest/meta-data/iam/security-credentials/";
    match path {
        "/latest/api/token" if head.method == "PUT" => {
            Response::of(200, "text/plain", "world-metadata-token")
        }
        _ if path == role => Response::of(200, "text/plain", "world-role"),
        _ if path.starts_with(role) => Response::json(&json!({
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": "WORLDMETADATAKEY",
            "SecretAccessKey": "world-metadata-secret",
            "Token": "world-metadata-session",
            "Expiration": "2099-01-01T00:00:00Z",
        })),
        _ if path.starts_with("/computeMetadata/v1/") => {
            Response::json(&json!({ "access_token": "world-metadata-secret", "token_type": "Bearer" }))
        }
        _ => Response::of(200, "text/plain", "ami-id\nhostname\niam/\ninstance-id\nlocal-ipv4\n"),
    }
}

/// `%XX` as the byte it stands for; anything else as it is. Line ends are dropped: they would end the header they go into.
fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let pair = tail.get(..2).filter(|_| *first == b'%').and_then(|pair| std::str::from_utf8(pair).ok());
        match pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes.retain(|byte| !b"\r\n".contains(byte));
    String::from_utf8(bytes).unwrap_or_else(|error| latin1(error.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_decoding_keeps_what_is_no_escape() {
        assert_eq!(percent_decoded("http%3A%2f%2Fa/%zz%"), "http://a/%zz%");
        assert_eq!(percent_decoded("a%0d%0ab"), "ab");
    }
}
