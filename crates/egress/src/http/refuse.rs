//! Answers of the sidecar's own in place of an upstream's: denials, and an upstream that cannot be reached.

use std::io;
use std::rc::Rc;

use policy::{Denial, Guard, Hint, Policy, Target};

use super::answer::Answer;
use super::head::BodyLength;
use super::hung_up::HungUp;
use super::problem::{self, After, UPGRADE_REQUIRED};
use super::request::Request;
use crate::exchange::{Exchange, Ready};
use crate::gate::Gate;

/// Answers a denied request, on the explicit plane or over a connection whose TLS was terminated.
pub(super) async fn deny(
    gate: &Rc<Gate>,
    request: &Request<'_>,
    answer: Answer<'_>,
    denial: &Denial,
    target: &str,
) -> io::Result<After> {
    let reply = problem::denied(denial, target, gate.run(), status_of(denial, gate.policy()));
    // What follows a request that cannot be read may not be what it seems to be.
    let after = match denial.guard {
        Guard::Framing | Guard::Syntax => After::Close,
        _ => after_unread(request),
    };
    answer.reply(reply, after).await
}

/// Returns the status of the answer to a denied request.
pub(super) fn status_of(denial: &Denial, policy: &Policy) -> u16 {
    match denial.guard {
        Guard::NoAddress | Guard::Credential => 502,
        Guard::Framing | Guard::Syntax | Guard::Unresolved => 400,
        // Codex goes over to HTTP at this one, and ends at a 429.
        Guard::Budget if denial.hint == Some(Hint::OverHttp) => UPGRADE_REQUIRED,
        Guard::Budget | Guard::RateLimit => 429,
        _ => policy.denied_status(),
    }
}

/// Returns whether the connection can be kept after an answer that did not read the request's body, which would be taken for the next
/// request.
pub(super) fn after_unread(request: &Request<'_>) -> After {
    if request.head.body == BodyLength::None { After::KeepAlive } else { After::Close }
}

/// Answers that the upstream cannot be reached; with the status `late` if it was too slow.
pub(super) async fn unreachable(
    gate: &Gate,
    mut exchange: Exchange<Ready>,
    target: &Target,
    error: &io::Error,
    answer: Answer<'_>,
    late: u16,
) -> io::Result<After> {
    exchange.record().upstream_failed(error);
    let answer = match answer {
        // An agent may send it again, as it may where the upstream itself tells it so (RFC 9113 §8.7): nobody has acted on it.
        Answer::Version2 { mut stream, .. } if HungUp::is_unread(error) => {
            stream.send_reset(h2::Reason::REFUSED_STREAM);
            return Ok(After::KeepAlive);
        }
        answer => answer,
    };
    let reply = problem::unreachable(error, late, &target.to_string(), gate.run());
    answer.reply(reply, After::Close).await
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin};

    use super::*;
    use crate::exchange::tests::ready;
    use crate::fixture::gate_for;
    use crate::http::answer::Extent;
    use crate::http::grpc_status::RefusalForm;
    use crate::llm::{Ledger, ModelRequest};

    #[tokio::test]
    async fn what_a_budget_refuses_is_asked_over_http_where_that_helps() {
        for (budget, request, status) in [
            ("tokens = 9000", ModelRequest::Socket, 426),
            ("usd = \"9\"", ModelRequest::Socket, 426),
            ("tokens = 9000", ModelRequest::Later, 429),
            ("requests = 0", ModelRequest::Socket, 429),
            ("tokens = 0", ModelRequest::Answer, 429),
        ] {
            let mut layers = Layers::default();
            let text = format!("[llm]\nbudget = {{ {budget} }}\n");
            layers.push(Origin::Flags, toml::from_str(&text).unwrap());
            let spec = layers.compile().unwrap();
            let denial = Rc::new(Ledger::new(spec.spending)).admit(request).await.unwrap_err();
            assert_eq!(status_of(&denial, &spec.policy), status, "{budget} {request:?}: {denial}");
        }
    }

    /// What an agent of HTTP/2 gets where the upstream failed so: a status, or else a reset.
    async fn answered(error: HungUp) -> Result<u16, Option<h2::Reason>> {
        let url = "http://127.0.0.1:9/";
        let gate = gate_for(&format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n"), Vec::new(), None);
        let exchange = ready(&gate, url).await;
        let target = Target::parse(url).unwrap();
        let error = io::Error::new(io::ErrorKind::ConnectionReset, error);
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut requests, connection) = h2::client::handshake(ours).await.unwrap();
        let request = http::Request::get("https://a.example/").body(()).unwrap();
        let (response, _) = requests.send_request(request, true).unwrap();
        let answers = async {
            let mut agent = h2::server::handshake(theirs).await.unwrap();
            let (_request, stream) = agent.accept().await.unwrap().unwrap();
            let answer = Answer::Version2 { stream, extent: Extent::Whole, refusals: RefusalForm::Document };
            unreachable(&gate, exchange, &target, &error, answer, 504).await.unwrap();
            agent.accept().await
        };
        tokio::select! {
            response = response => response.map(|head| head.status().as_u16()).map_err(|error| error.reason()),
            _ = async { tokio::join!(answers, connection) } => unreachable!("it is answered first"),
        }
    }

    #[tokio::test]
    async fn an_agent_hears_that_its_request_was_given_back_unread() {
        let reset = || io::ErrorKind::ConnectionReset.into();
        assert_eq!(answered(HungUp::Unread(reset())).await, Err(Some(h2::Reason::REFUSED_STREAM)));
        assert_eq!(answered(HungUp::BeforeAnswer(reset())).await, Ok(502));
    }
}
