//! Handles one request, of HTTP/1 or HTTP/2 and from any plane that shows it: finds its target, asks the policy, and answers it.

use std::io;
use std::rc::Rc;

use policy::{Authority, Denial, Guard, Host, Port, Target};

use super::answer::Answer;
use super::forward::{Terms, forward};
use super::gateway;
use super::head::RequestHead;
use super::problem::After;
use super::refuse::deny;
use super::request::{Request, Via};
use crate::audit;
use crate::exchange;
use crate::gate::Gate;
use crate::inject::{Form, Sending, inject};

/// Takes a request through every stage and answers it.
pub(super) async fn handle(
    gate: &Rc<Gate>,
    via: &Via,
    mut request: Request<'_>,
    answer: Answer<'_>,
) -> io::Result<After> {
    if matches!(via, Via::Gateway) && request.head.target.starts_with('/') {
        if request.head.fields.values("host").all(may_name_a_host) {
            return Box::pin(gateway::route(gate, request, answer)).await;
        }
        let denial = unreadable_host("it holds what no host and port do");
        return refuse_unreadable(gate, via, &mut request, answer, denial).await;
    }
    let head = &request.head;
    let target = match target_of(via, head) {
        Ok(target) => target,
        Err(denial) => return refuse_unreadable(gate, via, &mut request, answer, denial).await,
    };
    let text = target.to_string();
    let asked = policy::Asked::request(via.plane(), head.method.clone(), &target);
    let pinned = exchange::pin(gate, head.method.as_str(), text.clone(), asked).await;
    let exchange = match pinned {
        Ok(exchange) => exchange,
        Err(denial) => return refuse(gate, &mut request, answer, &denial, &text).await,
    };
    let mut fields = head.fields.clone();
    fields.leave_hop();
    let mut sending = Sending::new(head.method.clone(), &target, fields);
    match inject(exchange, gate, &target, &mut sending, Form::Placeholders).await {
        Ok(exchange) => forward(gate, exchange, &target, sending, request, answer, Terms::default()).await,
        Err(denial) => refuse(gate, &mut request, answer, &denial, &text).await,
    }
}

/// Refuses a request whose target is unknown.
async fn refuse_unreadable(
    gate: &Rc<Gate>,
    via: &Via,
    request: &mut Request<'_>,
    answer: Answer<'_>,
    denial: Denial,
) -> io::Result<After> {
    let shown = request.head.target.clone();
    let denial = audit::record_unreadable(gate, via.plane(), &shown, denial);
    refuse(gate, request, answer, &denial, &shown).await
}

/// Refuses a request, and lets the agent finish sending it.
async fn refuse(
    gate: &Rc<Gate>,
    request: &mut Request<'_>,
    answer: Answer<'_>,
    denial: &Denial,
    target: &str,
) -> io::Result<After> {
    let after = deny(gate, request, answer, denial, target).await;
    request.body.settle().await;
    after
}

/// Returns where a request goes. Its target, its `Host` and the connection that it came over must agree (C02, E10).
fn target_of(via: &Via, head: &RequestHead) -> Result<Target, Denial> {
    let target = match via {
        Via::Proxy | Via::Gateway if head.target.starts_with('/') || head.target == "*" => {
            return Err(Denial::new(
                Guard::Syntax,
                "this is a proxy: give the whole target, http://host/path",
            )
            .with_hint("set HTTP_PROXY, or connect to the host itself: it is redirected here"));
        }
        Via::Proxy | Via::Gateway => Target::parse(&head.target)?,
        Via::Bound { scheme, host, port, .. } if head.target.starts_with('/') => {
            Target::from_origin_form(*scheme, host.clone(), *port, &head.target)?
        }
        Via::Bound { scheme, host, port, .. } => {
            let target = Target::parse(&head.target)?;
            if target.host() != host || target.port() != *port || target.scheme() != *scheme {
                return Err(mismatch(&target.to_string(), host));
            }
            target
        }
    };
    refuse_other_host(head, target.host(), target.port())?;
    Ok(target)
}

/// Refuses a `Host` that names another host or port than the target. By RFC 9112 §3.2.2 the target overrides it; but two different
/// names are an attempt to be read in two ways.
pub(super) fn refuse_other_host(head: &RequestHead, host: &Host, port: Port) -> Result<(), Denial> {
    let Some(value) = head.fields.values("host").next() else { return Ok(()) };
    let text = std::str::from_utf8(value).map_err(|_| unreadable_host("it is not text"))?;
    let named = Authority::parse(text).map_err(|denial| unreadable_host(&denial.reason))?;
    if named.host != *host || named.port.is_some_and(|named| named != port) {
        return Err(mismatch(&named.host.to_string(), host));
    }
    Ok(())
}

/// The denial of a malformed `Host`, which is answered with 400 (RFC 9112 §3.2).
fn unreadable_host(why: &str) -> Denial {
    Denial::new(Guard::Framing, format!("Host cannot be read: {why}"))
}

/// Whether `Host` holds only what names and ports are made of (RFC 3986 §3.2.2). The gateway itself may be called by any name, even
/// one with `_` that no host outside has; but two names in one value are read in two ways.
fn may_name_a_host(value: &[u8]) -> bool {
    value.iter().all(|octet| octet.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(octet))
}

fn mismatch(said: &str, host: &Host) -> Denial {
    Denial::new(Guard::AuthorityMismatch, format!("the request names {said} and goes to {host}"))
}
