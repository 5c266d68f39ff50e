//! `/proxy`: forwards a request to `X-Target` with the credential of `X-Provider`, in the order of S0.45 to S0.51.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use credential::{Position, Room, is_template, substitute};
use policy::{Denial, Guard, Method, Placeholders, Plane, Target};

use super::control_headers::ControlHeaders;
use super::refused::{Refused, refusal};
use super::template;
use super::whole_body::{WholeBody, no_room, read_whole_within};
use crate::audit;
use crate::exchange::{Exchange, Pinned, Ready};
use crate::fetched_credential::unfit;
use crate::gate::Gate;
use crate::http::answer::Answer;
use crate::http::forwarding::{Forwarding, Terms};
use crate::http::head::BodyLength;
use crate::http::incoming::Incoming;
use crate::http::max_forwards::count_forward;
use crate::http::media_type::MediaType;
use crate::http::problem::{After, Reply};
use crate::http::request::Request;
use crate::http::reserved_memory::ReservedMemory;
use crate::inject::{Form, Sending, escaped, inject, stands_elsewhere};

/// The largest body in which placeholders are replaced (literal behaviour of the existing sidecar).
const LARGEST_BODY: usize = 5 * 1024 * 1024;
/// How long an exchange may take once it has its credential, with what is still to come of the request (literal behaviour of the
/// existing sidecar). A body that is filled has as long, before.
const OUTBOUND: Duration = Duration::from_secs(30);

/// A request that is ready to be forwarded.
struct Prepared {
    exchange: Exchange<Ready>,
    target: Target,
    sending: Sending,
    terms: Terms,
    /// The memory of the answer, which is gathered, and that of a body that was filled.
    reserved: Vec<ReservedMemory>,
}

/// Answers `/proxy`.
pub(super) async fn proxy(
    gate: &Rc<Gate>,
    mut request: Request<'_>,
    mut answer: Answer<'_>,
) -> io::Result<After> {
    match prepare(gate, &mut request, &mut answer).await {
        Ok(Prepared { exchange, target, sending, terms, reserved: _reserved }) => {
            Forwarding::new(gate, &target, terms).send(exchange, sending, request, answer).await
        }
        Err(refused) => refused.answer(gate, &request, answer).await,
    }
}

/// Takes a request through every stage before it is forwarded.
async fn prepare(
    gate: &Rc<Gate>,
    request: &mut Request<'_>,
    answer: &mut Answer<'_>,
) -> Result<Prepared, Refused> {
    let headers = ControlHeaders::read(&request.head.fields).map_err(|why| {
        audit::record_refused_unasked(gate, Plane::Gateway, "/proxy", Denial::new(Guard::Syntax, why));
        Refused::Answered { reply: refusal(400, "target_syntax", why), after: After::Close }
    })?;
    let denied = |denial| Refused::denied(denial, &headers.target);
    let judged = judge(gate, &request.head.method, &headers).await.map_err(denied)?;
    let mut prepared = inject_into_head(gate, judged, &headers, request).await?;
    // Before anything is sent: a request that had been carried out would be repeated by an agent that is told to try again.
    match ReservedMemory::for_octets(headers.max_response_size) {
        Some(for_answer) => prepared.reserved.push(for_answer),
        None => return Err(refuse(prepared, no_room())),
    }
    match headers.substitute_body && request.head.body != BodyLength::None {
        true => fill_body(prepared, request, answer, &headers.target).await,
        false => Ok(prepared),
    }
}

/// A request whose template the policy granted.
struct Judged {
    exchange: Exchange<Pinned>,
    target: Target,
    /// The path and query with their `{{…}}`.
    origin_form: String,
}

/// Judges the template of the target, and pins it to addresses that the guard judged. S0.45, S0.46
async fn judge(gate: &Rc<Gate>, method: &Method, headers: &ControlHeaders) -> Result<Judged, Denial> {
    let (target, origin_form) = template::judged(&headers.target)
        .map_err(|denial| audit::record_refused_unasked(gate, Plane::Gateway, &headers.target, denial))?;
    let mut asked = policy::Asked::request(Plane::Gateway, method.clone(), &target);
    asked.provider = Some(headers.provider.clone());
    let granted = Exchange::begin(gate, method.as_str(), headers.target.clone(), asked).authorize(gate)?;
    let exchange = match &headers.proxy {
        None => granted.pin(gate).await?,
        // S1.19. An agent chooses among the declared proxies: any other would be a way around the policy.
        Some(wanted) => match gate.policy().proxies().named(wanted) {
            Some(_) if granted.grant().is_placed() => {
                let why =
                    "the policy says where this host is, so no proxy is asked for it; leave X-Proxy out";
                return Err(granted.refuse(Denial::new(Guard::NotAuthorized, why)));
            }
            Some(proxy) => granted.pin_through(gate, Arc::clone(proxy)).await?,
            None => {
                let why = "X-Proxy names no proxy that is declared";
                return Err(granted.refuse(Denial::new(Guard::NotAuthorized, why)));
            }
        },
    };
    Ok(Judged { exchange, target, origin_form })
}

