//! Relays a response to the agent: masks credentials in it, and cuts it where a limit was asked for.

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use policy::{Denial, LlmFormat};

use super::abandoned::Abandoned;
use super::answer::{Answer, Begun, Extent};
use super::break_off::break_off;
use super::fields::Fields;
use super::filter::{Filter, Unsearchable};
use super::grpc_status::{MessageBorder, RefusalForm};
use super::head::BodyLength;
use super::hung_up::HungUp;
use super::incoming::{Incoming, STALLED};
use super::interim::{InterimAnswers, SWITCHED_UNASKED};
use super::media_type::MediaType;
use super::problem::After;
use super::progress::Progress;
use super::replay::ReplayBuffer;
use super::response::{FIRST_OCTET, ResponseBody, ResponseHead, has_no_body, unusable};
use super::time_limit::{Awaited, Deadline, by_deadline};
use super::unpack::is_packed;
use super::upstream_response::{PendingResponse, UpstreamResponse};
use crate::fetched_credential::FetchedCredential;
use crate::gate::Gate;
use crate::live_needles::LiveNeedles;
use crate::llm::{Account, Ledger, RequestLine, Usage};
use crate::rate::Token;
use crate::upstream::UpstreamReader;

/// The status of an upstream that refuses the credential.
pub(super) const UNAUTHORIZED: u16 = 401;

/// How a response is handled.
#[derive(Clone, Copy)]
pub(super) struct Handling<'a> {
    /// The method of the request.
    pub(super) method: &'a str,
    /// What to mask.
    pub(super) needles: Option<&'a LiveNeedles>,
    pub(super) unsearchable: Unsearchable,
    /// Whether a credential is bound to the host, even if for other requests only.
    pub(super) is_bound: bool,
    /// Whether messages of gRPC and Connect may be passed on one by one.
    pub(super) message_wise: bool,
    /// The request's body, if it can be sent again.
    pub(super) replay: &'a ReplayBuffer,
    /// The credential of the request, if a 401 may be followed by an attempt with another one.
    pub(super) renewal: Option<(&'a Gate, &'a FetchedCredential)>,
    /// The largest body that is passed on; the response is gathered first, and cut. Who sent the request reserved the memory for it.
    pub(super) max_body: Option<usize>,
    /// When the response must have begun; a gathered one must be complete by then.
    pub(super) deadline: Option<Deadline<'a>>,
    /// How it is metered, if it comes from a model's API.
    pub(super) metering: Option<Metering<'a>>,
}

/// How the response of a model's API is metered.
#[derive(Clone, Copy)]
pub(super) struct Metering<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) line: RequestLine<'a>,
    pub(super) format: LlmFormat,
    /// Whether the request asked the model for something, so that the response should tell its use.
    pub(super) usage: Usage,
}

impl<'a> Metering<'a> {
    fn open(self) -> Account<'a> {
        Account::open(self.ledger, self.line, self.format, self.usage)
    }
}

/// What became of a response.
pub(super) enum Responded<'a> {
    Answered {
        /// Whether the agent's connection goes on.
        after: After,
        /// Whether the upstream's connection can carry another request.
        reusable: bool,
        /// What the record says about it.
        note: Option<String>,
    },
    /// The upstream refused the credential, and there is this other one.
    Unauthorized(Answer<'a>, Renewed),
    /// Nothing has been answered yet, and the upstream's response will not be passed on.
    Failed(Answer<'a>, Failure),
}

/// A credential in place of one that the upstream refused.
pub(super) struct Renewed {
    pub(super) credential: Rc<FetchedCredential>,
    /// The token of the provider's rate for the attempt with it: to the provider that is one more request.
    pub(super) token: Token,
}

/// Why a response is not passed on.
pub(super) enum Failure {
    /// The upstream sent none that can be read.
    Broken(io::Error),
    /// A guard refuses it.
    Denied(Denial),
}

/// Awaits a response and passes it on.
pub(super) async fn respond<'a>(
    pending: PendingResponse<'_>,
    handling: Handling<'_>,
    mut answer: Answer<'a>,
    progress: &Progress<'_>,
) -> io::Result<Responded<'a>> {
    // Opened now, so that an agent that hangs up before the response has come is charged as well.
    let account = handling.metering.map(Metering::open);
    match await_head(pending, handling, progress, &mut answer).await {
        Ok(response) => pass_on(response, handling, account, answer, progress).await,
        Err(error) => {
            // The model may be at work, for an agent that gave up or when we did: that is charged like a response that broke off.
            let is_at_work = Abandoned::is(&error) || error.kind() == io::ErrorKind::TimedOut;
            account.into_iter().filter(|_| !is_at_work).for_each(Account::close);
            Ok(Responded::Failed(answer, Failure::Broken(error)))
        }
    }
}

