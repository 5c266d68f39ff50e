//! Hand-written HTTP, so that nothing is normalised on the way: a GET to a server, a request or a CONNECT to a proxy.
//! It reads the status, the headers and the start of the body, and follows no redirect.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::Probe;
use crate::connect::{PATIENCE, dial, listen, milliseconds, unescape};
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "http", usage: "HOST PORT PATH [HOST-HEADER]", run: get },
    Probe { name: "http-raw", usage: "HOST PORT TEXT (sent octet for octet; \\r \\n \\0)", run: raw },
    Probe { name: "http-proxy", usage: "PROXY-HOST PROXY-PORT URL", run: proxied },
    Probe {
        name: "http-connect",
        usage: "PROXY-HOST PROXY-PORT HOST:PORT [TEXT] (TEXT is sent through)",
        run: tunnel,
    },
];

fn get(arguments: &[String]) -> Option<Report> {
    let (host, port, path, name) = match arguments {
        [host, port, path] => (host, port, path, host),
        [host, port, path, name] => (host, port, path, name),
        _ => return None,
    };
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {name}\r\nUser-Agent: probe\r\nConnection: close\r\n\r\n");
    exchange(host, port, request.as_bytes())
}

fn raw(arguments: &[String]) -> Option<Report> {
    let [host, port, text] = arguments else { return None };
    exchange(host, port, &unescape(text))
}

fn proxied(arguments: &[String]) -> Option<Report> {
    let [host, port, url] = arguments else { return None };
    let authority = url.split('/').nth(2).unwrap_or_default();
    let request =
        format!("GET {url} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: probe\r\nConnection: close\r\n\r\n");
    exchange(host, port, request.as_bytes())
}

fn tunnel(arguments: &[String]) -> Option<Report> {
    let (host, port, target, text) = match arguments {
        [host, port, target] => (host, port, target, None),
        [host, port, target, text] => (host, port, target, Some(unescape(text))),
        _ => return None,
    };
    let start = Instant::now();
    let mut stream = match dial(host, port.parse().ok()?) {
        Ok(stream) => stream,
        Err(report) => return Some(report),
    };
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    if let Err(error) = stream.write_all(request.as_bytes()) {
        return Some(error.into());
    }
    let (answer, end) = listen(&mut stream, PATIENCE, |bytes| split(bytes).is_some());
    let mut report = judge(&answer, &end.word(), start);
    let opened = report.detail["status"] == 200;
    if let (true, Some(text)) = (opened, text) {
        let (received, end) = match stream.write_all(&text) {
            Ok(()) => listen(&mut stream, PATIENCE, |bytes| !bytes.is_empty()),
            Err(error) => return Some(error.into()),
        };
        report.detail["through"] =
            json!({ "received": String::from_utf8_lossy(&received), "end": end.word() });
        if received.is_empty() {
            report = Report::refused(report.detail);
        }
    }
    Some(report)
}

fn exchange(host: &str, port: &str, request: &[u8]) -> Option<Report> {
    let start = Instant::now();
    let mut stream = match dial(host, port.parse().ok()?) {
        Ok(stream) => stream,
        Err(report) => return Some(report),
    };
    if let Err(error) = stream.write_all(request) {
        return Some(error.into());
    }
    let (answer, end) = listen(&mut stream, PATIENCE + Duration::from_secs(5), complete);
    Some(judge(&answer, &end.word(), start))
}

/// 2xx and 3xx are done; any other status, or none at all, is a refusal.
fn judge(answer: &[u8], end: &str, start: Instant) -> Report {
    let Some((status, headers, body)) = parse(answer) else {
        let shown = String::from_utf8_lossy(answer);
        return Report::refused(json!({ "received": shown, "end": end, "ms": milliseconds(start) }));
    };
    let text = String::from_utf8_lossy(body);
    let detail =
        json!({ "status": status, "headers": headers, "body": text, "end": end, "ms": milliseconds(start) });
    if (200..400).contains(&status) { Report::done(detail) } else { Report::refused(detail) }
}

fn parse(answer: &[u8]) -> Option<(u16, Map<String, Value>, &[u8])> {
    let (head, body) = split(answer)?;
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().into()))
        .collect();
    Some((status, headers, body))
}

fn split(answer: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((&answer[..at], &answer[at + 4..]))
}

/// Whether the head and, when its length is given, the whole body have been received.
fn complete(answer: &[u8]) -> bool {
    parse(answer).is_some_and(|(_, headers, body)| {
        let length = headers.get("content-length").and_then(|value| value.as_str()?.parse::<usize>().ok());
        length.is_some_and(|length| body.len() >= length)
    })
}

#[cfg(test)]
mod tests {
    use super::{complete, parse};

    #[test]
    fn an_answer_is_taken_apart() {
        let answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nX-Lockgate-Denied: host\r\n\r\nno";
        let (status, headers, body) = parse(answer).expect("a whole head");
        assert_eq!((status, headers["x-lockgate-denied"].as_str(), body), (403, Some("host"), &b"no"[..]));
        assert!(complete(answer) && !complete(&answer[..answer.len() - 1]));
    }
}
