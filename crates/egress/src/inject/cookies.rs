//! Cookies on a host with a bound credential: a session from elsewhere would authenticate as well, and APIs need none. One that holds
//! a mark is a place of the credential like any header.

use policy::InjectionSite;

use super::draft::{Form, Sending};
use super::marks::Marks;

const FIELD: &str = "cookie";

/// Whether the cookies that hold a mark hold nothing beside it.
pub(super) fn are_ours(value: &[u8], marks: Marks<'_>, form: Form) -> bool {
    are_injected(value, marks)
        || pairs(value)
            .filter(|pair| form.marks(pair))
            .all(|pair| are_injected(pair, marks) || marks.are_all_of_cookie(pair))
}

/// Leaves out the cookies that hold no mark.
pub(super) fn keep_marked(sending: &mut Sending, marks: Marks<'_>, form: Form) {
    let kept = |value: &[u8]| match are_injected(value, marks) {
        true => value.to_vec(),
        false => pairs(value).filter(|pair| form.marks(pair)).collect::<Vec<_>>().join(&b"; "[..]),
    };
    let kept: Vec<Vec<u8>> =
        sending.fields.values(FIELD).map(kept).filter(|value| !value.is_empty()).collect();
    sending.fields.remove(FIELD);
    kept.iter().for_each(|value| sending.fields.push(FIELD, value));
}

/// Whether a value is all that the provider puts into this header.
fn are_injected(value: &[u8], marks: Marks<'_>) -> bool {
    marks.fill_injection(|site| matches!(site, InjectionSite::Header(name) if name == FIELD), value)
}

fn pairs(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b';').map(<[u8]>::trim_ascii)
}
