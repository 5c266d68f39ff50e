//! What is said of a credential that was replaced because it could not be decrypted: what is lost with it. Never a value.

use policy::ProviderId;
use runtime::Stored;

use crate::output;

/// Says that a credential was replaced which could not be decrypted.
pub(super) fn tell_replaced(provider: &ProviderId, stored: &Stored) {
    let Stored::Replaced { why, lost } = stored else { return };
    let lost = match lost.as_slice() {
        [] => String::new(),
        fields => {
            let names: Vec<String> = fields.iter().map(|name| format!("`{name}`")).collect();
            format!(", and its other fields are no longer there: {}", names.join(", "))
        }
    };
    output::tell(&format!(
        "{provider}: what was stored could not be decrypted ({why}) and was replaced{lost}"
    ));
}
