//! What a person writes for a target, as the URL that is meant.

use policy::Port;

/// A URL; of a host with or without a port, the one that would be asked for.
pub(super) fn whole(text: &str) -> String {
    let scheme = |it: &str| text.get(..it.len()).is_some_and(|start| start.eq_ignore_ascii_case(it));
    // One with a scheme is told what is wrong with it, as a request would be.
    if text.contains("://") || scheme("http:/") || scheme("https:/") {
        return text.to_owned();
    }
    let authority = text.split(['/', '?']).next().unwrap_or(text);
    let path = if authority.len() == text.len() { "/" } else { "" };
    format!("{}://{text}{path}", scheme_of(authority))
}

fn scheme_of(text: &str) -> &'static str {
    let port = text.rsplit_once(':').and_then(|(_, port)| Port::parse(port));
    if port.is_some_and(|p| p.number() == 80) { "http" } else { "https" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_judged() {
        for (text, url) in [
            ("api.example.com", "https://api.example.com/"),
            ("api.example.com:80", "http://api.example.com:80/"),
            ("api.example.com/v1/x", "https://api.example.com/v1/x"),
            ("api.example.com:80/v1?q", "http://api.example.com:80/v1?q"),
            ("http://api.example.com/v1", "http://api.example.com/v1"),
            ("https:/api.example.com", "https:/api.example.com"),
            ("HTTP:/x", "HTTP:/x"),
        ] {
            assert_eq!(whole(text), url, "{text}");
        }
    }
}
