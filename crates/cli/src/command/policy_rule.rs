//! Finds, compares and adds rules in the text of a policy, in the style of the rules that are there. It knows a list of rules and
//! nothing of the file around it.

use std::borrow::Cow;

use policy::{HostPattern, Port, Scheme};
use toml_edit::{Array, Item, Table, value};

/// A list of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleList {
    Allow,
    Deny,
}

impl RuleList {
    /// Returns its key in a policy, which is also the word of the command line.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// Iterates over the rules of a list, written as blocks or inline.
pub(super) fn tables(rules: &Item) -> impl Iterator<Item = Table> + '_ {
    let blocks = rules.as_array_of_tables().into_iter().flatten().cloned();
    let inline = rules.as_array().into_iter().flatten();
    blocks.chain(inline.filter_map(|rule| Some(rule.as_inline_table()?.clone().into_table())))
}

/// Whether a rule is for the target of the command line.
pub(super) fn names(there: &Table, key: &str, target: &str) -> bool {
    let said = rule(RuleList::Deny, target, None);
    let text = |rule: &Table| rule.get(key).and_then(Item::as_str).map(plain);
    let ports = |rule: &Table| rule.get("ports").map(ToString::to_string);
    let is_as_wide = ports(there).is_none_or(|denied| Some(denied) == ports(&said));
    is_as_wide && text(there).is_some_and(|named| text(&said) == Some(named))
}

/// Adds a rule in the style of the others.
pub(super) fn push(rules: &mut Item, rule: Table) -> Option<()> {
    if let Some(blocks) = rules.as_array_of_tables_mut() {
        blocks.push(rule);
        return Some(());
    }
    let list = rules.as_array_mut()?;
    end_with_comma(list);
    let mut rule = toml_edit::Value::InlineTable(rule.into_inline_table());
    // Below the last rule if each has its own line, and behind the comment on that line.
    let before = list.iter().last().and_then(|last| last.decor().prefix()?.as_str());
    if let Some((_, indent)) = before.and_then(|before| before.rsplit_once('\n')) {
        let trailing = list.trailing().as_str().unwrap_or_default().to_owned();
        let (said, rest) = trailing.split_once('\n').unwrap_or(("", &trailing));
        rule.decor_mut().set_prefix(format!("{said}\n{indent}"));
        list.set_trailing(if said.is_empty() { trailing.clone() } else { format!("\n{rest}") });
    } else if !list.is_empty() {
        rule.decor_mut().set_prefix(" ");
    }
    list.push_formatted(rule);
    Some(())
}

/// Gives a list whose last rule ends its line without a comma one. What follows the rule belongs to the list then.
fn end_with_comma(list: &mut Array) {
    let Some(last) = list.iter_mut().last() else { return };
    let behind = last.decor().suffix().and_then(|suffix| suffix.as_str()).unwrap_or_default().to_owned();
    if behind.contains('\n') {
        last.decor_mut().set_suffix("");
        list.set_trailing(behind);
        list.set_trailing_comma(true);
    }
}

/// Sets the reason of an equal rule; returns whether there is one.
pub(super) fn give_reason(rules: &mut Item, rule: &Table, reason: &str) -> bool {
    let wanted = bare(rule);
    let is_it = |there: Table| is_same(&bare(&there), &wanted);
    if let Some(blocks) = rules.as_array_of_tables_mut() {
        let Some(there) = blocks.iter_mut().find(|there| is_it((**there).clone())) else { return false };
        there.insert("reason", value(reason));
        return true;
    }
    let mut inline = rules.as_array_mut().into_iter().flat_map(Array::iter_mut);
    let found = inline.find_map(|there| {
        let there = there.as_inline_table_mut()?;
        is_it(there.clone().into_table()).then_some(there)
    });
    found.map(|there| there.insert("reason", reason.into())).is_some()
}