/// Passes on the response to a WebSocket handshake that opened no WebSocket, as any other response.
pub(super) async fn respond_to_handshake<'a>(
    response: UpstreamResponse<'_>,
    handling: Handling<'_>,
    answer: Answer<'a>,
    progress: &Progress<'_>,
) -> io::Result<Responded<'a>> {
    // A handshake asks a model nothing yet, so a response that reports no use lacks none.
    let metering = handling.metering.map(|metering| Metering { usage: Usage::NotExpected, ..metering });
    pass_on(response, handling, metering.map(Metering::open), answer, progress).await
}

/// Returns the response once its head has arrived; passes interim responses on until then.
async fn await_head<'u>(
    pending: PendingResponse<'u>,
    handling: Handling<'_>,
    progress: &Progress<'_>,
    answer: &mut Answer<'_>,
) -> io::Result<UpstreamResponse<'u>> {
    let interim = InterimAnswers::passed_on(answer, handling.needles);
    let received = pin!(pending.receive(handling.method, &progress.is_sent, interim));
    let response = by_deadline(handling.deadline, Awaited::Answer, received).await?;
    match response.head.status {
        101 => Err(unusable(SWITCHED_UNASKED)),
        _ => Ok(response),
    }
}

/// Passes on a response whose head has arrived, and notes its status.
async fn pass_on<'a>(
    response: UpstreamResponse<'_>,
    handling: Handling<'_>,
    mut account: Option<Account<'_>>,
    answer: Answer<'a>,
    progress: &Progress<'_>,
) -> io::Result<Responded<'a>> {
    let UpstreamResponse { mut head, mut length, mut body } = response;
    let status = head.status;
    let stalled = patience_with(&head.fields);
    account.iter_mut().for_each(|account| account.begin(status, head.fields.text("content-type")));
    if let Some(new) = renew_if_unauthorized(handling, status).await {
        return Ok(Responded::Unauthorized(answer, new));
    }
    progress.status.set(Some(status));
    // Some servers send a body with a response that has none; it would be read as the next response.
    let framed = length != ResponseBody::ToEnd && !has_no_body(handling.method, status);
    let mut reusable = framed && head.keep_alive;
    let (mut filter, note) = match filter_for(handling, &mut head, &mut length) {
        Ok(filter) => filter,
        Err(denial) => return Ok(Responded::Failed(answer, Failure::Denied(denial))),
    };
    if handling.message_wise {
        filter.release_messages();
    }
    if let Some(account) = account {
        filter.meter(account);
    }
    if handling.max_body.is_some() {
        head.fields.remove("x-truncated"); // it is the sidecar's word, and not an upstream's
    }
    let gathered = match gather_if_bounded(handling, length, &mut body, stalled, &mut filter, progress).await
    {
        Ok(gathered) => gathered,
        Err(error) => return Ok(Responded::Failed(answer, Failure::Broken(error))),
    };
    if let Some(gathered) = &gathered {
        reusable &= !gathered.is_cut;
        length = gathered.describe_in(&mut head);
    }
    let mut begun = answer.begin(&mut head, length)?;
    let after = begun.after;
    match gathered {
        Some(gathered) => begun.body.finish_answer(gathered.body, Fields::default()).await?,
        None => match pass_body_on(body, stalled, &mut filter, begun, progress).await {
            // An agent may read a model's answer no further than to where it tells its usage.
            Err(error) if Abandoned::is_given_up(&error) && filter.has_read_usage() => reusable = false,
            passed => passed?,
        },
    }
    let note = with_masked(note, filter.masked());
    Ok(Responded::Answered { after, reusable, note })
}

/// Returns how long a body may stand still. A model may think in the middle of its events for as long as before the first of them.
fn patience_with(fields: &Fields) -> Duration {
    let is_of_events =
        fields.text("content-type").is_some_and(|kind| MediaType::of(kind).is("text/event-stream"));
    if is_of_events { FIRST_OCTET } else { STALLED }
}