/// Puts the credential into the target and the headers. S0.47 to S0.50
async fn inject_into_head(
    gate: &Rc<Gate>,
    judged: Judged,
    headers: &ControlHeaders,
    request: &Request<'_>,
) -> Result<Prepared, Refused> {
    let Judged { exchange, target, origin_form } = judged;
    let head = &request.head;
    let mut sending = Sending::new(head.method.clone(), &target, head.fields_to_send());
    sending.origin_form = origin_form;
    let denied = |denial| Refused::denied(denial, &headers.target);
    let exchange = count_forward(exchange, &mut sending, gate, &target, &headers.target)
        .map_err(|ended| Refused::ended(ended, request, &headers.target))?;
    let exchange = inject(exchange, gate, &target, &mut sending, Form::Templates).await.map_err(denied)?;
    let terms = Terms {
        max_body: Some(headers.max_response_size),
        within: Some(OUTBOUND),
        // Clients of `/proxy` know one status for every failure of an upstream.
        late_status: 502,
        ..Terms::default()
    };
    Ok(Prepared { exchange, target, sending, terms, reserved: Vec::new() })
}

/// Reads the whole body and replaces the `{{…}}` in it. S0.49
async fn fill_body(
    mut prepared: Prepared,
    request: &mut Request<'_>,
    answer: &mut Answer<'_>,
    shown: &str,
) -> Result<Prepared, Refused> {
    if request.head.fields.values("content-encoding").any(|coding| !coding.eq_ignore_ascii_case(b"identity"))
    {
        let reason =
            "Unresolved placeholders in body: it is packed (Content-Encoding), so none can be replaced in it";
        let denial = Denial::new(Guard::Unresolved, reason)
            .with_hint("send it unpacked, or leave X-Substitute-Body out");
        return Err(Refused::denied(prepared.exchange.refuse(denial), shown));
    }
    let read = read_whole_within(request, answer, LARGEST_BODY, OUTBOUND).await;
    let WholeBody { octets, mut reserved } = match read {
        Ok(body) => body,
        Err(reply) => return Err(refuse(prepared, reply)),
    };
    prepared.terms.body_holds_credential = is_template(&octets);
    let filled = match filled(&prepared.exchange, &prepared.sending, octets) {
        Ok(filled) => filled,
        Err(denial) => return Err(Refused::denied(prepared.exchange.refuse(denial), shown)),
    };
    // A short placeholder may stand for a long value, many times over.
    if reserved.grow_to(filled.len()).is_none() {
        return Err(refuse(prepared, no_room()));
    }
    request.head.body = BodyLength::Sized(filled.len() as u64);
    request.body = Incoming::Whole(Some(filled));
    prepared.sending.fields.remove("expect"); // it has been met
    prepared.reserved.push(reserved);
    Ok(prepared)
}

/// Records a request that is not taken by what its reply tells, and refuses it with that.
fn refuse(prepared: Prepared, reply: Reply) -> Refused {
    prepared.exchange.refuse(Denial::new(Guard::Framing, reply.detail.clone()));
    Refused::Answered { reply, after: After::Close }
}

/// Replaces each `{{field}}` of a body. A provider that says where its credential goes gets none in a body, because a service keeps and
/// shows what a body tells it.
fn filled(exchange: &Exchange<Ready>, sending: &Sending, written: Bytes) -> Result<Bytes, Denial> {
    let Some(held) = exchange.held() else { return Ok(written) };
    let place = place_of(&MediaType::of(sending.fields.text("content-type").unwrap_or_default()));
    escaped::refuse_in_body(&written, held.credential(), place)?;
    if !is_template(&written) {
        return Ok(written);
    }
    // An unresolved field is reported as such (400, S0.50), and not as one in a wrong place.
    let filled = substitute(&written, held.credential(), place, &mut Room::of_text())
        .map_err(|error| unfit("body", &error))?;
    match exchange.grant().provider() {
        Some(provider) if provider.placeholders() == Placeholders::InPlace => {
            Err(stands_elsewhere(provider, "the body"))
        }
        // Not copied: it holds the credential, and is wiped when the last of it has been sent.
        _ => Ok(Bytes::from_owner(filled)),
    }
}

