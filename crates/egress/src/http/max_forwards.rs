//! `Max-Forwards` of OPTIONS and TRACE (RFC 9110 §7.6.2): counts down, and answers at 0 in the upstream's place.

use policy::{Denial, Guard, RunId, Target};

use super::fields::Fields;
use super::problem::{self, Reply};
use crate::exchange::{Exchange, Pinned};
use crate::gate::Gate;
use crate::inject::{Sending, judge_line};

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
enum Forwards {
    /// It goes on.
    Some,
    /// It ends here.
    None,
}

/// Why a request is not sent on. Its record has been written by then.
pub(super) enum Ended {
    /// It does not say whether it may be.
    Denied(Denial),
    /// It may not be, and is answered here.
    Answered(Reply),
}

/// Counts a forward, before the request gets its credential: one that ends here uses nothing up, and what is sent once more has been
/// counted. `shown` is the target as the agent is told it.
///
/// # Errors
/// The request ends here.
pub(super) fn count_forward(
    exchange: Exchange<Pinned>,
    sending: &mut Sending,
    gate: &Gate,
    target: &Target,
    shown: &str,
) -> Result<Exchange<Pinned>, Ended> {
    match count(sending) {
        Ok(Forwards::Some) => Ok(exchange),
        Ok(Forwards::None) => {
            // A TRACE that would carry a credential is denied, here as elsewhere (C12).
            let exchange = judge_line(exchange, gate, &sending.method, target).map_err(Ended::Denied)?;
            let reply = answer(sending, shown, gate.run());
            exchange.answered(reply.status);
            Err(Ended::Answered(reply))
        }
        Err(denial) => Err(Ended::Denied(exchange.refuse(denial))),
    }
}

/// Looks at the number, and counts it down.
///
/// # Errors
/// The number cannot be read.
fn count(sending: &mut Sending) -> Result<Forwards, Denial> {
    const NAME: &str = "max-forwards";
    if !matches!(sending.method.as_str(), "OPTIONS" | "TRACE") {
        return Ok(Forwards::Some);
    }
    let values: Vec<&[u8]> = sending.fields.values(NAME).collect();
    let unreadable = || Denial::new(Guard::Framing, "Max-Forwards must be one decimal number");
    let left = match values.as_slice() {
        [] => return Ok(Forwards::Some),
        [value] if value.iter().all(u8::is_ascii_digit) => std::str::from_utf8(value).ok(),
        _ => None,
    };
    let left: u64 = left.and_then(|text| text.parse().ok()).ok_or_else(unreadable)?;
    let Some(rest) = left.checked_sub(1) else { return Ok(Forwards::None) };
    sending.fields.set(NAME, rest.to_string().as_bytes());
    Ok(Forwards::Some)
}

/// Answers a request that ends here. To reflect a TRACE would show what was put into it on its way.
fn answer(sending: &Sending, target: &str, run: &RunId) -> Reply {
    if sending.method.as_str() == "OPTIONS" {
        return Reply::new(200, Fields::default(), Vec::new());
    }
    let why = "Max-Forwards is 0, and this proxy reflects no request";
    problem::failed(501, "TRACE ends here", why, target, run)
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use policy::{Asked, Method, Plane};

    use super::*;
    use crate::fixture::gate_for;

    /// What becomes of a request with these fields, and the number that goes on.
    fn counted(method: &str, values: &[&str]) -> (Result<Forwards, Guard>, Option<String>) {
        let target = Target::parse("http://a.example/").unwrap();
        let fields = values.iter().map(|value| ("max-forwards", value.as_bytes())).collect();
        let mut sending = Sending::new(Method::parse(method).unwrap(), &target, fields);
        let counted = count(&mut sending).map_err(|denial| denial.guard);
        (counted, sending.fields.text("max-forwards").map(str::to_owned))
    }

    #[test]
    fn a_forward_is_counted_and_the_last_one_ends_here() {
        for method in ["OPTIONS", "TRACE"] {
            assert_eq!(counted(method, &[]), (Ok(Forwards::Some), None));
            assert_eq!(counted(method, &["10"]), (Ok(Forwards::Some), Some("9".into())));
            assert_eq!(counted(method, &["01"]), (Ok(Forwards::Some), Some("0".into())));
            assert_eq!(counted(method, &["0"]).0, Ok(Forwards::None));
            for unreadable in [&["-1"][..], &["+1"], &[""], &["1, 2"], &["1", "1"], &["99999999999999999999"]]
            {
                assert_eq!(counted(method, unreadable).0, Err(Guard::Framing), "{unreadable:?}");
            }
        }
        assert_eq!(counted("GET", &["0"]), (Ok(Forwards::Some), Some("0".into())));
    }

    #[tokio::test]
    async fn a_forward_is_counted_before_there_is_a_credential() {
        let url = "http://127.0.0.1:9/";
        let target = Target::parse(url).unwrap();
        let gate = gate_for(&format!("[egress]\nallow = [{{ url = \"{url}*\" }}]\n"), Vec::new(), None);
        let options = || Method::parse("OPTIONS").unwrap();
        let ended = async |value: &str| {
            let asked = Asked::request(Plane::Forward, options(), &target);
            let pinned =
                Exchange::begin(&Rc::clone(&gate), "OPTIONS", url.into(), asked).pin(&gate).await.unwrap();
            let fields = Fields::from_iter([("max-forwards", value.as_bytes())]);
            let mut sending = Sending::new(options(), &target, fields);
            // What is sent once more is made of what was there when the credential came.
            match count_forward(pinned, &mut sending, &gate, &target, url) {
                Ok(_) => sending.fields.text("max-forwards").unwrap().to_owned(),
                Err(Ended::Denied(denial)) => denial.guard.code().to_owned(),
                Err(Ended::Answered(reply)) => format!("answered {}", reply.status),
            }
        };
        assert_eq!(ended("2").await, "1");
        assert_eq!(ended("0").await, "answered 200");
        assert_eq!(ended("x").await, Guard::Framing.code());
    }
}
