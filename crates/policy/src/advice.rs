//! What would allow what was denied: the exact line, and nothing that opens more.

use crate::address::AddressClass;
use crate::asked::{Asked, Plane, View};
use crate::denial::{Denial, Guard};
use crate::hint::Hint;
use crate::hostname::Host;
use crate::path::EncodedSlash;
use crate::rule::AllowRule;
use crate::target::Port;
use crate::word::shell_word;

/// Remembers the first rule that names the host and does not reach far enough.
pub(crate) fn short(
    nearest: &mut Option<Denial>,
    guard: Guard,
    reason: String,
    rule: &AllowRule,
    asked: &Asked,
) {
    // The further a rule fits, the less is missing to it, and the less a hint opens.
    let is_nearer = nearest.as_ref().is_none_or(|other| distance(guard) < distance(other.guard));
    if is_nearer {
        let denial = Denial::new(guard, reason).with_rule(rule.name.as_str());
        *nearest = Some(denial.with_hint(short_hint(guard, asked)));
    }
}

/// How much of a rule is left after what did not fit, in the order in which [`fit`](crate::reach::Reach::fit) looks.
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

/// What would make a rule fit that names the host and does not reach far enough: no more than that.
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
                Ok(()) => Hint::Command(format!("lockgate policy allow {}", shell_word(&url))),
            }
        }
        _ => allow_hint(asked),
    }
}

/// The exact command that would allow it. For a raw address there is one only where a rule may name it.
fn allow_hint(asked: &Asked) -> Hint {
    match asked.host {
        Host::Address(address) if !AddressClass::of(address).may_be_named() => {
            Hint::Advice(format!("no rule can open {address}: it is {}", AddressClass::of(address)))
        }
        // Whoever asks for a name does not say which port it is for.
        _ if asked.plane == Plane::Dns => Hint::Command(format!("lockgate policy allow {}", asked.host)),
        _ => allow_line(&asked.host, asked.port),
    }
}

pub(crate) fn allow_line(host: &Host, port: Port) -> Hint {
    Hint::Command(format!("lockgate policy allow {}", shell_word(&format!("{host}:{port}"))))
}
