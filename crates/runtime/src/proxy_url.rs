//! `PROXY_URL` and `NO_PROXY` of the caller's environment: the proxy that is used if the policy chooses none (S0.54, S1.29), and for
//! this program's own requests, which respect the variables of other programs as well. A user and password in it stay with this
//! process, which gives them to the sidecar as any other credential.

use credential::{Credential, Secret, Value};
use egress::Detour;
use image::Transport;
use policy::{
    EgressConfig, Host, HostPattern, Origin, Proxy, ProxyConfig, ProxyUrlError, RunConfig, RunSpec,
    shell_word,
};
use sandbox::Caller;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::stash::Stash;

const NAME: &str = "PROXY_URL";

const DIRECT: &str = "NO_PROXY";

/// The variables of other programs, which name a proxy for this program's own requests alone.
const OF_OTHERS: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// The name under which its user and password are asked for.
pub(crate) const CREDENTIAL: &str = "@lockgate/proxy-url";

/// Gives a run and its companions the proxy of the environment, if there is one and the policy chooses none.
pub(crate) fn fall_back(spec: &mut RunSpec, caller: &Caller) -> Result<(), Error> {
    match caller.variable(NAME).filter(|url| !url.is_empty()) {
        Some(url) => fall_back_to(spec, url, unproxied(caller))?,
        None => return Ok(()),
    }
    spec.notices.extend(unheeded(spec, unproxied(caller)));
    Ok(())
}

/// Names the entries of `NO_PROXY` that exclude nothing from `PROXY_URL`, if the run goes through that: address ranges, hosts with a
/// port, and what is no host.
fn unheeded(spec: &RunSpec, no_proxy: &str) -> Option<String> {
    let unheeded: Vec<_> = entries(no_proxy).filter(|entry| past(entry).is_none()).collect();
    let is_used = spec.policy.proxy_in_use().is_some_and(|proxy| proxy.id == NAME);
    (is_used && !unheeded.is_empty()).then(|| {
        let named = unheeded.join(", ");
        format!("NO_PROXY takes hosts and addresses, and these go through the proxy: {named}")
    })
}

/// Returns what [`fall_back`] gives a run as a layer would say it, if it gives this one something. The user and password stay out.
pub(crate) fn as_layer(spec: &RunSpec, caller: &Caller) -> Option<(Origin, RunConfig)> {
    let url = caller.variable(NAME).filter(|url| !url.is_empty())?;
    let no_proxy = unproxied(caller);
    if is_past_all(no_proxy) || spec.policy.proxies().is_chosen() {
        return None;
    }
    let WrittenProxy { proxy, user } = WrittenProxy::parse(NAME, url).ok()?;
    let credential = user.map(|_| CREDENTIAL.to_owned());
    let proxy = ProxyConfig { id: NAME.into(), url: proxy.to_string(), credential };
    let no_proxy = direct(no_proxy).iter().flat_map(as_written).collect();
    let egress = EgressConfig { proxy: Some(NAME.into()), no_proxy, ..EgressConfig::default() };
    let config = RunConfig { proxy: vec![proxy], egress, ..RunConfig::default() };
    Some((Origin::Variable(NAME.into()), config))
}

/// Returns a host with all below it as a policy names it.
fn as_written(host: &HostPattern) -> Vec<String> {
    match host {
        HostPattern::ApexAndBelow(name) => vec![name.to_string(), format!("**.{name}")],
        other => vec![other.to_string()],
    }
}

/// Says of the proxy through which hosts are reached that no rule names that it alone knows where they lead, if there is one.
pub(crate) fn resolving(spec: &RunSpec) -> Option<String> {
    let policies = [&spec.policy].into_iter().chain(spec.companions.iter().map(|it| &it.policy));
    let proxy = policies.filter_map(policy::Policy::proxy_of_unnamed).next()?;
    Some(format!(
        "`open-internet` goes through {proxy}, which resolves names for itself: it must itself keep private addresses shut"
    ))
}

