//! What a person writes for a target, as the URL that is meant.

use policy::Port;

/// A URL; of a host with or without a port, the one that would be asked for.
pub(super) fn whole(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("{}://{text}/", scheme_of(text)) }
}

fn scheme_of(text: &str) -> &'static str {
    let port = text.rsplit_once(':').and_then(|(_, port)| Port::parse(port));
    if port.is_some_and(|p| p.number() == 80) { "http" } else { "https" }
}