/// Whether a rule is there already. One that gives no reason of its own is there with any.
pub(super) fn is_there(rules: &Item, rule: &Table) -> bool {
    let gives_none = !rule.contains_key("reason");
    tables(rules).any(|there| is_same(&there, rule) || gives_none && is_same(&bare(&there), rule))
}

/// Returns a rule without its reason.
fn bare(rule: &Table) -> Table {
    let mut bare = rule.clone();
    bare.remove("reason");
    bare
}

/// Whether two rules are equal, however they are written.
fn is_same(one: &Table, other: &Table) -> bool {
    let read = |rule: &Table| {
        let mut rule: toml::Table = toml::from_str(&rule.to_string()).ok()?;
        for key in ["host", "url"] {
            if let Some(toml::Value::String(target)) = rule.get_mut(key) {
                *target = plain(target);
            }
        }
        Some(rule)
    };
    read(one).is_some_and(|read_one| read(other) == Some(read_one))
}

/// Normalises a host or a URL.
fn plain(target: &str) -> String {
    plain_url(target).unwrap_or_else(|| plain_host(target))
}

/// Normalises a URL: `HTTPS://API.example.com:443/*` becomes `https://api.example.com/*`. A path is as it is written.
fn plain_url(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(Port::parse(port)?)),
        _ => (authority, None),
    };
    let is_default = |port: &Port| {
        [Scheme::Http, Scheme::Https].iter().any(|it| it.as_str() == scheme && it.default_port() == *port)
    };
    let port = port.filter(|port| !is_default(port)).map(|port| format!(":{port}")).unwrap_or_default();
    Some(format!("{scheme}://{}{port}{path}", plain_host(host)))
}

/// Normalises a host: `API.example.com.` becomes `api.example.com`.
fn plain_host(host: &str) -> String {
    HostPattern::parse(host).map_or_else(|_| host.to_owned(), |pattern| pattern.to_string())
}

/// Returns what a target means. Who denies a URL without a path means the host; what is allowed is as narrow as it is written.
pub(super) fn meant<'a>(list: RuleList, target: &'a str) -> Cow<'a, str> {
    let names_no_path = target.split_once("://").is_some_and(|(_, rest)| !rest.contains(['/', '?', '#']));
    if list == RuleList::Deny && names_no_path {
        Cow::Owned(format!("{target}/*"))
    } else {
        Cow::Borrowed(target)
    }
}

/// Whether a URL names no path, so that it is a rule for the root page only.
pub(super) fn names_the_root(target: &str) -> bool {
    let rest = target.split_once("://").map(|(_, rest)| rest);
    rest.is_some_and(|rest| !rest.trim_end_matches('/').contains('/'))
}

/// Builds the rule for a target of the command line.
pub(super) fn rule(list: RuleList, target: &str, reason: Option<&str>) -> Table {
    let mut rule = Table::new();
    match target.rsplit_once(':') {
        _ if target.contains("://") => {
            rule.insert("url", value(target));
            // Without it an allow rule would match nothing; a deny rule matches every reading anyway.
            if list == RuleList::Allow
                && policy::Target::parse(target).is_ok_and(|url| url.path().has_encoded_slash())
            {
                rule.insert("encoded_slash", value(true));
            }
        }
        Some((host, port)) if Port::parse(port).is_some() && (!host.contains(':') || host.ends_with(']')) => {
            rule.insert("host", value(host));
            let ports: toml_edit::Array = port.parse::<i64>().into_iter().collect();
            rule.insert("ports", value(ports));
        }
        _ => {
            rule.insert("host", value(target));
        }
    }
    if let Some(reason) = reason {
        rule.insert("reason", value(reason));
    }
    rule
}

#[cfg(test)]
mod tests {
    use toml_edit::DocumentMut;

    use super::*;

