//! The JSON form of S2 on the Unix socket: `{"capability", "method", "url", "headers", "body"}` a line, and a line of JSON
//! back. It is turned into a request of the gateway, so there is nothing that it may and others may not.

use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::gate::Gate;
use crate::http::head::Buffered;
use crate::http::request::Via;
use crate::http::serve1::serve_requests;
use crate::http::stream::AgentStream;

/// The largest line, and the largest answer that fits into one.
const LARGEST: usize = 1024 * 1024;
const LARGEST_ANSWER: u64 = 2 * 1024 * 1024;
/// How long the rest of a line, and the next line, may take.
const IDLE: Duration = Duration::from_secs(120);

/// One request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    /// The provider whose credential is to be used; none is a request without.
    #[serde(default)]
    capability: Option<String>,
    method: String,
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Option<String>,
}

/// Serves lines until the agent ends.
pub(super) async fn serve(gate: Rc<Gate>, mut agent: Buffered<UnixStream>) -> io::Result<()> {
    loop {
        let end = loop {
            if let Some(end) = agent.ahead.iter().position(|b| *b == b'\n') {
                break end;
            }
            if agent.ahead.len() > LARGEST {
                return refuse(&mut agent, "the line is longer than 1 MiB").await;
            }
            if agent.fill(IDLE).await? == 0 {
                match agent.ahead.is_empty() {
                    true => return Ok(()),
                    false => break agent.ahead.len(),
                }
            }
        };
        let line = agent.ahead.split_to((end + 1).min(agent.ahead.len()));
        let answer =
            match serde_json::from_slice::<Wish>(&line).map_err(|e| e.to_string()).and_then(|w| wire(&w)) {
                Ok(wire) => carried(&gate, &wire).await?,
                Err(why) => json!({"error": why, "status": 400}),
            };
        let mut out = serde_json::to_vec(&answer)?;
        out.push(b'\n');
        agent.reader.write_all(&out).await?;
    }
}

async fn refuse(agent: &mut Buffered<UnixStream>, why: &str) -> io::Result<()> {
    agent.reader.write_all(format!("{}\n", json!({"error": why, "status": 413})).as_bytes()).await
}

/// The request as octets: what is unfit for a head is refused by the parser that reads it.
fn wire(wish: &Wish) -> Result<Vec<u8>, String> {
    let clean = |text: &str| !text.contains(['\r', '\n', '\0']);
    let shaped =
        clean(&wish.method) && clean(&wish.url) && wish.headers.iter().all(|(n, v)| clean(n) && clean(v));
    if !shaped || wish.method.contains(' ') || wish.url.contains(' ') {
        return Err("a line break or a space stands where none may".into());
    }
    let body = wish.body.as_deref().unwrap_or("");
    let mut out = match &wish.capability {
        Some(provider) if clean(provider) => format!(
            "{} /proxy HTTP/1.1\r\nhost: sidecar\r\nx-provider: {provider}\r\nx-target: {}\r\n",
            wish.method, wish.url
        ),
        Some(_) => return Err("the capability is not a provider's name".into()),
        None => {
            let authority = wish.url.split("://").nth(1).and_then(|rest| rest.split(['/', '?']).next());
            format!("{} {} HTTP/1.1\r\nhost: {}\r\n", wish.method, wish.url, authority.unwrap_or(""))
        }
    };
    for (name, value) in &wish.headers {
        let framing = ["host", "content-length", "transfer-encoding", "connection", "x-provider", "x-target"];
        if !framing.contains(&name.to_ascii_lowercase().as_str()) {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    out.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()));
    out.push_str(body);
    Ok(out.into_bytes())
}

/// Sends a request through the gateway's own front, and turns what comes back into JSON.
async fn carried(gate: &Rc<Gate>, wire: &[u8]) -> io::Result<serde_json::Value> {
    let (ours, theirs) = UnixStream::pair()?;
    let served = serve_requests(Rc::clone(gate), Via::Gateway, AgentStream::Unix(theirs), wire.into());
    // It lets go of its end when it has enough: whoever writes on is told so, and does not wait for a reader.
    let read = async move {
        let mut answer = Vec::new();
        ours.take(LARGEST_ANSWER + 1).read_to_end(&mut answer).await.map(|_| answer)
    };
    let (_, answer) = tokio::join!(Box::pin(served), read);
    let mut answer = answer?;
    let is_cut = answer.len() as u64 > LARGEST_ANSWER;
    answer.truncate(LARGEST_ANSWER as usize);
    let mut told = as_json(&answer);
    if is_cut {
        told["truncated"] = true.into();
    }
    Ok(told)
}

fn as_json(mut answer: &[u8]) -> serde_json::Value {
    // What came before the answer is left out.
    while answer.starts_with(b"HTTP/1.1 1") {
        let Some(end) = answer.windows(4).position(|w| w == b"\r\n\r\n") else { break };
        answer = &answer[end + 4..];
    }
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut response = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(head)) = response.parse(answer) else {
        return json!({"error": "the upstream did not answer", "status": 502});
    };
    let headers: BTreeMap<String, String> = response
        .headers
        .iter()
        .map(|h| (h.name.to_ascii_lowercase(), String::from_utf8_lossy(h.value).into_owned()))
        .collect();
    let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
    let body = if chunked { unchunked(&answer[head..]) } else { answer[head..].to_vec() };
    match String::from_utf8(body) {
        Ok(text) => json!({"status": response.code, "headers": headers, "body": text}),
        Err(other) => {
            json!({"status": response.code, "headers": headers, "body": BASE64.encode(other.as_bytes()), "encoding": "base64"})
        }
    }
}

fn unchunked(framed: &[u8]) -> Vec<u8> {
    use crate::http::chunk::{ChunkScanner, From};
    let (mut scanner, mut at, mut out) = (ChunkScanner::new(From::Upstream), 0, Vec::new());
    while at < framed.len() && !scanner.is_done() {
        let Ok(step) = scanner.scan(&framed[at..]) else { break };
        at += step.framing;
        out.extend(&framed[at..at + step.data]);
        at += step.data;
    }
    out
}
