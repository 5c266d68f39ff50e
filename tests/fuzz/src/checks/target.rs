//! Request targets and the decision about them. An accepted target prints and parses to itself, and a path that a prefix rule
//! accepts never climbs, however often a later reader decodes it.

use std::sync::LazyLock;

use policy::{Asked, Authority, Host, Layers, Method, Origin, Plane, Policy, Scheme, Target};

use crate::octets;

const RULES: &str = r#"
[egress]
default = "deny"
allow = [
    { url = "https://api.example.com/v1/*", methods = ["GET", "POST"] },
    { url = "http://files.example.com/public/*", encoded_slash = true },
    { host = "**.wide.example.com" },
    { host = "db.example.com", ports = [5432], addresses = ["10.0.0.5"] },
]
deny = [{ url = "http://a.wide.example.com/admin/*" }]
"#;

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let mut layers = Layers::default();
    layers.push(Origin::Named("fuzz".into()), toml::from_str(RULES).expect("the rules above are TOML"));
    layers.compile().expect("the rules above compile").policy
});

/// Parses the input as each form of a request target, and decides about what is accepted.
pub fn target(input: &[u8]) {
    let text = octets::text_of(input);
    if let Ok(target) = Target::parse(text) {
        let printed = target.to_string();
        let again = Target::parse(&printed).expect("what was accepted is accepted again");
        assert_eq!(again, target, "{text:?} is read in two ways");
        assert_eq!(again.to_string(), printed);
        let origin = target.origin_form();
        let inside = Target::from_origin_form(target.scheme(), target.host().clone(), target.port(), &origin);
        assert_eq!(inside.expect("the origin form of a target is one"), target);
        let authority = Authority::parse(&target.host_header()).expect("our own Host field parses");
        assert_eq!(&authority.host, target.host());
        judge(&target);
    }
    let host = Host::parse("api.example.com").expect("a constant name");
    if let Ok(target) = Target::from_origin_form(Scheme::Https, host, Scheme::Https.default_port(), text) {
        judge(&target);
    }
    if let Ok(Authority { host, .. }) = Authority::parse(text) {
        assert_eq!(Host::parse(&host.to_string()).expect("a parsed host parses"), host);
    }
}

/// Decides a request, and reads a granted path as a careless server would.
fn judge(target: &Target) {
    let method = Method::parse("GET").expect("a constant method");
    let asked = Asked::request(Plane::Forward, method, target);
    let Ok(grant) = POLICY.decide(&asked) else { return };
    assert_eq!(grant.host(), target.host());
    assert_eq!(grant.port(), target.port());
    let prefix = match target.host().to_string().as_str() {
        "api.example.com" => "/v1/",
        "files.example.com" => "/public/",
        _ => return,
    };
    let mut read = target.path().as_str().as_bytes().to_vec();
    loop {
        let seen = String::from_utf8_lossy(&read).replace('\\', "/");
        assert!(climb(&seen).starts_with(prefix), "{target} leads to {}", climb(&seen));
        let next = decode(&read);
        if next == read {
            return;
        }
        read = next;
    }
}

/// Removes a path's dot segments, RFC 3986 §5.2.4, and ignores parameters as some servers do.
fn climb(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment.split(';').next().unwrap_or(segment) {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

fn decode(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let digit = |at: usize| tail.get(at).and_then(|b| (*b as char).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &tail[2..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}
