//! Handles one request, of HTTP/1 or HTTP/2 and from any plane that shows it: finds its target, asks the policy, and answers it.

use std::io;
use std::rc::Rc;

use policy::{Authority, Denial, Guard, Hint, Host, Port, Target};

use super::answer::Answer;
use super::forwarding::{Forwarding, Terms};
use super::gateway;
use super::head::RequestHead;
use super::max_forwards::{Ended, count_forward};
use super::problem::After;
use super::refuse::{after_unread, deny};
use super::request::{Request, Via};
use crate::audit;
use crate::exchange::{Exchange, Granted};
use crate::gate::Gate;
use crate::inject::{Form, Sending, inject, provider_named_in};

/// Takes a request through every stage and answers it.
pub(super) async fn handle(
    gate: &Rc<Gate>,
    via: &Via,
    mut request: Request<'_>,
    answer: Answer<'_>,
) -> io::Result<After> {
    if matches!(via, Via::Gateway | Via::JsonLine) && request.head.target.starts_with('/') {
        let fields = &request.head.fields;
        let judged = match fields.values("host").all(may_name_a_host) {
            true => gateway::refuse_web_page(fields, answer.local_address()),
            false => Err(unreadable_host("it holds what no host and port do")),
        };
        return match judged {
            Ok(()) => Box::pin(gateway::route(gate, request, answer)).await,
            Err(denial) => refuse_unreadable(gate, via, &mut request, answer, denial).await,
        };
    }
    let head = &request.head;
    let target = match target_of(gate, via, head) {
        Ok(target) => target,
        Err(denial) => return refuse_unreadable(gate, via, &mut request, answer, denial).await,
    };
    let text = target.text();
    let mut sending = Sending::new(head.method.clone(), &target, head.fields_to_send());
    let mut asked = policy::Asked::request(via.plane(), head.method.clone(), &target);
    asked.provider = provider_named_in(&sending, gate, &asked, &target);
    let begun = Exchange::begin(gate, head.method.as_str(), text.clone(), asked);
    let pinned = match begun.authorize(gate).and_then(|granted| refuse_unnamed_provider(via, granted)) {
        Ok(granted) => granted.pin(gate).await,
        Err(denial) => Err(denial),
    };
    let exchange = match pinned {
        Ok(exchange) => exchange,
        Err(denial) => return refuse(gate, &mut request, answer, &denial, &text).await,
    };
    let exchange = match count_forward(exchange, &mut sending, gate, &target, &text) {
        Ok(exchange) => exchange,
        Err(Ended::Denied(denial)) => return refuse(gate, &mut request, answer, &denial, &text).await,
        Err(Ended::Answered(reply)) => {
            let after = answer.reply(reply, after_unread(&request)).await;
            request.body.settle().await;
            return after;
        }
    };
    match inject(exchange, gate, &target, &mut sending, Form::Placeholders).await {
        Ok(exchange) => {
            let forwarding = Forwarding::new(gate, &target, Terms::default());
            forwarding.send(exchange, sending, request, answer).await
        }
        Err(denial) => refuse(gate, &mut request, answer, &denial, &text).await,
    }
}

/// Refuses a line of JSON that names no provider and would be sent with the credential of one. Without it the answer would be another
/// than the provider's rule is for, so the agent is told which one to name.
fn refuse_unnamed_provider(via: &Via, granted: Exchange<Granted>) -> Result<Exchange<Granted>, Denial> {
    let provider = granted.grant().provider().filter(|_| matches!(via, Via::JsonLine));
    let Some(id) = provider.map(|provider| provider.id().clone()) else { return Ok(granted) };
    let why = format!("this is sent with the credential of `{id}`, and the line names no `capability`");
    let hint = Hint::from(format!("add \"capability\": \"{id}\" to the line").as_str());
    Err(granted.refuse(Denial::new(Guard::NotAuthorized, why).with_hint(hint)))
}

