//! Finds the placeholders in a request, and decides whether they may be redeemed in it.

use credential::Placeholder;
use policy::{Denial, Guard, ProviderId};

use super::draft::{Redeemable, Sending};
use super::{agent_credentials, substitution};
use crate::gate::Gate;

/// Returns whether the request holds placeholders of `own`, the provider that is bound to where it goes.
///
/// # Errors
/// It holds another provider's placeholder, or an unknown or misplaced one.
pub(super) fn find(sending: &Sending, gate: &Gate, own: Option<&ProviderId>) -> Result<Redeemable, Denial> {
    let mut found = Redeemable::Nothing;
    let mut judge = |text: &[u8]| {
        for (_, placeholder) in Placeholder::find_all(text) {
            match gate.credentials().provider_of(&placeholder) {
                Some(provider) if Some(provider) == own => found = Redeemable::Placeholders,
                Some(provider) => {
                    let reason = format!(
                        "the placeholder of `{provider}` stands in a request that its credential is not for"
                    );
                    return Err(Denial::new(Guard::EndpointMismatch, reason).with_hint(
                        "the text is a stand-in for a credential, and worth nothing elsewhere: leave it out",
                    ));
                }
                None => {
                    let reason = "the request holds a placeholder that is not of this run";
                    return Err(Denial::new(Guard::Unresolved, reason));
                }
            }
        }
        Ok(())
    };
    judge(sending.origin_form.as_bytes())?;
    let plain = Placeholder::find_all(sending.origin_form.as_bytes()).count();
    if Placeholder::find_all(agent_credentials::decoded(&sending.origin_form).as_bytes()).count() != plain {
        // An encoded placeholder is neither redeemed nor sent on: a service may decode it.
        let reason = "a placeholder stands in the target, written in another way";
        return Err(Denial::new(Guard::EndpointMismatch, reason));
    }
    let in_fields = Placeholder::may_be_in(sending.fields.all_text());
    for (name, value) in sending.fields.iter() {
        if in_fields {
            if Placeholder::is_in(name.as_bytes()) {
                return Err(Denial::new(Guard::EndpointMismatch, "a placeholder stands in a header's name"));
            }
            judge(value)?;
        }
        if let Some(basic) = substitution::basic_of(name, value) {
            judge(&basic)?;
        }
    }
    Ok(found)
}