/// Says how a run is given a proxy that it passes over: one that is declared and not chosen, or of a variable that runs do not use. It is
/// for where a host was not reached: many a person has such a variable for other reasons.
#[must_use]
pub fn passed_over(spec: &RunSpec, caller: &Caller) -> Option<String> {
    const IF_NEEDED: &str = "if this network is left through a proxy alone";
    let is_set = |name: &&str| caller.variable(name).is_some_and(|url| !url.is_empty());
    let proxies = spec.policy.proxies();
    if proxies.is_chosen() || is_set(&NAME) {
        return None;
    }
    if let Some(declared) = proxies.declared().next() {
        return Some(format!("{IF_NEEDED}, choose the declared one: --proxy {}", shell_word(&declared.id)));
    }
    let variable = OF_OTHERS.into_iter().find(is_set)?;
    Some(format!("{IF_NEEDED}, name it in PROXY_URL: runs do not use {variable}"))
}

/// Gives a run and its companions this proxy, if the policy chooses none. `no_proxy` lists what goes past it.
pub(crate) fn fall_back_to(spec: &mut RunSpec, url: &str, no_proxy: &str) -> Result<(), Error> {
    if is_past_all(no_proxy) {
        return Ok(());
    }
    let WrittenProxy { mut proxy, user } = WrittenProxy::parse(NAME, url).map_err(|why| bad(NAME, why))?;
    proxy.credential = user.and_then(|_| CREDENTIAL.parse().ok());
    spec.policy.fall_back_to(proxy.clone(), direct(no_proxy));
    for companion in &mut spec.companions {
        companion.policy.fall_back_to(proxy.clone(), direct(no_proxy));
    }
    Ok(())
}

/// Returns its user and password.
pub(crate) fn credential(kept: &Stash) -> Option<Credential> {
    let text = kept.read().ok()?;
    WrittenProxy::parse(NAME, std::str::from_utf8(text.expose()).ok()?).ok()?.credential()
}

/// A proxy of an environment variable, and its user and password as they are written there.
///
/// What cannot be read may be a password at any place, so that an error quotes nothing.
pub(crate) struct WrittenProxy<'a> {
    pub(crate) proxy: Proxy,
    pub(crate) user: Option<&'a str>,
}

impl<'a> WrittenProxy<'a> {
    /// Parses `scheme://host:port`, or `scheme://user:password@host:port`.
    pub(crate) fn parse(id: &str, text: &'a str) -> Result<Self, String> {
        // As of a file, or a quoted value. It cannot be seen in what is not quoted.
        if text.trim() != text {
            return Err("it begins or ends with a blank or a newline: take that away".into());
        }
        let (url, user) = split(text);
        if user.is_some_and(|user| known_as(user).is_none()) {
            return Err("write its user as user:password@".into());
        }
        let proxy = Proxy::parse(id, &url, None).map_err(|why| match why {
            ProxyUrlError::NoScheme | ProxyUrlError::Host(_) => why.to_string(),
            ProxyUrlError::OtherScheme(_) => "its scheme is not http, https or socks5".into(),
            ProxyUrlError::Authority(_) => "its host and port are not understood: write it as \
                http://user:password@host:port, an `@` or `/` of the password as %40 or %2F"
                .into(),
        })?;
        Ok(Self { proxy, user })
    }

    /// Returns its user and password.
    pub(crate) fn credential(&self) -> Option<Credential> {
        known_as(self.user?)
    }
}

/// Splits an address into the rest and its user information.
fn split(url: &str) -> (String, Option<&str>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{scheme}://{rest}"), Some(user)),
        None => (url.to_owned(), None),
    }
}

/// Makes a credential of `user:password`.
fn known_as(user: &str) -> Option<Credential> {
    let (name, password) = user.split_once(':')?;
    let mut credential = Credential::default();
    for (field, text) in [("username", name), ("password", password)] {
        let value = Value::new(Secret::new(percent_decoded(text))).ok()?;
        credential.set(field.parse().ok()?, value);
    }
    Some(credential)
}

