//! What a server may take a request for: some let a header stand in for the method, or for the path. What is meant by one must be
//! allowed as well as what is written.

use policy::{Asked, Denial, Guard, Method, Plane, Provider, Target};

use super::draft::Sending;
use super::own::is_same;
use crate::gate::Gate;

/// In a method's place, and in a path's.
const METHODS: [&str; 3] = ["x-http-method-override", "x-http-method", "x-method-override"];
const PATHS: [&str; 2] = ["x-original-url", "x-rewrite-url"];

/// Refuses a request that a header makes another one to some servers, where no rule allows that one.
pub(super) fn judge(
    sending: &Sending,
    gate: &Gate,
    provider: Option<&Provider>,
    target: &Target,
) -> Result<(), Denial> {
    let allowed = |method: Method, target: &Target| {
        let mut asked = Asked::request(Plane::Forward, method, target);
        asked.provider = provider.map(|provider| provider.id().clone());
        gate.policy().decide(&asked).map(drop)
    };
    let refused = |name: &str, denial: Denial| {
        let why = format!("`{name}` makes it another request to some servers: {}", denial.reason);
        Denial::new(denial.guard, why).with_hint(format!("send it without `{name}`"))
    };
    let values =
        |name| sending.fields.iter().filter(move |(it, _)| is_same(it, name)).map(|(_, value)| value);
    for name in METHODS {
        for value in values(name) {
            let text = String::from_utf8_lossy(value).trim().to_ascii_uppercase();
            let method = Method::parse(&text).ok_or_else(|| Denial::new(Guard::Method, "it names no method"));
            method.and_then(|method| allowed(method, target)).map_err(|denial| refused(name, denial))?;
        }
    }
    for name in PATHS {
        for value in values(name) {
            let path = String::from_utf8_lossy(value);
            let meant =
                Target::from_origin_form(target.scheme(), target.host().clone(), target.port(), path.trim());
            meant
                .and_then(|meant| allowed(sending.method.clone(), &meant))
                .map_err(|denial| refused(name, denial))?;
        }
    }
    Ok(())
}