/// Fetches the credential anew after a 401, and returns it if it is another one and the request can be sent again with it. Otherwise the
/// response is passed on, and the request's body needs no more room.
async fn renew_if_unauthorized(handling: Handling<'_>, status: u16) -> Option<Renewed> {
    let renewal = handling.renewal.filter(|_| status == UNAUTHORIZED && handling.replay.is_complete());
    let Some((gate, held, token)) = renewal.and_then(|(gate, held)| {
        let provider = gate.policy().providers().find(|provider| provider.id() == held.provider())?;
        Some((gate, held, gate.rates().admit(provider, std::time::Instant::now).ok()?))
    }) else {
        handling.replay.discard();
        return None;
    };
    match gate.credentials().fetch(held.provider()).await {
        Ok(credential) if !credential.is_same_as(held) => return Some(Renewed { credential, token }),
        _ => gate.credentials().report_refused(held.provider()).await,
    }
    None
}

/// Returns the filter for a response and, if that cannot be searched, a note for the record. Changes head and length to what is sent.
fn filter_for<'f>(
    handling: Handling<'_>,
    head: &mut ResponseHead,
    length: &mut ResponseBody,
) -> Result<(Filter<'f>, Option<String>), Denial> {
    let Some(needles) = handling.needles else { return Ok((Filter::none(), None)) };
    if !handling.is_bound && is_packed(&head.fields) {
        // Where no credential goes, a body is searched where it can be, and never unpacked for that.
        return Ok((Filter::scrubbing_fields(needles, head), None));
    }
    match Filter::scrubbing(needles, head, length) {
        Ok(filter) => Ok((filter, None)),
        Err(denial) if handling.unsearchable == Unsearchable::Note => {
            let note = format!("{}: {}", denial.guard, denial.reason);
            Ok((Filter::scrubbing_blindly(needles, head), Some(note)))
        }
        Err(denial) => Err(denial),
    }
}

/// A note for the record, with how many times the credential was masked.
fn with_masked(note: Option<String>, times: u64) -> Option<String> {
    if times == 0 {
        return note;
    }
    let times = if times == 1 { "once".into() } else { format!("{times} times") };
    let masked = format!("the credential came back, and was masked {times}");
    Some(note.map_or(masked.clone(), |before| format!("{before}; {masked}")))
}

/// Passes a body on as it comes, and its trailers behind it.
async fn pass_body_on(
    mut body: Incoming<'_, UpstreamReader>,
    stalled: Duration,
    filter: &mut Filter<'_>,
    begun: Begun<'_>,
    progress: &Progress<'_>,
) -> io::Result<()> {
    let Begun { body: mut out, extent, refusals, .. } = begun;
    let mut border = (refusals == RefusalForm::GrpcStatus).then(MessageBorder::default);
    let passed = async {
        while let Some(mut piece) = out.next_of_answer(&mut body, stalled).await? {
            progress.count(&piece);
            // A body that has arrived already must not keep other tasks from running.
            tokio::task::consume_budget().await;
            while piece.len() > filter.max_piece() {
                for settled in filter.piece(piece.split_to(filter.max_piece()))? {
                    border.iter_mut().for_each(|border| border.follow(&settled));
                    out.send_answer(settled).await?;
                }
            }
            if body.is_ending() {
                body.next().await?;
                return filter.last(piece);
            }
            let settled = filter.piece(piece)?;
            progress.holds_message.set(filter.holds_message_back());
            for settled in settled {
                border.iter_mut().for_each(|border| border.follow(&settled));
                out.send_answer(settled).await?;
            }
        }
        filter.end()
    };
    let ended = match passed.await {
        Ok(last) => body.trailers().await.map(|trailers| (last, trailers)).map_err(HungUp::told_in_answer),
        Err(error) => Err(error),
    };
    let (last, trailers) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            if !Abandoned::is(&error) {
                progress.holds_message.set(false); // it is the upstream that broke off
            }
            // The agent still gets what came before an error of reading or searching. After one of writing this writes nothing.
            let _ = out.flush().await;
            break_off(&mut out, border, &error).await;
            return Err(error);
        }
    };
    let mut trailers = trailers.without_hop();
    filter.fields(&mut trailers);
    filter.mark_whole();
    if extent != Extent::WithTrailers {
        trailers = Fields::default();
    }
    out.finish_answer(last, trailers).await
}

/// A response body that was gathered before it is passed on.
struct Gathered {
    body: Bytes,
    /// Whether the body was longer.
    is_cut: bool,
}

