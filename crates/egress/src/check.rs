//! Judges a request by its method and target, through the stages that enforce the policy, without sending it.
//!
//! There is no run here, and there are no header fields. So nothing searches for the sender's own keys or for placeholders, fetches a
//! credential, counts towards a budget or a rate, or dials.

use std::rc::Rc;

use policy::{Denial, Method, Plane, Target};
use tokio::task::LocalSet;

use crate::event_loop;
use crate::exchange;
use crate::gate::Gate;
use crate::gate_error::GateError;
use crate::inject;

/// What would happen to a request.
#[derive(Debug)]
pub struct Verdict {
    /// The rule that grants it, and the target as it would be sent; or the denial.
    pub outcome: Result<(String, Target), Denial>,
}

/// Judges a request to the explicit proxy.
///
/// # Errors
/// When the runtime cannot be made.
pub fn check(gate: &Rc<Gate>, method: &Method, target: &str) -> Result<Verdict, GateError> {
    let runtime = event_loop::runtime()?;
    let outcome = LocalSet::new().block_on(&runtime, judge(gate, method, target));
    Ok(Verdict { outcome })
}

async fn judge(gate: &Rc<Gate>, method: &Method, text: &str) -> Result<(String, Target), Denial> {
    if method.as_str() == "CONNECT" {
        return judge_tunnel(gate, text).await;
    }
    let target = Target::parse(text)?;
    let asked = policy::Asked::request(Plane::Forward, method.clone(), &target);
    let pinned = exchange::pin(gate, method.as_str(), target.to_string(), asked).await?;
    let judged = inject::judge_line(pinned, gate, method, &target)?;
    Ok((judged.grant().rule().as_str().to_owned(), target))
}

/// Judges a `CONNECT`. The requests in a tunnel that the proxy terminates are not part of it.
async fn judge_tunnel(gate: &Rc<Gate>, text: &str) -> Result<(String, Target), Denial> {
    let (host, port) = policy::Authority::parse_tunnel(text)?;
    let is_plain = port == policy::Scheme::Http.default_port();
    let scheme = if is_plain { policy::Scheme::Http } else { policy::Scheme::Https };
    let target = Target::from_origin_form(scheme, host.clone(), port, "/")?;
    let granted = crate::tunnel::ask(gate, "CONNECT", text.to_owned(), host, port)?;
    let rule = granted.grant().rule().as_str().to_owned();
    if granted.grant().carriage() != policy::Carriage::Terminated {
        granted.pin(gate).await?;
    }
    Ok((rule, target))
}

#[cfg(test)]
mod tests {
    use policy::Guard;

    use super::*;
    use crate::fixture::gate_for;
    use crate::read_file::ReadFile;

    const POLICY: &str = r#"
        [egress]
        allow = [{ host = "free.example.com" }]

        [[provider]]
        id = "bound"
        authorized_uris = ["http://bound.example.com:18999/*"]
        env = "BOUND_TOKEN"
    "#;

    #[test]
    fn what_is_not_sent_with_a_credential_is_denied_here_too() {
        let gate = gate_for(POLICY, vec!["93.184.216.34".parse().unwrap()], None);
        let outcome = |method: &str, target: &str| {
            let verdict = check(&gate, &Method::parse(method).unwrap(), target).unwrap();
            verdict.outcome.map(|(rule, _)| rule).map_err(|denial| (denial.guard, denial.rule))
        };
        let bound = "http://bound.example.com:18999/x";
        let rule = outcome("GET", bound).unwrap();
        assert_eq!(outcome("TRACE", bound), Err((Guard::Method, Some(rule))));
        assert!(outcome("TRACE", "http://free.example.com/x").is_ok());
    }

    #[test]
    fn a_deny_rule_for_what_the_query_asks_is_the_one_that_is_named() {
        let policy =
            format!("{POLICY}\n[[egress.deny]]\nhost = \"free.example.com\"\nmethods = [\"DELETE\"]\n");
        let gate = gate_for(&policy, vec!["93.184.216.34".parse().unwrap()], None);
        let post = Method::parse("POST").unwrap();
        let denial =
            check(&gate, &post, "http://free.example.com/x?$httpMethod=DELETE").unwrap().outcome.unwrap_err();
        assert_eq!((denial.guard, denial.rule.as_deref()), (Guard::DenyRule, Some("egress.deny[0] in test")));
    }

    #[test]
    fn given_answers_are_judged_alike_on_every_machine() {
        let own = crate::own_addresses().unwrap();
        let own =
            own.into_iter().find(|it| matches!(it, std::net::IpAddr::V4(it) if it.is_loopback())).unwrap();
        for (addresses, is_own) in [(vec![own], false), (Vec::new(), true)] {
            let is_system = addresses.is_empty();
            let mut layers = policy::Layers::default();
            layers.push(policy::Origin::Named("test".into()), toml::from_str(POLICY).unwrap());
            let spec = layers.compile().unwrap();
            let gate = Gate::open(crate::GateOptions {
                answers: Some(match is_system {
                    true => crate::Answers::system(ReadFile::default(), ReadFile::default(), None),
                    false => crate::Answers::Given(addresses),
                }),
                ..crate::GateOptions::new(spec.policy, spec.spending, policy::RunId::from_random([0; 12]))
            });
            assert_eq!(gate.unwrap().this_machine().has(own).unwrap(), is_own);
        }
    }

    #[test]
    fn a_tunnel_is_judged_as_the_proxy_judges_it() {
        let policy = format!("{POLICY}\n[[egress.deny]]\nhost = \"shut.example.com\"\n");
        let gate = gate_for(&policy, vec!["93.184.216.34".parse().unwrap()], None);
        let outcome = |target: &str| {
            let verdict = check(&gate, &Method::parse("CONNECT").unwrap(), target).unwrap();
            verdict.outcome.map(|(_, target)| target.to_string()).map_err(|denial| denial.guard)
        };
        for absolute in ["http://free.example.com/x", "https://free.example.com:443/", "free.example.com"] {
            assert_eq!(outcome(absolute), Err(Guard::Port), "{absolute}");
        }
        assert_eq!(outcome("free.example.com:443"), Ok("https://free.example.com/".into()));
        assert_eq!(outcome("bound.example.com:18999"), Ok("https://bound.example.com:18999/".into()));
        assert_eq!(outcome("shut.example.com:443"), Err(Guard::DenyRule));
        let private = gate_for(POLICY, vec!["10.0.0.5".parse().unwrap()], None);
        let verdict = check(&private, &Method::parse("CONNECT").unwrap(), "free.example.com:443").unwrap();
        assert_eq!(verdict.outcome.unwrap_err().guard, Guard::Address);
    }
}