/// Returns the proxy for this program's own requests, if the environment names one: `PROXY_URL`, then the variables of other programs,
/// `HTTPS_PROXY` for TLS and `HTTP_PROXY` for plain HTTP, then `ALL_PROXY`.
pub(crate) fn detour(caller: &Caller, transport: Transport) -> Result<Option<Detour>, Error> {
    let theirs = match transport {
        Transport::Tls => ["HTTPS_PROXY", "https_proxy"],
        Transport::Plain => ["HTTP_PROXY", "http_proxy"],
    };
    let names = [NAME].into_iter().chain(theirs).chain(["ALL_PROXY", "all_proxy"]);
    let mut set = names.filter_map(|name| Some((name, caller.variable(name).filter(|url| !url.is_empty())?)));
    let Some((name, url)) = set.next() else { return Ok(None) };
    let no_proxy = unproxied(caller);
    if is_past_all(no_proxy) {
        return Ok(None);
    }
    // Many people write only a host and a port.
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let written = WrittenProxy::parse(name, &url).map_err(|why| bad(name, why))?;
    let credential = written.credential();
    Ok(Some(Detour { proxy: written.proxy, credential, direct: direct(no_proxy) }))
}

/// The proxy that the caller's environment names, without its user and password: only that there is a user remains visible.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProxyVariables {
    pub(crate) url: String,
    /// What goes past it.
    pub(crate) no_proxy: String,
}

/// Returns the proxy of the caller's environment, if it names one.
pub(crate) fn without_user(caller: &Caller) -> Option<ProxyVariables> {
    let url = caller.variable(NAME).filter(|url| !url.is_empty())?;
    let WrittenProxy { proxy, user } = WrittenProxy::parse(NAME, url).ok()?;
    let url = match user {
        Some(_) => proxy.to_string().replacen("://", "://user:password@", 1),
        None => proxy.to_string(),
    };
    Some(ProxyVariables { url, no_proxy: unproxied(caller).to_owned() })
}

/// Returns what `NO_PROXY` lists.
fn unproxied(caller: &Caller) -> &str {
    let set = |name| caller.variable(name).filter(|list| !list.is_empty());
    set(DIRECT).or_else(|| set("no_proxy")).unwrap_or_default()
}

/// Whether `NO_PROXY` excludes everything, as its usual `*` does.
fn is_past_all(no_proxy: &str) -> bool {
    entries(no_proxy).any(|name| name == "*")
}

fn entries(no_proxy: &str) -> impl Iterator<Item = &str> {
    no_proxy.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty())
}

/// Returns the hosts of `NO_PROXY`, each with all below it, as is usual.
fn direct(no_proxy: &str) -> Vec<HostPattern> {
    entries(no_proxy).filter_map(past).collect()
}

