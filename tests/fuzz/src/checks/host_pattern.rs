//! Host patterns. An accepted pattern prints and parses to itself. A wildcard covers only names below its suffix, never a whole
//! public suffix, and never this machine.

use policy::{Host, HostPattern};

use crate::octets;

/// Takes the first line for a pattern of hosts, and compares it with names made of the rest.
pub fn host_pattern(input: &[u8]) {
    let text = octets::text_of(input);
    let (pattern, candidate) = text.split_once('\n').unwrap_or((text, "a.example.com"));
    let Ok(parsed) = HostPattern::parse(pattern) else { return };
    let printed = parsed.to_string();
    assert_eq!(HostPattern::parse(&printed).expect("an accepted pattern parses again"), parsed);
    assert!(!matches!(pattern.trim_end_matches('.'), "*" | "**" | "*.com" | "**.com" | "localhost"));
    let suffix = printed.trim_start_matches('*').trim_start_matches('.');
    for text in [
        candidate.to_owned(),
        format!("{candidate}.{suffix}"),
        format!("{candidate}{suffix}"),
        suffix.to_owned(),
    ] {
        let Ok(host) = Host::parse(&text) else { continue };
        if !parsed.matches(&host) {
            continue;
        }
        let name = host.to_string();
        let front = name.strip_suffix(suffix).expect("a covered name ends as its pattern does");
        match printed.bytes().take_while(|b| *b == b'*').count() {
            0 => assert_eq!(front, ""),
            1 => assert!(front.ends_with('.') && front.matches('.').count() == 1, "{name} by {printed}"),
            _ => assert!(front.len() > 1 && front.ends_with('.'), "{name} by {printed}"),
        }
    }
    if let Ok(wide) = parsed.with_subdomains() {
        assert!(
            !wide.matches(&Host::parse("notexample.com").expect("a constant name"))
                || suffix == "notexample.com"
        );
    }
}