/// Refuses a request whose target is unknown.
async fn refuse_unreadable(
    gate: &Rc<Gate>,
    via: &Via,
    request: &mut Request<'_>,
    answer: Answer<'_>,
    denial: Denial,
) -> io::Result<After> {
    let shown = via.shown(Some(&request.head.target)).unwrap_or_default();
    let denial = audit::record_refused_unasked(gate, via.plane(), &shown, denial);
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
fn target_of(gate: &Gate, via: &Via, head: &RequestHead) -> Result<Target, Denial> {
    let target = match via {
        Via::Proxy | Via::Gateway | Via::JsonLine if head.target.starts_with('/') || head.target == "*" => {
            let why = "this is a proxy: give the whole target, http://host/path";
            return Err(Denial::new(Guard::Syntax, why).with_hint(match gate.has_redirect() {
                true => "set HTTP_PROXY, or connect to the host itself: it is redirected here",
                false => "set HTTP_PROXY",
            }));
        }
        Via::Proxy | Via::Gateway | Via::JsonLine => Target::parse(&head.target)?,
        Via::Bound { scheme, host, port, .. } if head.target.starts_with('/') => {
            Target::from_origin_form(*scheme, host.clone(), *port, &head.target)?
        }
        Via::Bound { scheme, host, port, .. } => {
            let target = Target::parse(&head.target)?;
            if target.host() != host || target.port() != *port || target.scheme() != *scheme {
                let bound = format!("{}://{host}:{port}", scheme.as_str());
                return Err(mismatch(&target.to_string(), &bound));
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
    if matches!(host, Host::Name(name) if name.as_str().as_bytes() == value) {
        return Ok(()); // as nearly every client writes it, and so not to be read
    }
    let text = std::str::from_utf8(value).map_err(|_| unreadable_host("it is not text"))?;
    let named = Authority::parse(text).map_err(|denial| unreadable_host(&denial.reason))?;
    if named.host != *host {
        return Err(mismatch(&named.host.to_string(), &host.to_string()));
    }
    match named.port.filter(|named| *named != port) {
        Some(other) => Err(mismatch(&format!("{host}:{other}"), &format!("{host}:{port}"))),
        None => Ok(()),
    }
}

/// The denial of a malformed `Host`, which is answered with 400 (RFC 9112 §3.2).
fn unreadable_host(why: &str) -> Denial {
    Denial::new(Guard::Framing, format!("Host cannot be read: {why}"))
}

/// Whether `Host` holds only what names and ports are made of (RFC 3986 §3.2.2). The gateway itself may be called by names
/// that no host outside has, as those with `_`; but two names in one value are read in two ways.
fn may_name_a_host(value: &[u8]) -> bool {
    value.iter().all(|octet| octet.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=:[]".contains(octet))
}

fn mismatch(said: &str, reached: &str) -> Denial {
    Denial::new(Guard::AuthorityMismatch, format!("the request names {said} and goes to {reached}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::head::parse_request_head;

    #[test]
    fn who_takes_a_proxy_for_a_server_hears_of_a_redirect_where_there_is_one() {
        let gate = crate::fixture::gate_for("", Vec::new(), None);
        let hint = |head: &str| {
            let head = parse_request_head(head.as_bytes()).unwrap();
            target_of(&gate, &Via::Proxy, &head).unwrap_err().hint.unwrap().to_string()
        };
        let heads = ["GET /health HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"];
        assert_eq!(heads.map(hint), ["set HTTP_PROXY"; 2]);
        gate.note_redirect();
        assert!(heads.map(hint).iter().all(|hint| hint.ends_with("it is redirected here")));
    }

    #[test]
    fn what_does_not_agree_is_told_apart() {
        let (host, port) = Authority::parse_tunnel("a.example:443").unwrap();
        let why = |said: &str| {
            let head =
                parse_request_head(format!("GET / HTTP/1.1\r\nHost: {said}\r\n\r\n").as_bytes()).unwrap();
            refuse_other_host(&head, &host, port).err().map(|denial| denial.reason)
        };
        for (said, expected) in [
            ("b.example", Some("the request names b.example and goes to a.example")),
            ("b.example:80", Some("the request names b.example and goes to a.example")),
            ("a.example:80", Some("the request names a.example:80 and goes to a.example:443")),
            ("a.example:443", None),
            ("a.example", None),
        ] {
            assert_eq!(why(said).as_deref(), expected, "{said}");
        }
    }
}