/// Returns what an entry of `NO_PROXY` excludes. A name may be as wide as `.internal`: it allows nothing that the policy does not.
fn past(entry: &str) -> Option<HostPattern> {
    let host = ["**.", "*.", "."].into_iter().find_map(|front| entry.strip_prefix(front)).unwrap_or(entry);
    // Other programs write an IPv6 address without brackets.
    match Host::parse(host).ok().or_else(|| host.parse().ok().map(Host::Address))? {
        Host::Name(name) => Some(HostPattern::ApexAndBelow(name)),
        Host::Address(address) => Some(HostPattern::Address(address)),
    }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after
            .get(..2)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (first, hex) {
            (b'%', Some(octet)) => {
                out.push(octet);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

fn bad(variable: &str, why: String) -> Error {
    Error::ParseSettings { path: variable.into(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(no_proxy: &str) -> Caller {
        let environment = vec![(NAME.into(), "http://proxy:3128".into()), (DIRECT.into(), no_proxy.into())];
        Caller { uid: 0, gid: 0, superuser: false, home: None, directory: "/".into(), environment }
    }

    fn compile(text: &str) -> RunSpec {
        let mut layers = policy::Layers::default();
        layers.push(policy::Origin::Flags, toml::from_str(text).unwrap());
        layers.compile().unwrap()
    }

    #[test]
    fn what_no_proxy_does_not_exclude_is_named_where_the_proxy_is_used() {
        let listed =
            "localhost,127.0.0.1,::1, .svc,*.example.com,example.org,10.0.0.0/8,a.example:80,*a.example,";
        let told = |policy: &str, no_proxy: &str| {
            let mut spec = compile(policy);
            fall_back(&mut spec, &caller(no_proxy)).unwrap();
            spec.notices.into_iter().next().and_then(|it| Some(it.split_once(": ")?.1.to_owned()))
        };
        let open = "egress.allow = [{ host = \"far.example\" }]";
        assert_eq!(told(open, listed).as_deref(), Some("10.0.0.0/8, a.example:80, *a.example"));
        for (policy, no_proxy) in [
            (open, "10.0.0.0/8, *"),
            (open, ""),
            (open, "near.example ::1\tfar.example"),
            ("egress.proxy = \"direct\"\negress.allow = [{ host = \"far.example\" }]", listed),
            ("", listed),
        ] {
            assert_eq!(told(policy, no_proxy), None, "{policy} {no_proxy}");
        }
    }

    #[test]
    fn an_empty_variable_hides_no_other() {
        for (upper, used) in [("", "lower.example"), ("upper.example", "upper.example")] {
            let caller = Caller::new(0, 0, "/").with_env([(DIRECT, upper), ("no_proxy", "lower.example")]);
            assert_eq!(unproxied(&caller), used);
        }
    }

    #[test]
    fn a_proxy_that_is_passed_over_is_told_by_its_name_alone() {
        let declared = "proxy = [{ id = \"corp\", url = \"http://a:1\" }]\n";
        for (policy, variables, told) in [
            ("", &[("HTTPS_PROXY", "http://u:hunter2@a:1")][..], Some("runs do not use HTTPS_PROXY")),
            ("", &[("HTTPS_PROXY", ""), ("all_proxy", "a:1")], Some("runs do not use all_proxy")),
            (declared, &[], Some("--proxy corp")),
            ("", &[], None),
            ("", &[("HTTPS_PROXY", "http://a:1"), (NAME, "http://a:1")], None),
            ("egress.proxy = \"direct\"", &[("HTTPS_PROXY", "http://a:1")], None),
            (&format!("{declared}egress.proxy = \"corp\""), &[("HTTPS_PROXY", "http://a:1")], None),
        ] {
            let caller = Caller::new(0, 0, "/").with_env(variables.iter().copied());
            let said = passed_over(&compile(policy), &caller);
            assert_eq!(said.is_some(), told.is_some(), "{policy} {variables:?}");
            let said = said.unwrap_or_default();
            assert!(said.ends_with(told.unwrap_or_default()) && !said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn an_entry_is_for_all_below_it() {
        for (entry, host, is_past) in [
            (".svc", "a.b.svc", true),
            ("internal", "a.internal", true),
            (".local", "printer.local", true),
            ("*.corp.example", "a.b.corp.example", true),
            ("one.example two.example", "two.example", true),
            ("**.corp.example", "corp.example", true),
            ("github.io", "a.github.io", true),
            ("corp.example", "notcorp.example", false),
            ("10.0.0.5", "10.0.0.5", true),
            ("::1", "[::1]", true),
            ("*", "a.example", false),
        ] {
            let host = Host::parse(host).unwrap();
            assert_eq!(direct(entry).iter().any(|it| it.matches(&host)), is_past, "{entry} {host}");
        }
    }

    #[test]
    fn everything_may_go_past_it() {
        for (no_proxy, through) in [("a.example", true), ("a.example, *", false), ("*", false)] {
            let mut spec = compile("");
            fall_back(&mut spec, &caller(no_proxy)).unwrap();
            assert_eq!(spec.policy.proxies().declared().count() == 1, through, "{no_proxy}");
        }
    }

    #[test]
    fn companions_go_through_it_as_the_command_does() {
        let others = "[[companion]]\nname = \"a\"\nimage = \"i\"\nports = [8080]\n\
            [[companion]]\nname = \"b\"\nimage = \"i\"\nports = [8080]\negress = { default = \"open-internet\" }\n";
        let mut spec = compile(others);
        fall_back(&mut spec, &caller("near.example")).unwrap();
        let policies = spec.companions.iter().map(|it| &it.policy).chain([&spec.policy]);
        let way = |policy: &policy::Policy, host: &str| {
            let proxy = policy.proxies().on_the_way_to(&Host::parse(host).unwrap());
            proxy.map(|proxy| proxy.to_string())
        };
        for policy in policies {
            assert_eq!(way(policy, "far.example").as_deref(), Some("http://proxy:3128"));
            assert_eq!(way(policy, "near.example"), None);
        }
        // A choice of the policy's comes first, for all of them.
        let mut spec = compile(&format!("egress.proxy = \"direct\"\n{others}"));
        fall_back(&mut spec, &caller("")).unwrap();
        assert!(spec.companions.iter().all(|it| way(&it.policy, "far.example").is_none()));
    }

    #[test]
    fn a_proxy_behind_which_no_rule_names_the_hosts_is_told_of() {
        let open = "egress.default = \"open-internet\"\n";
        let other = "[[companion]]\nname = \"b\"\nimage = \"i\"\nports = [8080]\negress = { default = \"open-internet\" }\n";
        for (text, is_told) in [
            (open.to_owned(), true),
            (other.to_owned(), true),
            (format!("{open}egress.proxy = \"direct\"\n"), false),
            ("egress.allow = [{ host = \"**.example.com\" }]".into(), false),
        ] {
            let mut spec = compile(&text);
            assert_eq!(resolving(&spec), None, "{text}");
            fall_back(&mut spec, &caller("")).unwrap();
            let told = resolving(&spec);
            assert_eq!(
                told.is_some_and(|told| told.contains("through http://proxy:3128")),
                is_told,
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said_and_not_shown() {
        const USER: &str = "write its user as user:password@";
        const PLACE: &str = "write it as http://user:password@host:port";
        const BLANK: &str = "it begins or ends with a blank or a newline";
        for (url, told) in [
            ("http://hunter2@proxy:3128", Some(USER)),
            ("http://hunter2:@proxy:3128", Some(USER)),
            ("http://:hunter2@proxy:3128", Some(USER)),
            ("http://@proxy:3128", Some(USER)),
            ("http://user%0a:hunter2@proxy:3128", Some(USER)),
            ("http://user:hunter2", Some(PLACE)),
            ("http://user:hunter2%40proxy:3128", Some(PLACE)),
            ("http://user:hunter2\u{ff20}proxy:3128", Some(PLACE)),
            ("http://user:3128/hunter2", Some(PLACE)),
            ("http://user:pass@hunter2 proxy:3128", Some(PLACE)),
            ("http://user:pass@proxy:hunter2", Some(PLACE)),
            ("hunter2://user:pass@proxy:3128", Some("its scheme is not http, https or socks5")),
            (" http://user:hunter2@proxy:3128", Some(BLANK)),
            ("http://user:hunter2@proxy:3128\n", Some(BLANK)),
            ("http://user:hunter2@169.254.169.254", Some("link-local")),
            ("http://user:hunter2@proxy:3128", None),
            ("http://proxy:3128", None),
        ] {
            let begun = fall_back_to(&mut compile(""), url, "");
            let mut caller = caller("");
            caller.environment[0].1 = url.into();
            for result in [begun, detour(&caller, Transport::Tls).map(drop)] {
                let why = result.err().map(|error| match error {
                    Error::ParseSettings { path, why } if path.to_str() == Some(NAME) => why,
                    error => panic!("{error}"),
                });
                assert_eq!(why.is_some(), told.is_some(), "{url}: {why:?}");
                let (why, told) = (why.unwrap_or_default(), told.unwrap_or_default());
                assert!(why.contains(told) && !why.contains("hunter2"), "{url}: {why}");
            }
            let shown = format!("{:?} {:?}", as_layer(&compile(""), &caller), without_user(&caller));
            assert!(!shown.contains("hunter2"), "{url}: {shown}");
        }
        // This program takes the variables of other programs without a scheme too.
        for url in ["user:hunter2", "user:hunter2%40proxy:3128", "user:pa://hunter2@proxy"] {
            for name in ["HTTPS_PROXY", "ALL_PROXY"] {
                let caller = Caller::new(0, 0, "/").with_env([(name, url)]);
                let why = detour(&caller, Transport::Tls).unwrap_err().to_string();
                assert!(why.contains(name) && !why.contains("hunter2"), "{why}");
            }
        }
    }

    #[test]
    fn the_user_is_split_off() {
        assert_eq!(split("http://a:b%40c@proxy:3128"), ("http://proxy:3128".into(), Some("a:b%40c")));
        assert_eq!(split("http://proxy:3128"), ("http://proxy:3128".into(), None));
        assert_eq!(percent_decoded("b%40c%"), b"b@c%");
    }
}
