//! Hints for denials: the exact command or edit that would allow the request, and nothing that opens more.

use crate::address::AddressClass;
use crate::asked::{Asked, Plane, View};
use crate::denial::{Denial, Guard};
use crate::hint::Hint;
use crate::hostname::Host;
use crate::path::EncodedSlash;
use crate::rule::AllowRule;
use crate::target::Port;

/// Records a rule that matches the host but not the whole request, if it is nearer to a match than the recorded one.
pub(crate) fn remember_nearest(
    nearest: &mut Option<Denial>,
    guard: Guard,
    reason: String,
    rule: &AllowRule,
    asked: &Asked,
) {
    // The nearer a rule is to a match, the less its hint opens.
    let is_nearer = nearest.as_ref().is_none_or(|other| distance(guard) < distance(other.guard));
    if is_nearer {
        let denial = Denial::new(guard, reason).with_rule(rule.name.as_str());
        *nearest = Some(denial.with_hint(short_hint(guard, asked)));
    }
}

/// Returns how many checks were left when a rule failed to match, in the order of [`fit`](crate::reach::Reach::fit).
fn distance(guard: Guard) -> u8 {
    match guard {
        Guard::Path => 0,
        Guard::Method => 1,
        Guard::SchemeNotAllowed => 2,
        _ => 3,
    }
}

pub(crate) fn not_allowed(asked: &Asked) -> Denial {
    Denial::new(Guard::HostNotAllowed, format!("no rule allows {}", asked.host)).with_hint(allow_hint(asked))
}

/// Returns the smallest change that makes a rule match whose host already matches.
fn short_hint(guard: Guard, asked: &Asked) -> Hint {
    match (guard, &asked.view) {
        (Guard::Method, View::Request { method, .. }) => {
            Hint::Edit(format!("add \"{method}\" to the methods of that rule"))
        }
        (Guard::Path | Guard::SchemeNotAllowed, View::Request { scheme, path, .. }) => {
            let port =
                if scheme.default_port() == asked.port { String::new() } else { format!(":{}", asked.port) };
            let url = format!("{scheme}://{}{port}{path}", asked.host);
            match path.check_cannot_climb(EncodedSlash::Allow) {
                Err(_) => "no rule can name this path: ask for it as it is meant, in plain letters".into(),
                Ok(()) if path.as_str().contains('*') => {
                    "`*` stands for more in a rule: none can name this path alone".into()
                }
                Ok(()) => Hint::rule(url),
            }
        }
        _ => allow_hint(asked),
    }
}

/// Returns the exact command that would allow the request. An IP address has one only if a rule may name it.
fn allow_hint(asked: &Asked) -> Hint {
    match asked.host {
        Host::Address(address) if !AddressClass::of(address).may_be_named() => {
            Hint::Advice(format!("no rule can open {address}: it is {}", AddressClass::of(address)))
        }
        // A DNS question does not say which port the name is for.
        _ if asked.plane == Plane::Dns => Hint::rule(asked.host.to_string()),
        _ => rule_for(&asked.host, asked.port),
    }
}

pub(crate) fn rule_for(host: &Host, port: Port) -> Hint {
    Hint::rule(format!("{host}:{port}"))
}
