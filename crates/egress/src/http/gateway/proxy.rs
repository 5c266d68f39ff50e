//! `/proxy`: a request for `X-Target` with the credential of `X-Provider`, in the order of S0.45 to S0.51.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use credential::{Position, is_template, substitute};
use policy::{Denial, Guard, Placeholders, Plane, Target};

use super::ask::Ask;
use super::{left, refusal, template, whole};
use crate::credentials::unfit;
use crate::exchange::{Asked, Exchange, Ready};
use crate::gate::Gate;
use crate::http::answer::Answer;
use crate::http::forward::{Terms, forward};
use crate::http::head::BodyLength;
use crate::http::incoming::Incoming;
use crate::http::media_type::MediaType;
use crate::http::problem::After;
use crate::http::refuse::deny;
use crate::http::request::Request;
use crate::http::stream::AgentReader;
use crate::inject::{Form, Sending, inject, stands_elsewhere};

/// The largest body in which placeholders are replaced (REQUIREMENTS, literal behaviour).
const LARGEST_BODY: usize = 5 * 1024 * 1024;
/// How long an exchange may take (the same).
const OUTBOUND: Duration = Duration::from_secs(30);

/// Answers `/proxy`.
pub(super) async fn proxy(
    gate: &Rc<Gate>,
    request: Request<'_>,
    mut answer: Answer<'_>,
) -> io::Result<After> {
    let ask = match Ask::of(&request.head.fields) {
        Ok(ask) => ask,
        Err(why) => {
            let denial = Denial::new(Guard::Syntax, why);
            Exchange::<Asked>::refuse_unreadable(gate, Plane::Gateway, "/proxy", denial);
            return answer.reply(refusal(400, "target_syntax", why), left(&request)).await;
        }
    };
    let (target, origin) = match template::judged(&ask.target) {
        Ok(judged) => judged,
        Err(denial) => {
            let denial = Exchange::<Asked>::refuse_unreadable(gate, Plane::Gateway, &ask.target, denial);
            return deny(gate, &request, answer, &denial, &ask.target).await;
        }
    };
    let method = request.head.method.clone();
    let mut asked = policy::Asked::request(Plane::Gateway, method.clone(), &target);
    asked.provider = Some(ask.provider.clone());
    let granted = Exchange::begin(gate, method.as_str(), ask.target.clone(), asked.clone()).authorize(gate);
    let pinned =
        match (granted, &ask.proxy) {
            (Err(denial), _) => Err(denial),
            (Ok(exchange), None) => exchange.pin(gate).await,
            // S1.19. An agent chooses among those that are declared: any other would be a way around the policy.
            (Ok(exchange), Some(wanted)) => match gate.policy().proxies().named(wanted) {
                Some(proxy) => exchange.pin_through(gate, Arc::clone(proxy)).await,
                None => Err(exchange
                    .refuse(Denial::new(Guard::NotAuthorized, "X-Proxy names no proxy that is declared"))),
            },
        };
    let pinned = match pinned {
        Ok(exchange) => exchange,
        Err(denial) => return deny(gate, &request, answer, &denial, &ask.target).await,
    };
    let mut fields = request.head.fields.clone();
    fields.leave_hop();
    let mut sending = Sending::new(method, &target, fields);
    sending.origin_form = origin;
    let exchange = match inject(pinned, gate, &target, &mut sending, Form::Templates).await {
        Ok(exchange) => exchange,
        Err(denial) => return deny(gate, &request, answer, &denial, &ask.target).await,
    };
    let exchange = match judge_again(gate, exchange, &asked, &target, &sending) {
        Ok(exchange) => exchange,
        Err(denial) => return deny(gate, &request, answer, &denial, &ask.target).await,
    };
    let mut terms = Terms { most: Some(ask.max_response_size), within: Some(OUTBOUND), filled: false };
    if !ask.substitute_body || request.head.body == BodyLength::None {
        return forward(gate, exchange, &target, sending, request, answer, terms).await;
    }
    let Request { mut head, mut body } = request;
    let (written, _room) = match whole(&head, &mut body, &mut answer, LARGEST_BODY).await? {
        Ok(held) => held,
        Err(refused) => {
            let why =
                if refused.status == 413 { "Request body too large" } else { "the gateway has no room" };
            exchange.refuse(Denial::new(Guard::Framing, why));
            return answer.reply(refused, After::Close).await;
        }
    };
    terms.filled = is_template(&written);
    let filled = match filled(&exchange, &sending, written) {
        Ok(filled) => filled,
        Err(denial) => {
            let denial = exchange.refuse(denial);
            let request = Request { head, body: Incoming::Whole(None) };
            return deny(gate, &request, answer, &denial, &ask.target).await;
        }
    };
    head.body = BodyLength::Sized(filled.len() as u64);
    sending.fields.remove("expect"); // it has been met
    let body: Incoming<'_, AgentReader> = Incoming::Whole(Some(filled));
    forward(gate, exchange, &target, sending, Request { head, body }, answer, terms).await
}

/// The body with the credential's fields in it. Where a provider says where its credential goes, a body is not the place: a service keeps
/// and shows what it is told.
fn filled(exchange: &Exchange<Ready>, sending: &Sending, written: Bytes) -> Result<Bytes, Denial> {
    let Some(held) = exchange.held().filter(|_| is_template(&written)) else { return Ok(written) };
    let place = place_of(&MediaType::of(sending.fields.text("content-type").unwrap_or_default()));
    // What no field resolves is that before it stands in a wrong place. S0.50
    let filled = substitute(&written, held.credential(), place).map_err(|error| unfit("body", &error))?;
    match exchange.grant().provider() {
        Some(provider) if provider.placeholders() == Placeholders::InPlace => {
            Err(stands_elsewhere(provider, "the body"))
        }
        _ => Ok(Bytes::copy_from_slice(&filled)),
    }
}

/// What came of the template must be where the template was allowed to go.
fn judge_again(
    gate: &Gate,
    exchange: Exchange<Ready>,
    asked: &policy::Asked,
    target: &Target,
    sending: &Sending,
) -> Result<Exchange<Ready>, Denial> {
    let filled =
        Target::from_origin_form(target.scheme(), target.host().clone(), target.port(), &sending.origin_form);
    let again = filled.and_then(|filled| {
        let mut again = policy::Asked::request(Plane::Gateway, sending.method.clone(), &filled);
        again.provider.clone_from(&asked.provider);
        gate.policy().decide(&again)
    });
    match again {
        Ok(_) => Ok(exchange),
        // The reason is not repeated: it may quote the target, which holds the credential by now.
        Err(denial) => {
            let why = "the credential's value leads outside of what its provider is authorized for";
            Err(exchange.refuse(Denial::new(denial.guard, why)))
        }
    }
}

fn place_of(kind: &MediaType) -> Position {
    if kind.is_json() {
        Position::Json
    } else if kind.is("application/x-www-form-urlencoded") {
        Position::Form
    } else {
        Position::Text
    }
}
