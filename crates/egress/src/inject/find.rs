//! Finds the placeholders in a request, and decides whether they may be redeemed in it.

use std::borrow::Cow;

use credential::Placeholder;
use policy::{Asked, Denial, Guard, ProviderId, Target};

use super::draft::{Redeemable, Sending};
use super::{basic, exposed, percent};
use crate::gate::Gate;

/// Returns the provider that a request names by its placeholder, or by its exposed value, where the credentials of several are good.
pub(crate) fn provider_named_in(
    sending: &Sending,
    gate: &Gate,
    asked: &Asked,
    target: &Target,
) -> Option<ProviderId> {
    let good = gate.policy().providers_for(asked);
    if good.len() < 2 {
        return None;
    }
    let is_good = |owner: &&ProviderId| good.iter().any(|provider| provider.id() == *owner);
    let owner_in = |text: Cow<'_, [u8]>| {
        let mut owners =
            Placeholder::find_all(&text).filter_map(|(_, one)| gate.credentials().provider_of(&one));
        owners.find(is_good).cloned()
    };
    let exposes = || good.iter().find(|provider| exposed::is_in(sending, gate, provider, target));
    texts(sending).find_map(owner_in).or_else(|| exposes().map(|provider| provider.id().clone()))
}

/// Returns whether the request holds placeholders of `own`, the provider that is bound to where it goes.
///
/// # Errors
/// It holds another provider's placeholder, or an unknown or misplaced one.
pub(super) fn find_placeholders(
    sending: &Sending,
    gate: &Gate,
    own: Option<&ProviderId>,
) -> Result<Redeemable, Denial> {
    let mut found = Redeemable::Nothing;
    let mut foreign = None;
    for text in texts(sending) {
        for (_, placeholder) in Placeholder::find_all(&text) {
            match gate.credentials().provider_of(&placeholder) {
                Some(provider) if Some(provider) == own => found = Redeemable::Placeholders,
                Some(provider) => foreign = foreign.or(Some(provider)),
                None => {
                    let reason = "the request holds a placeholder that is not of this run";
                    return Err(Denial::new(Guard::Unresolved, reason));
                }
            }
        }
    }
    if let Some(foreign) = foreign {
        let own = own.filter(|_| found == Redeemable::Placeholders);
        return Err(stands_in_another(foreign, own));
    }
    let plain = Placeholder::find_all(sending.origin_form.as_bytes()).count();
    if Placeholder::find_all(percent::decoded(&sending.origin_form).as_bytes()).count() != plain {
        // An encoded placeholder is neither redeemed nor sent on: a service may decode it.
        let reason = "a placeholder stands in the target, written in another way";
        return Err(Denial::new(Guard::EndpointMismatch, reason));
    }
    if Placeholder::may_be_in(sending.fields.all_text())
        && sending.fields.iter().any(|(name, _)| Placeholder::is_in(name.as_bytes()))
    {
        return Err(Denial::new(Guard::EndpointMismatch, "a placeholder stands in a header's name"));
    }
    Ok(found)
}

/// Returns the denial of a placeholder in a request that carries another credential: that of `own`, if it holds its placeholder too.
fn stands_in_another(foreign: &ProviderId, own: Option<&ProviderId>) -> Denial {
    let (reason, hint) = match own {
        Some(own) => (
            format!(
                "the request holds placeholders of `{own}` and of `{foreign}`, and carries one credential"
            ),
            "leave one of them out: each stands for a credential of its own",
        ),
        None => (
            format!("the placeholder of `{foreign}` stands in a request that its credential is not for"),
            "the text is a stand-in for a credential, and worth nothing elsewhere: leave it out",
        ),
    };
    Denial::new(Guard::EndpointMismatch, reason).with_hint(hint)
}

/// Returns each text of a request in which a placeholder may stand.
fn texts(sending: &Sending) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let in_fields = Placeholder::may_be_in(sending.fields.all_text());
    let of_fields = sending.fields.iter().flat_map(move |(name, value)| {
        let plain = in_fields.then_some(Cow::Borrowed(value));
        plain.into_iter().chain(basic::basic_of(name, value).map(Cow::Owned))
    });
    std::iter::once(Cow::Borrowed(sending.origin_form.as_bytes())).chain(of_fields)
}