    #[test]
    fn a_rule_is_added_in_the_style_of_the_others() {
        let last = "  { host = \"b.example\" }";
        for (before, after) in [
            ("[{ host = \"a.example\" }]", "[{ host = \"a.example\" }, { host = \"b.example\" }]".to_owned()),
            ("[\n  { host = \"a.example\" }\n]", format!("[\n  {{ host = \"a.example\" }},\n{last},\n]")),
            (
                "[\n  { host = \"a.example\" }, # ours\n]",
                format!("[\n  {{ host = \"a.example\" }}, # ours\n{last},\n]"),
            ),
            (
                "[\n  { host = \"a.example\" } # ours\n]",
                format!("[\n  {{ host = \"a.example\" }}, # ours\n{last},\n]"),
            ),
        ] {
            let mut document: DocumentMut = format!("allow = {before}\n").parse().unwrap();
            push(document.get_mut("allow").unwrap(), rule(RuleList::Allow, "b.example", None)).unwrap();
            assert_eq!(document.to_string(), format!("allow = {after}\n"), "{before}");
        }
    }

    #[test]
    fn a_reason_goes_to_the_rule_that_is_there() {
        for list in ["[[deny]]\nhost = \"x.example\"\n", "deny = [{ host = \"x.example\" }]\n"] {
            let mut document: DocumentMut = list.parse().unwrap();
            let rules = document.get_mut("deny").unwrap();
            for reason in ["first", "second"] {
                assert!(
                    give_reason(rules, &rule(RuleList::Deny, "x.example", Some(reason)), reason),
                    "{list}"
                );
                let all: Vec<Table> = tables(rules).collect();
                assert!(
                    all.len() == 1 && is_same(&all[0], &rule(RuleList::Deny, "x.example", Some(reason))),
                    "{all:?}"
                );
            }
            assert!(!give_reason(rules, &rule(RuleList::Deny, "y.example", None), "none"), "{list}");
            // Who gives no reason leaves the one that is there.
            assert!(is_there(rules, &rule(RuleList::Deny, "x.example", None)), "{list}");
            assert!(!is_there(rules, &rule(RuleList::Deny, "x.example", Some("third"))), "{list}");
            assert!(!is_there(rules, &rule(RuleList::Deny, "x.example:443", None)), "{list}");
        }
    }

    #[test]
    fn who_denies_a_url_without_a_path_means_all_of_it() {
        for (list, target, expected) in [
            (RuleList::Deny, "https://x.example", "https://x.example/*"),
            (RuleList::Deny, "http://*.x.example:8080", "http://*.x.example:8080/*"),
            (RuleList::Deny, "https://x.example/", "https://x.example/"),
            (RuleList::Deny, "https://x.example/a", "https://x.example/a"),
            (RuleList::Deny, "x.example:443", "x.example:443"),
            (RuleList::Allow, "https://x.example", "https://x.example"),
        ] {
            assert_eq!(meant(list, target), expected);
        }
    }

    #[test]
    fn other_spellings_of_a_host_are_the_same_rule() {
        for (one, other, same) in [
            ("api.example.com", "API.example.com.", true),
            ("*.Example.com", "*.example.com", true),
            ("api.example.com:443", "API.example.com:443", true),
            ("api.example.com:443", "api.example.com", false),
            ("*.example.com", "**.example.com", false),
            ("https://api.example.com/*", "HTTPS://API.example.com./*", true),
            ("https://api.example.com/*", "https://api.example.com:443/*", true),
            ("http://*.example.com/a", "http://*.Example.com:80/a", true),
            ("https://[2001:db8::1]/*", "https://[2001:db8::1]:443/*", true),
            ("https://api.example.com", "https://api.example.com/", true),
            ("https://api.example.com/*", "https://api.example.com:80/*", false),
            ("https://api.example.com/*", "http://api.example.com/*", false),
            ("https://api.example.com/a", "https://api.example.com/A", false),
            ("https://api.example.com:x/*", "https://API.example.com:x/*", false), // no URL of a rule
            ("*.com", "*.COM", false), // no pattern at all, so nothing is known of it
        ] {
            assert_eq!(
                is_same(&rule(RuleList::Allow, one, None), &rule(RuleList::Allow, other, None)),
                same,
                "{one} {other}"
            );
        }
    }
}