impl Gathered {
    /// Makes a head say how long the body is and whether it was cut, and returns that length.
    fn describe_in(&self, head: &mut ResponseHead) -> ResponseBody {
        if self.is_cut {
            head.fields.set("x-truncated", b"true");
        }
        head.fields.remove("trailer"); // its trailers were not gathered
        head.fields.set("content-length", self.body.len().to_string().as_bytes());
        ResponseBody::Framed(BodyLength::Sized(self.body.len() as u64))
    }
}

/// Gathers a body whose size is limited; none if there is no limit, or no body.
async fn gather_if_bounded(
    handling: Handling<'_>,
    length: ResponseBody,
    body: &mut Incoming<'_, UpstreamReader>,
    stalled: Duration,
    filter: &mut Filter<'_>,
    progress: &Progress<'_>,
) -> io::Result<Option<Gathered>> {
    let Some(max_body) = handling.max_body.filter(|_| length != ResponseBody::Framed(BodyLength::None))
    else {
        return Ok(None);
    };
    let gathered = pin!(gather(body, stalled, filter, max_body, progress));
    by_deadline(handling.deadline, Awaited::WholeAnswer, gathered).await.map(Some)
}

/// Gathers a body up to a size. It is masked before it is cut, so that no part of a credential is left at the cut (C11). A model's answer
/// is read to its end, where its usage stands.
async fn gather(
    body: &mut Incoming<'_, UpstreamReader>,
    stalled: Duration,
    filter: &mut Filter<'_>,
    max_body: usize,
    progress: &Progress<'_>,
) -> io::Result<Gathered> {
    let mut all = BytesMut::new();
    loop {
        let Some(mut piece) = body.next_within(stalled).await? else {
            all.extend_from_slice(&filter.end()?);
            filter.mark_whole();
            break;
        };
        progress.count(&piece);
        tokio::task::consume_budget().await;
        while !piece.is_empty() && (all.len() <= max_body || filter.is_metered()) {
            let part = piece.split_to(piece.len().min(filter.max_piece()));
            let settled = filter.piece(part)?;
            if all.len() <= max_body {
                settled.iter().for_each(|settled| all.extend_from_slice(settled));
            }
        }
        if all.len() > max_body && !filter.is_metered() {
            break;
        }
    }
    let is_cut = all.len() > max_body;
    all.truncate(max_body);
    Ok(Gathered { body: all.freeze(), is_cut })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::io::AsyncReadExt;
    use tokio::time::Instant;

    use super::*;
    use crate::http::head::Version;
    use crate::http::outgoing::Outgoing;
    use crate::http::stream::AgentStream;

    const SECRET: &str = "sk-0123456789";

    /// The status and the octets that an agent gets for a handshake that was answered with this head and body.
    async fn answered(head: ResponseHead, body: &str) -> (u16, String) {
        let needles = credential::Needles::of([&credential::Secret::new(SECRET.into())]).into();
        let replay = ReplayBuffer::disabled();
        let handling = Handling {
            method: "GET",
            needles: Some(&needles),
            unsearchable: Unsearchable::Refuse,
            is_bound: true,
            message_wise: false,
            replay: &replay,
            renewal: None,
            max_body: None,
            deadline: None,
            metering: None,
        };
        let length = head.body("GET").unwrap();
        let body = Incoming::Whole(Some(Bytes::copy_from_slice(body.as_bytes())));
        let response = UpstreamResponse { head, length, body };
        let (agent, mut seen) = tokio::net::UnixStream::pair().unwrap();
        let (reader, mut writer) = AgentStream::Unix(agent).split();
        let (version, extent) = (Version::Http11, Extent::Whole);
        let answer = Answer::Version1 { writer: &mut writer, version, keep_alive: false, extent };
        let received = Cell::new(0);
        let progress = Progress::begin(&received);
        let responded = respond_to_handshake(response, handling, answer, &progress).await;
        let Ok(Responded::Answered { after: After::Close, note: Some(_), .. }) = responded else {
            panic!("it was not answered, or the credential was not masked");
        };
        drop((reader, writer));
        let mut text = String::new();
        seen.read_to_string(&mut text).await.unwrap();
        (progress.status.get().unwrap(), text)
    }

    #[tokio::test]
    async fn an_answer_that_opens_no_websocket_is_passed_on_and_masked() {
        for status in [200, 302, 401, 426, 500] {
            let parts = http::Response::builder().status(status).header("x-echo", SECRET).body(()).unwrap();
            let head = ResponseHead::of_version_2(&parts.into_parts().0).unwrap();
            let (seen, text) = answered(head, &format!("it was {SECRET}.")).await;
            assert_eq!(seen, status);
            assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
            assert!(text.contains("connection: close") && text.contains("it was *************."), "{text}");
            assert!(text.contains("x-echo: *") && !text.contains(SECRET), "{text}");
        }
    }

    /// How an answer is handled that can hold no credential.
    fn unbound(replay: &ReplayBuffer) -> Handling<'_> {
        Handling {
            method: "GET",
            needles: None,
            unsearchable: Unsearchable::Note,
            is_bound: false,
            message_wise: false,
            replay,
            renewal: None,
            max_body: None,
            deadline: None,
            metering: None,
        }
    }

    #[tokio::test]
    async fn only_a_gathered_answer_that_was_cut_says_so() {
        let replay = ReplayBuffer::disabled();
        for (max_body, is_cut) in [(9, false), (8, true)] {
            let handling = Handling { max_body: Some(max_body), ..unbound(&replay) };
            let parts = http::Response::builder().status(200).header("x-truncated", "true").body(()).unwrap();
            let head = ResponseHead::of_version_2(&parts.into_parts().0).unwrap();
            let length = head.body("GET").unwrap();
            let body = Incoming::Whole(Some(Bytes::from_static(b"an answer")));
            let response = UpstreamResponse { head, length, body };
            let (agent, mut seen) = tokio::net::UnixStream::pair().unwrap();
            let (reader, mut writer) = AgentStream::Unix(agent).split();
            let (version, extent) = (Version::Http11, Extent::Whole);
            let answer = Answer::Version1 { writer: &mut writer, version, keep_alive: false, extent };
            let received = Cell::new(0);
            let progress = Progress::begin(&received);
            let responded = respond_to_handshake(response, handling, answer, &progress).await;
            let is_answered = matches!(responded, Ok(Responded::Answered { .. }));
            assert!(is_answered && progress.status.get() == Some(200));
            drop((reader, writer));
            let mut text = String::new();
            seen.read_to_string(&mut text).await.unwrap();
            assert_eq!(text.contains("x-truncated: true"), is_cut, "{text}");
            assert!(text.ends_with(&"an answer"[..max_body]), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_events_may_stand_still_for_longer_than_other_bodies() {
        for (media_type, seconds) in [("text/event-stream; charset=utf-8", 300), ("text/plain", 120)] {
            for max_body in [None, Some(99)] {
                let stands_still = async {
                    let (_agent_end, _begun, come, mut sends) = begun_between().await;
                    sends.send_data("data: 1\n\n".into(), false).unwrap();
                    let head = http::Response::builder().header("content-type", media_type).body(());
                    let head = ResponseHead::of_version_2(&head.unwrap().into_parts().0).unwrap();
                    let length = ResponseBody::Framed(BodyLength::Chunked);
                    let response = UpstreamResponse { head, length, body: come };
                    let (agent, _seen) = tokio::net::UnixStream::pair().unwrap();
                    let (_reader, mut writer) = AgentStream::Unix(agent).split();
                    let (version, extent) = (Version::Http11, Extent::Whole);
                    let answer = Answer::Version1 { writer: &mut writer, version, keep_alive: true, extent };
                    let (replay, received) = (ReplayBuffer::disabled(), Cell::new(0));
                    let handling = Handling { max_body, ..unbound(&replay) };
                    let (began, progress) = (Instant::now(), Progress::begin(&received));
                    let error = match respond_to_handshake(response, handling, answer, &progress).await {
                        Ok(Responded::Failed(_, Failure::Broken(error))) | Err(error) => error,
                        Ok(_) => unreachable!("it never ends"),
                    };
                    assert_eq!(began.elapsed().as_secs(), seconds, "{media_type}");
                    error
                };
                let error = tokio::task::LocalSet::new().run_until(stands_still).await;
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                assert_eq!(error.to_string(), format!("the body stood still for {seconds} s"));
            }
        }
    }

    /// What becomes of a stream of events that goes on behind these, once the agent has reset its stream for what it has read.
    async fn reset_behind(events: &'static str) -> io::Result<Responded<'static>> {
        let [(ours, upstream), (agent, theirs)] = [(); 2].map(|()| tokio::io::duplex(1 << 16));
        let upstream = async {
            let mut connection = h2::server::handshake(upstream).await.unwrap();
            let (_, mut respond) = connection.accept().await.unwrap().unwrap();
            let head = http::Response::builder().header("content-type", "text/event-stream").body(());
            let mut body = respond.send_response(head.unwrap(), false).unwrap();
            body.send_data(events.into(), false).unwrap();
            let goes_on = async {
                loop {
                    tokio::task::yield_now().await;
                    let _ = body.send_data(": and on\n".into(), false);
                }
            };
            tokio::select! { _ = connection.accept() => {}, () = goes_on => {} }
        };
        let agent = async {
            let (mut requests, connection) = h2::client::handshake(agent).await.unwrap();
            let reads = async {
                let request = http::Request::get("https://a.example/").body(()).unwrap();
                let (response, mut stream) = requests.send_request(request, false).unwrap();
                response.await.unwrap().into_body().data().await.unwrap().unwrap();
                stream.send_reset(h2::Reason::CANCEL);
                std::future::pending::<()>().await;
            };
            tokio::select! { _ = connection => {}, () = reads => {} }
        };
        let responds = async {
            let mut session = crate::http::session::over(ours).await.unwrap();
            let request = http::Request::get("https://a.example/").body(()).unwrap();
            let (pending, _) = session.send(request, BodyLength::None).unwrap();
            let mut connection = h2::server::handshake(theirs).await.unwrap();
            let (_request, stream) = connection.accept().await.unwrap().unwrap();
            tokio::task::spawn_local(async move { while connection.accept().await.is_some() {} });
            let received = Cell::new(0);
            let progress = Progress::begin(&received);
            progress.is_sent.set(true);
            let ledger = Ledger::new(policy::Spending::default());
            let usage = Usage::Expected;
            let line = RequestLine { method: "GET", path: "/" };
            let metering = Some(Metering { ledger: &ledger, line, format: LlmFormat::OpenAi, usage });
            let replay = ReplayBuffer::disabled();
            let needles = credential::Needles::of([&credential::Secret::new(SECRET.into())]).into();
            let handling = Handling {
                method: "GET",
                needles: Some(&needles),
                unsearchable: Unsearchable::Note,
                is_bound: false,
                message_wise: false,
                replay: &replay,
                renewal: None,
                max_body: None,
                deadline: None,
                metering,
            };
            let answer = Answer::Version2 { stream, extent: Extent::Whole, refusals: RefusalForm::Document };
            respond(PendingResponse::Version2(pending), handling, answer, &progress).await
        };
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                tokio::select! {
                    responded = responds => responded,
                    _ = async { tokio::join!(upstream, agent) } => unreachable!("it is answered first"),
                }
            })
            .await
    }

    #[tokio::test]
    async fn an_agent_that_resets_its_stream_gave_it_up_unless_it_had_the_usage() {
        let gave_up = reset_behind("data: {}\n\n").await.err().unwrap();
        assert!(Abandoned::is_given_up(&gave_up), "{gave_up}");
        let told = "data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":20,\"output_tokens\":10}}}\n\n";
        let had_it = reset_behind(told).await;
        assert!(matches!(had_it, Ok(Responded::Answered { reusable: false, .. })), "{:?}", had_it.err());
    }

    /// What an agent reads its answer from, and sends its request to.
    type AgentEnd = (h2::client::ResponseFuture, h2::SendStream<Bytes>);

    /// An answer of gRPC's that an upstream has begun, between what the agent and the upstream send by.
    async fn begun_between()
    -> (AgentEnd, Begun<'static>, Incoming<'static, UpstreamReader>, h2::SendStream<Bytes>) {
        let [(ours, upstream), (agent, theirs)] = [(); 2].map(|()| tokio::io::duplex(1 << 16));
        let (mut requests, agent) = h2::client::handshake(agent).await.unwrap();
        let (mut session, session_io) = h2::client::handshake(ours).await.unwrap();
        let (mut from_agent, mut from_us) =
            tokio::try_join!(h2::server::handshake(theirs), h2::server::handshake(upstream)).unwrap();
        for task in [agent, session_io] {
            tokio::task::spawn_local(task);
        }
        let request = || http::Request::get("https://a.example/").body(()).unwrap();
        let agent_end = requests.send_request(request(), false).unwrap();
        let (response, _) = session.send_request(request(), true).unwrap();
        let (_, mut answers) = from_agent.accept().await.unwrap().unwrap();
        let (_, mut responds) = from_us.accept().await.unwrap().unwrap();
        for mut connection in [from_agent, from_us] {
            tokio::task::spawn_local(async move { while connection.accept().await.is_some() {} });
        }
        let sends = responds.send_response(http::Response::new(()), false).unwrap();
        let body = answers.send_response(http::Response::new(()), false).unwrap();
        let come = response.await.unwrap().into_body();
        let begun = Begun {
            body: Outgoing::Version2(body, None),
            extent: Extent::WithTrailers,
            refusals: RefusalForm::Document,
            after: After::KeepAlive,
        };
        (agent_end, begun, Incoming::Version2(come), sends)
    }

    /// How the stream of an agent ends whose answer its upstream resets behind this: by the reason of a reset, or the trailers.
    async fn ended(
        refusals: RefusalForm,
        passed: &'static str,
        reset: h2::Reason,
    ) -> Result<http::HeaderMap, Option<h2::Reason>> {
        let ends = async {
            let ((response, _asks), begun, come, mut sends) = begun_between().await;
            sends.send_data(passed.into(), false).unwrap();
            let resets = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                sends.send_reset(reset);
            };
            let (begun, received) = (Begun { refusals, ..begun }, Cell::new(0));
            let (mut filter, progress) = (Filter::none(), Progress::begin(&received));
            let passes = pass_body_on(come, STALLED, &mut filter, begun, &progress);
            let (broke, ()) = tokio::join!(passes, resets);
            assert!(HungUp::is(&broke.unwrap_err()));
            let mut body = response.await.unwrap().into_body();
            while let Some(piece) = body.data().await {
                let length = piece.map_err(|error| error.reason())?.len();
                body.flow_control().release_capacity(length).unwrap();
            }
            Ok(body.trailers().await.unwrap().unwrap())
        };
        tokio::task::LocalSet::new().run_until(ends).await
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_breaks_off_is_not_said_to_be_given_up_by_its_agent() {
        use RefusalForm::{Document, GrpcStatus};
        use h2::Reason;
        const MESSAGE: &str = "\0\0\0\0\x03one";
        let status = ended(GrpcStatus, MESSAGE, Reason::CANCEL).await.unwrap();
        assert_eq!(status["grpc-status"], "14");
        let told = status["grpc-message"].to_str().unwrap();
        assert!(told.starts_with("the upstream hung up in the middle of its answer"), "{told}");
        for (form, passed, reset, told) in [
            (GrpcStatus, "\0\0\0\0\x03on", Reason::CANCEL, Reason::INTERNAL_ERROR),
            (GrpcStatus, MESSAGE, Reason::ENHANCE_YOUR_CALM, Reason::ENHANCE_YOUR_CALM),
            (Document, MESSAGE, Reason::CANCEL, Reason::INTERNAL_ERROR),
            (Document, MESSAGE, Reason::NO_ERROR, Reason::INTERNAL_ERROR),
            (Document, MESSAGE, Reason::HTTP_1_1_REQUIRED, Reason::HTTP_1_1_REQUIRED),
        ] {
            assert_eq!(ended(form, passed, reset).await.unwrap_err(), Some(told), "{form:?} {reset}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_that_breaks_off_is_told_though_the_agent_gave_up() {
        let breaks = async {
            let ((_response, mut asks), begun, come, mut sends) = begun_between().await;
            sends.send_reset(h2::Reason::INTERNAL_ERROR);
            asks.send_reset(h2::Reason::CANCEL);
            // Both have come, since nothing else is left to do.
            tokio::time::sleep(Duration::from_secs(1)).await;
            pass_body_on(come, STALLED, &mut Filter::none(), begun, &Progress::begin(&Cell::new(0))).await
        };
        let error = tokio::task::LocalSet::new().run_until(breaks).await.unwrap_err();
        assert!(HungUp::is(&error), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_known_whether_a_message_was_held_back_from_an_agent_that_gave_up() {
        for (message_wise, agent_gives_up, is_held) in
            [(false, true, true), (true, true, false), (false, false, false)]
        {
            let gives_up = async {
                let ((_response, mut asks), begun, come, mut sends) = begun_between().await;
                sends.send_data("\0\0\0\0\x03one".into(), false).unwrap();
                let head = http::Response::builder().header("content-type", "application/grpc").body(());
                let mut head = ResponseHead::of_version_2(&head.unwrap().into_parts().0).unwrap();
                let needles = credential::Needles::of([&credential::Secret::new(SECRET.into())]).into();
                let mut length = head.body("GET").unwrap();
                let mut filter = Filter::scrubbing(&needles, &mut head, &mut length).unwrap();
                if message_wise {
                    filter.release_messages();
                }
                let received = Cell::new(0);
                let progress = Progress::begin(&received);
                let resets = async {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let whose = if agent_gives_up { &mut asks } else { &mut sends };
                    whose.send_reset(h2::Reason::CANCEL);
                };
                let passes = pass_body_on(come, STALLED, &mut filter, begun, &progress);
                let (passed, ()) = tokio::join!(passes, resets);
                assert_eq!(Abandoned::is(&passed.unwrap_err()), agent_gives_up);
                progress.holds_message.get()
            };
            let held = tokio::task::LocalSet::new().run_until(gives_up).await;
            assert_eq!(held, is_held, "{message_wise} {agent_gives_up}");
        }
    }

    /// How a response is handled: of a host that a credential is bound to, or not.
    fn handled(method: &str, needles: &LiveNeedles, is_bound: bool, then: impl FnOnce(Handling<'_>)) {
        let unsearchable = if is_bound { Unsearchable::Refuse } else { Unsearchable::Note };
        then(Handling {
            method,
            needles: Some(needles),
            unsearchable,
            is_bound,
            message_wise: false,
            replay: &ReplayBuffer::disabled(),
            renewal: None,
            max_body: None,
            deadline: None,
            metering: None,
        });
    }

    #[test]
    fn a_body_that_merely_says_that_it_is_wide_is_searched_where_no_credential_is_bound() {
        let needles = credential::Needles::of([&credential::Secret::new(SECRET.into())]).into();
        for is_bound in [true, false] {
            handled("GET", &needles, is_bound, |handling| {
                let parts =
                    http::Response::builder().header("content-type", "text/plain; charset=utf-16").body(());
                let mut head = ResponseHead::of_version_2(&parts.unwrap().into_parts().0).unwrap();
                let mut length = head.body("GET").unwrap();
                let filter = filter_for(handling, &mut head, &mut length);
                assert_eq!(filter.is_err(), is_bound);
                let Ok((mut filter, note)) = filter else { return };
                assert!(note.unwrap().contains("utf-16"));
                let body = Bytes::from(format!("it was {SECRET}."));
                let seen = [filter.piece(body).unwrap().concat(), filter.end().unwrap().to_vec()].concat();
                assert_eq!(String::from_utf8(seen).unwrap(), "it was *************.");
            });
        }
    }

    #[test]
    fn a_coding_of_the_body_hides_nothing_in_a_head() {
        let needles = credential::Needles::of([&credential::Secret::new(SECRET.into())]).into();
        for (method, coding, is_bound, is_refused) in [
            ("GET", "gzip", true, false),
            ("GET", "zstd", true, true),
            ("HEAD", "zstd", true, false),
            ("GET", "gzip", false, false),
            ("GET", "zstd", false, false),
            ("HEAD", "zstd", false, false),
        ] {
            handled(method, &needles, is_bound, |handling| {
                let what = format!("{method} {coding}, bound: {is_bound}");
                let parts = http::Response::builder()
                    .header("content-encoding", coding)
                    .header("content-length", "3")
                    .header("x-echo", SECRET)
                    .body(());
                let mut head = ResponseHead::of_version_2(&parts.unwrap().into_parts().0).unwrap();
                head.reason = SECRET.into();
                let mut length = head.body(method).unwrap();
                let filter = filter_for(handling, &mut head, &mut length);
                assert_eq!(filter.is_err(), is_refused, "{what}");
                let Ok((mut filter, note)) = filter else { return };
                assert!(note.is_none() && head.reason != SECRET, "{what}");
                assert_eq!(head.fields.text("x-echo"), Some(&*"*".repeat(SECRET.len())), "{what}");
                let mut trailers = Fields::default();
                trailers.push("x-echo", SECRET.as_bytes());
                filter.fields(&mut trailers);
                assert_ne!(trailers.text("x-echo"), Some(SECRET), "{what}");
                if !is_bound {
                    // The body is what it was.
                    assert_eq!(head.fields.text("content-encoding"), Some(coding));
                    assert_eq!(length, head.body(method).unwrap());
                    let piece = Bytes::from_static(b"\x1f\x8b\x08");
                    assert_eq!(filter.piece(piece.clone()).unwrap().concat(), piece);
                    assert!(filter.end().unwrap().is_empty());
                }
            });
        }
    }
}