/// Returns how values are escaped in a body of this type.
fn place_of(kind: &MediaType) -> Position {
    if kind.is_json() {
        Position::Json
    } else if kind.is("application/x-www-form-urlencoded") {
        Position::Form
    } else {
        Position::Text
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream as StdUnixStream;

    use bytes::BytesMut;
    use credential::Secret;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, UnixStream};
    use tokio::task::LocalSet;

    use super::*;
    use crate::fixture::records_in;
    use crate::http::request::Via;
    use crate::http::serve1::serve_requests;
    use crate::http::stream::AgentStream;
    use crate::{CredentialConfig, GateOptions, PlatformPlace, SigningKey};

    /// Answers questions for a credential with this value.
    fn platform(value: &str) -> StdUnixStream {
        let (ours, mut theirs) = StdUnixStream::pair().unwrap();
        let body = format!(r#"{{"fields":{{"access_token":"{value}"}}}}"#);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        std::thread::spawn(move || {
            while theirs.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {
                theirs.write_all(answer.as_bytes()).unwrap();
            }
        });
        ours
    }

    /// Returns a gate by this policy, with a platform that answers with this value.
    fn gate(policy: &str, value: &str) -> Rc<Gate> {
        Gate::open(options(policy, value)).unwrap()
    }

    fn options(policy: &str, value: &str) -> GateOptions {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Named("test".into()), toml::from_str(policy).unwrap());
        let spec = layers.compile().unwrap();
        let place = PlatformPlace::Inherited(platform(value), Secret::from_text("t".into()));
        GateOptions {
            credential_config: CredentialConfig { platform: Some(place), ..CredentialConfig::default() },
            ..GateOptions::new(spec.policy, spec.spending, policy::RunId::from_random([0; 12]))
        }
    }

    #[tokio::test]
    async fn no_proxy_is_asked_for_what_the_policy_places() {
        let proxy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = upstream.local_addr().unwrap().port();
        let policy = format!(
            "proxy = [{{ id = \"corp\", url = \"http://{}\" }}]\negress.proxy = \"corp\"\n\
             [[provider]]\nid = \"one\"\nauthorized_uris = [\"http://model.example:{port}/*\"]\naddresses = [\"127.0.0.1\"]\n",
            proxy.local_addr().unwrap()
        );
        let gate = gate(&policy, "value");
        let ask = async |named: &str| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let stream = AgentStream::Unix(ours);
            tokio::task::spawn_local(serve_requests(Rc::clone(&gate), Via::Gateway, stream, BytesMut::new()));
            let question = format!(
                "GET /proxy HTTP/1.1\r\nHost: gate\r\nX-Provider: one\r\n\
                 X-Target: http://model.example:{port}/\r\n{named}Connection: close\r\n\r\n"
            );
            theirs.write_all(question.as_bytes()).await.unwrap();
            theirs
        };
        let asked = async {
            let mut answer = String::new();
            ask("X-Proxy: corp\r\n").await.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("leave X-Proxy out"), "{answer}");
            let _kept = ask("").await;
            tokio::select! {
                _ = upstream.accept() => {}
                _ = proxy.accept() => panic!("the proxy was asked"),
            }
        };
        LocalSet::new().run_until(asked).await;
    }

    #[tokio::test]
    async fn a_body_that_is_not_taken_is_told_and_recorded_alike() {
        let policy = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://127.0.0.1:9/*\"]\n";
        for (rest, why) in [
            ("0\r\nX-Sum: 1\r\n\r\n", "The trailers of a body that is read whole are not taken"),
            ("0x\r\n\r\n", "The request body broke off"),
        ] {
            let mut audit = tempfile::tempfile().unwrap();
            let key = SigningKey::generate().unwrap().0;
            let gate = Gate::open(GateOptions {
                audit: Some((Arc::new(audit.try_clone().unwrap()), key)),
                ..options(policy, "value")
            });
            let gate = gate.unwrap();
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let begun = "POST /proxy HTTP/1.1\r\nHost: gate\r\nX-Provider: one\r\nX-Target: https://127.0.0.1:9/\r\n\
                 X-Substitute-Body: true\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n";
            theirs.write_all(begun.as_bytes()).await.unwrap();
            let stream = AgentStream::Unix(ours);
            let served = serve_requests(Rc::clone(&gate), Via::Gateway, stream, BytesMut::new());
            let asks = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                theirs.write_all(rest.as_bytes()).await.unwrap();
                theirs.shutdown().await.unwrap();
                let mut answer = String::new();
                theirs.read_to_string(&mut answer).await.unwrap();
                answer
            };
            let (answer, _) = LocalSet::new().run_until(async { tokio::join!(asks, served) }).await;
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(why), "{answer}");
            gate.close().unwrap();
            let records = records_in(&mut audit);
            assert!(records.contains("\"guard\":\"http_framing\"") && records.contains(why), "{records}");
        }
    }

    /// What an agent reads that sends this to `/proxy`, and `rest` once its request has begun to be read by whoever reads it, and then
    /// nothing for as long as it is waited for; and what the person is told. The upstream answers what it has read by `answer`.
    async fn waited_for(fields: &str, body: &str, rest: &str, answer: &str) -> (String, String) {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let policy = format!("[[provider]]\nid = \"one\"\nauthorized_uris = [\"http://{at}/*\"]\n");
        let (notices, theirs) = StdUnixStream::pair().unwrap();
        let gate = Gate::open(GateOptions { notices: Some(theirs.into()), ..options(&policy, "value") });
        let gate = gate.unwrap();
        let (ours, mut agent) = UnixStream::pair().unwrap();
        let served = serve_requests(Rc::clone(&gate), Via::Gateway, AgentStream::Unix(ours), BytesMut::new());
        let question = format!(
            "POST /proxy HTTP/1.1\r\nHost: gate\r\nX-Provider: one\r\nX-Target: http://{at}/\r\n{fields}\r\n{body}"
        );
        let asks = async {
            agent.write_all(question.as_bytes()).await.unwrap();
            let mut come = Vec::new();
            let sent = tokio::select! {
                accepted = upstream.accept() => {
                    let (mut sent, _) = accepted.unwrap();
                    while !String::from_utf8_lossy(&come).ends_with(&format!("\r\n\r\n{body}")) {
                        assert!(sent.read_buf(&mut come).await.unwrap() > 0);
                    }
                    sent.write_all(answer.as_bytes()).await.unwrap();
                    Some(sent)
                }
                // The gateway reads the body before it asks anybody.
                told = agent.read_buf(&mut come) => {
                    assert!(told.is_ok() && come.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&come));
                    None
                }
            };
            agent.write_all(rest.as_bytes()).await.unwrap();
            // The platform has answered by now, in the time of a thread.
            tokio::time::pause();
            let begun = tokio::time::Instant::now();
            let mut read = String::new();
            agent.read_to_string(&mut read).await.unwrap();
            assert!((29..=30).contains(&begun.elapsed().as_secs()), "{:?}: {read}", begun.elapsed());
            drop(sent);
            read
        };
        let (read, _) = LocalSet::new().run_until(async { tokio::join!(asks, served) }).await;
        tokio::time::resume();
        gate.close().unwrap();
        drop(gate);
        (read, std::io::read_to_string(notices).unwrap())
    }

    #[tokio::test]
    async fn what_did_not_come_in_time_is_told() {
        const AGENT: &str = "The request body did not come whole within 30 s";
        const SILENT: &str = "no answer of 127.0.0.1 came within 30 s";
        let begun = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx";
        let whole = "Connection: close\r\nContent-Length: 1\r\n";
        let stalled = "Content-Length: 9\r\n";
        let waits = "Content-Length: 9\r\nExpect: 100-continue\r\n";
        let filled = format!("X-Substitute-Body: true\r\n{waits}");
        for (fields, body, rest, answer, status, why) in [
            (whole, "x", "", "", "502", SILENT),
            (whole, "x", "", begun, "502", "no whole answer of 127.0.0.1 came within 30 s"),
            (stalled, "x", "", "", "502", SILENT),
            (&filled, "", "x", "", "408", AGENT),
            // It waits to be told to go on, and by the upstream.
            (waits, "", "", "", "502", SILENT),
        ] {
            let (read, told) = waited_for(fields, body, rest, answer).await;
            assert!(
                read.starts_with(&format!("HTTP/1.1 {status} ")) && read.contains(why),
                "{fields}: {read}"
            );
            assert_eq!(told.contains("upstream_failed"), status == "502", "{fields}: {told}");
            assert!(told.contains(why), "{fields}: {told}");
        }
    }

    #[tokio::test]
    async fn a_request_whose_answer_has_no_room_is_not_sent() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let policy = format!("[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://{at}/*\"]\n");
        let gate = gate(&policy, "value");
        let ask = async |size: usize| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let stream = AgentStream::Unix(ours);
            tokio::task::spawn_local(serve_requests(Rc::clone(&gate), Via::Gateway, stream, BytesMut::new()));
            let question = format!(
                "POST /proxy HTTP/1.1\r\nHost: gate\r\nX-Provider: one\r\nX-Target: https://{at}/\r\n\
                 X-Max-Response-Size: {size}\r\nContent-Length: 1\r\n\r\nx"
            );
            theirs.write_all(question.as_bytes()).await.unwrap();
            theirs
        };
        let asked = async {
            let held = ReservedMemory::for_octets(63 * 1024 * 1024 + 512 * 1024);
            assert!(held.is_some());
            let mut answer = String::new();
            ask(1_000_000).await.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
            let moment = Duration::from_millis(100);
            assert!(tokio::time::timeout(moment, upstream.accept()).await.is_err(), "it was sent");
            // The control: one whose answer has room, or has it now, is.
            let kept = ask(50_000).await;
            upstream.accept().await.unwrap();
            drop(held);
            let _kept = (kept, ask(1_000_000).await);
            upstream.accept().await.unwrap();
        };
        LocalSet::new().run_until(asked).await;
    }

    #[tokio::test]
    async fn a_body_that_is_refused_uses_up_no_rate() {
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let policy = format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://{at}/*\"]\n\
             rate = {{ requests_per_minute = 1, burst = 1 }}\n"
        );
        let gate = gate(&policy, "value");
        let ask = async |fields: &str, body: &str| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let stream = AgentStream::Unix(ours);
            tokio::task::spawn_local(serve_requests(Rc::clone(&gate), Via::Gateway, stream, BytesMut::new()));
            let question = format!(
                "POST /proxy HTTP/1.1\r\nHost: gate\r\nX-Provider: one\r\nX-Target: https://{at}/\r\n\
                 X-Substitute-Body: true\r\n{fields}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            theirs.write_all(question.as_bytes()).await.unwrap();
            theirs
        };
        let told = async |fields: &str, body: &str| {
            let mut answer = String::new();
            ask(fields, body).await.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let asked = async {
            for (fields, body) in [("Content-Encoding: gzip\r\n", "x"), ("", "{{nope}}")] {
                let answer = told(fields, body).await;
                assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
            }
            // The control: one that is sent uses it up.
            let _kept = ask("", "x").await;
            upstream.accept().await.unwrap();
            let answer = told("", "x").await;
            assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
        };
        LocalSet::new().run_until(asked).await;
    }

    #[tokio::test]
    async fn what_a_body_becomes_counts_and_not_what_it_was() {
        // Each body is filled to 16,000,000 octets, of which four have room.
        const VALUE: usize = 2000;
        const PLACEHOLDERS: usize = 8000;
        let upstream = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = upstream.local_addr().unwrap();
        let policy = format!(
            "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://{at}/*\"]\nplaceholders = \"anywhere\"\n"
        );
        let gate = gate(&policy, &"v".repeat(VALUE));
        let body = "{{access_token}}".repeat(PLACEHOLDERS);
        let question = format!(
            "POST /proxy HTTP/1.1\r\nHost: gate\r\nX-Provider: one\r\nX-Target: https://{at}/\r\n\
             X-Substitute-Body: true\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let ask = async || {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let stream = AgentStream::Unix(ours);
            tokio::task::spawn_local(serve_requests(Rc::clone(&gate), Via::Gateway, stream, BytesMut::new()));
            theirs.write_all(question.as_bytes()).await.unwrap();
            theirs
        };
        let asked = async {
            let mut held = Vec::new();
            for _ in 0..4 {
                // It has its room once it is on its way to the upstream, which stays silent.
                held.push((ask().await, upstream.accept().await.unwrap()));
            }
            let mut answer = String::new();
            ask().await.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
        };
        LocalSet::new().run_until(asked).await;
    }
}
