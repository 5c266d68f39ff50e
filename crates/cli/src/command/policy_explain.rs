//! `lockgate policy explain`: the decision on a target on each plane, by the same `decide` that enforces.

use std::sync::Arc;

use policy::agreed::DNS_PORT;
use policy::{
    Asked, Authority, Carriage, Denial, Grant, Host, Method, Plane, Policy, Port, Provider, Scheme, Target,
    View,
};
use serde::Serialize;

use super::spec::settings;
use super::url::whole;
use super::{hint, policy_check};
use crate::arguments::Spec;
use crate::exit::Done;
use crate::output::{self, Form};

/// Why no connection to loopback leaves.
const OWN_LOOPBACK: &str =
    "not: loopback inside is the sandbox's own, so whoever does not ask the proxy stays there";

/// Why no connection to the port of DNS is redirected.
const OWN_DNS: &str =
    "not: at port 53 of every address the sidecar answers questions of DNS, and nothing leaves";

/// What becomes of a companion behind the planes.
const BESIDE: &str = "it is beside the command; nothing is resolved and no proxy is asked";

/// A way that what is asked takes, or a part of it. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Everywhere,
    Dns,
    Proxy,
    Connect,
    Redirected,
    /// The address guard, which decides last.
    Addresses,
    /// The proxy on the way out, which decides nothing.
    Upstream,
    /// The short way to a companion, on which nothing more is decided.
    Companion,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Everywhere => "on every plane",
            Self::Dns => "dns",
            Self::Proxy => "through the proxy",
            Self::Connect => "CONNECT to the proxy",
            Self::Redirected => "redirected",
            Self::Addresses => "then",
            Self::Upstream => "upstream proxy",
            Self::Companion => "companion",
        }
    }
}

impl Serialize for Way {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Allow,
    Deny,
}

/// What becomes of what is asked on one way, and why.
#[derive(Serialize)]
struct Explanation {
    way: Way,
    verdict: Verdict,
    guard: Option<&'static str>,
    rule: Option<String>,
    reason: String,
    hint: Option<String>,
    /// The hint, for a person.
    #[serde(skip)]
    told: Option<String>,
    /// The preset that would allow it.
    #[serde(skip)]
    group: Option<String>,
    /// What a plane grants.
    #[serde(skip)]
    grant: Option<Grant>,
}

impl Explanation {
    fn allowed(way: Way, rule: Option<String>, reason: String) -> Self {
        let (verdict, guard) = (Verdict::Allow, None);
        Self { way, verdict, guard, rule, reason, hint: None, told: None, group: None, grant: None }
    }

    fn denied(way: Way, denial: &Denial, flags: &Spec) -> Self {
        Self {
            verdict: Verdict::Deny,
            guard: Some(denial.guard.code()),
            hint: denial.hint.clone().map(|hint| hint::suited(hint, flags).to_string()),
            told: denial.hint.as_ref().map(|hint| hint::told(hint, flags)),
            group: denial.hint.as_ref().and_then(hint::group),
            ..Self::allowed(way, denial.rule.clone(), denial.reason.clone())
        }
    }

    /// An explanation without a decision.
    fn never_taken(way: Way, reason: &str) -> Self {
        Self { verdict: Verdict::Deny, ..Self::allowed(way, None, reason.into()) }
    }

    fn line_with_hint(&self) -> String {
        let told = self.told.as_deref().map(output::plain);
        self.line() + &told.map(|hint| format!("\n{:26}{hint}", "")).unwrap_or_default()
    }

    fn line(&self) -> String {
        let becomes = if self.way == Way::Dns { "does not exist" } else { "denied" };
        let denied = self.guard.map(|guard| format!("{becomes}: {guard}: ")).unwrap_or_default();
        // What is allowed names its rule in the reason.
        let rule = self.rule.as_ref().filter(|_| self.guard.is_some());
        let rule = rule.map(|rule| format!(", by {}", output::plain(rule))).unwrap_or_default();
        format!("  {:<22}  {denied}{}{rule}", self.way.name(), output::plain(&self.reason))
    }
}

/// What is asked of the policy.
struct Question {
    method: Method,
    /// The target, as `check` takes it.
    target: String,
    host: Host,
    /// The request; `None` for a tunnel alone, in which there may be any.
    request: Option<Target>,
    /// What it is on each plane.
    planes: Vec<(Way, Asked)>,
}

impl Question {
    fn parse(method: Method, text: &str) -> Result<Self, Denial> {
        if method.as_str() == "CONNECT" {
            let (host, port) = Authority::parse_tunnel(text)?;
            let asked = Asked::connection(Plane::Forward, host.clone(), port, View::Opaque);
            let (target, planes) = (format!("{host}:{port}"), vec![(Way::Connect, asked)]);
            return Ok(Self { method, target, host, request: None, planes });
        }
        let target = Target::parse(&whole(text))?;
        let (host, port) = (target.host().clone(), target.port());
        let request = |plane| Asked::request(plane, method.clone(), &target);
        let tunnel = |plane, view| Asked::connection(plane, host.clone(), port, view);
        let redirected = match target.scheme() {
            Scheme::Http => request(Plane::Transparent),
            Scheme::Https => tunnel(Plane::Transparent, View::Tls),
        };
        let planes = vec![
            (Way::Proxy, request(Plane::Forward)),
            (Way::Connect, tunnel(Plane::Forward, View::Opaque)),
            (Way::Redirected, redirected),
        ];
        Ok(Self { method, target: target.to_string(), host, request: Some(target), planes })
    }

    /// Parses what is asked without a method: a `GET`, or the connection to another service, which may also be redirected.
    fn without_method(get: Method, text: &str) -> Result<Self, Denial> {
        let Some((host, port)) = other_service(text) else { return Self::parse(get, text) };
        let method = Method::parse("CONNECT").unwrap_or(get);
        let tunnel = |plane| Asked::connection(plane, host.clone(), port, View::Opaque);
        let planes =
            vec![(Way::Connect, tunnel(Plane::Forward)), (Way::Redirected, tunnel(Plane::Transparent))];
        Ok(Self { method, target: format!("{host}:{port}"), host, request: None, planes })
    }

    /// Returns what is asked, in a line.
    fn asked(&self) -> String {
        match self.request {
            Some(_) => format!("{} {}", self.method, self.target),
            None => format!("CONNECT {}", self.target),
        }
    }

    /// Whether the requests in a granted tunnel are left to be decided when they come.
    fn leaves_open(&self, grant: &Grant) -> bool {
        self.request.is_none() && grant.carriage() == Carriage::Terminated
    }
}

/// Returns host and port of a target that is no page of the web: it names a port that is neither 80 nor 443, and nothing to ask for.
fn other_service(text: &str) -> Option<(Host, Port)> {
    let is_bare = !text.contains('/') && !text.contains('?');
    let (host, port) = Authority::parse_tunnel(text).ok().filter(|_| is_bare)?;
    let web = [Scheme::Http.default_port(), Scheme::Https.default_port()];
    (!web.contains(&port)).then_some((host, port))
}

pub(super) fn explain(spec: &Spec, text: &str, method: Option<&str>, form: Form) -> Done {
    let policy = settings(spec)?.spec.policy;
    let named = policy_check::method_of(method.unwrap_or("GET"))?;
    let question = match method {
        Some(_) => Question::parse(named.clone(), text),
        None => Question::without_method(named.clone(), text),
    };
    let (asked, explained) = match question {
        Ok(question) => (question.asked(), explain_each(&policy, &question, spec)?),
        Err(denial) => {
            let on_all = Explanation::denied(Way::Everywhere, &denial, spec);
            (format!("{named} {}", output::plain(text)), vec![on_all])
        }
    };
    let verdict = verdict(&explained);
    let here = Target::parse(&whole(text)).ok();
    let here = here.and_then(|target| hint::of_localhost(target.host(), target.port()));
    match form {
        Form::Json => {
            let value = serde_json::json!({"asked": asked, "verdict": verdict, "ways": explained});
            output::answer(&value.to_string())?;
        }
        Form::Text => {
            output::answer(&asked)?;
            told(&explained).iter().try_for_each(|line| output::answer(line))?;
            if let Some(group) = explained.iter().find_map(|one| one.group.as_deref()) {
                output::answer(&format!("{:26}{group}", ""))?;
            }
            if let Some(here) = here.filter(|_| verdict == Verdict::Deny) {
                output::answer(&format!("{:26}{here}", ""))?;
            }
        }
    }
    Ok(u8::from(verdict == Verdict::Deny))
}

/// Returns the lines of what was explained. A hint that is the same for several is told once, below them.
fn told(explained: &[Explanation]) -> Vec<String> {
    let hints: Vec<&str> = explained.iter().filter_map(|one| one.told.as_deref()).collect();
    let common = hints.first().filter(|first| hints.len() > 1 && hints.iter().all(|hint| hint == *first));
    let lines = explained.iter().map(|one| if common.is_some() { one.line() } else { one.line_with_hint() });
    lines.chain(common.map(|hint| format!("{:26}{}", "", output::plain(hint)))).collect()
}

/// It is allowed if a plane grants it and the address guard does not refuse it.
fn verdict(explained: &[Explanation]) -> Verdict {
    let is_refused = |one: &Explanation| one.way == Way::Addresses && one.verdict == Verdict::Deny;
    match explained.iter().any(|one| one.grant.is_some()) && !explained.iter().any(is_refused) {
        true => Verdict::Allow,
        false => Verdict::Deny,
    }
}

fn explain_each(
    policy: &Policy,
    question: &Question,
    spec: &Spec,
) -> Result<Vec<Explanation>, anyhow::Error> {
    let mut explained: Vec<Explanation> = explain_dns(policy, &question.host, spec).into_iter().collect();
    let planes = question.planes.iter();
    explained.extend(planes.map(|(way, asked)| explain_plane(policy, *way, asked, question, spec)));
    let Some(grant) = explained.iter().find_map(|one| one.grant.as_ref()) else { return Ok(explained) };
    if grant.is_companion() {
        explained.push(Explanation::allowed(Way::Companion, None, BESIDE.into()));
        return Ok(explained);
    }
    let upstream = explain_upstream(policy, grant);
    if !question.leaves_open(grant) {
        explained.push(match judge_address(policy, question)? {
            Some(denial) => Explanation::denied(Way::Addresses, &denial, spec),
            None => Explanation::allowed(Way::Addresses, None, fit_addresses(&question.host).into()),
        });
    }
    explained.extend(upstream);
    Ok(explained)
}

/// Explains what becomes of a question for the host's name, if it has one.
fn explain_dns(policy: &Policy, host: &Host, spec: &Spec) -> Option<Explanation> {
    let Host::Name(name) = host else { return None };
    Some(match policy.decide_name(name) {
        Ok(rule) => {
            let reason = format!("answered with an address of the sandbox's own, by {rule}");
            Explanation::allowed(Way::Dns, Some(rule.to_string()), reason)
        }
        Err(denial) => Explanation { hint: None, told: None, ..Explanation::denied(Way::Dns, &denial, spec) },
    })
}

/// Explains one plane, on which `asked` is asked. In a tunnel that is terminated, the request is decided too if it is known.
fn explain_plane(policy: &Policy, way: Way, asked: &Asked, question: &Question, spec: &Spec) -> Explanation {
    if way == Way::Redirected && hint::is_loopback(&asked.host) {
        return Explanation::never_taken(way, OWN_LOOPBACK);
    }
    if way == Way::Redirected && asked.port.number() == DNS_PORT {
        return Explanation::never_taken(way, OWN_DNS);
    }
    let decided = policy.decide(asked).and_then(|grant| {
        if question.leaves_open(&grant) {
            return Ok(grant);
        }
        if let (Carriage::Terminated, Some(target)) = (grant.carriage(), &question.request) {
            policy.decide(&Asked::request(asked.plane, question.method.clone(), target))?;
        }
        // The rule's own addresses are known already.
        grant.addresses().map_or(Ok(()), |given| grant.vet(given))?;
        Ok(grant)
    });
    match decided {
        Ok(grant) => {
            let rule = grant.rule().to_string();
            let each =
                if question.leaves_open(&grant) { "; its requests are decided one by one" } else { "" };
            let reason = format!("allowed by {rule}{}{each}", how(policy, &grant, asked));
            Explanation { grant: Some(grant), ..Explanation::allowed(way, Some(rule), reason) }
        }
        Err(denial) => Explanation::denied(way, &denial, spec),
    }
}

/// Says which addresses of a host are dialled.
fn fit_addresses(host: &Host) -> &'static str {
    match host {
        Host::Address(_) => "its address is public, or named by its rule",
        Host::Name(_) => {
            "every address it resolves to must be public, or be named by its rule, and none may be denied"
        }
    }
}

/// Explains the proxy on the way of a granted request, if there is one.
fn explain_upstream(policy: &Policy, grant: &Grant) -> Option<Explanation> {
    let proxy = policy.proxy_for(grant)?;
    let unresolved = match grant.host() {
        Host::Name(_) => "; a name that does not resolve here goes to it by name",
        Host::Address(_) => "",
    };
    Some(Explanation::allowed(Way::Upstream, None, format!("it is {proxy}{unresolved}")))
}

/// Describes how a granted connection is carried.
fn how(policy: &Policy, grant: &Grant, asked: &Asked) -> String {
    let carried = match (grant.carriage(), grant.provider()) {
        (Carriage::Terminated, _) if policy.binds(&asked.host, asked.port) => {
            "; TLS is opened, because a credential is bound there"
        }
        (Carriage::Terminated, _) if policy.denies_in_part(&asked.host, asked.port) => {
            "; TLS is opened, because a deny rule names paths or methods"
        }
        (Carriage::Terminated, _) => "; TLS is opened, because it names paths or methods",
        (Carriage::Request, Some(provider)) => {
            match (provider.injects_into(asked), provider.exposed().is_empty()) {
                (true, true) => "; its credential is put in",
                (true, false) => "; its credential is put in, and is exposed to the command as well",
                (false, true) => {
                    "; no `inject` covers it: its credential goes where the agent places the placeholder"
                }
                (false, false) => {
                    "; no `inject` covers it: the command places the credential, which is exposed to it"
                }
            }
        }
        (Carriage::Tls, _) => "; TLS is spliced, not opened",
        _ => "",
    };
    format!("{carried}{}", others(policy, grant, asked))
}

/// Names the other providers whose credential is good for a request, each of which it may name instead.
fn others(policy: &Policy, grant: &Grant, asked: &Asked) -> String {
    let Some(put_in) = grant.provider().filter(|_| asked.provider.is_none()) else { return String::new() };
    let other = |provider: &&Arc<Provider>| {
        let named = Asked { provider: Some(provider.id().clone()), ..asked.clone() };
        provider.id() != put_in.id() && policy.decide(&named).is_ok()
    };
    let fitting = policy.providers_for(asked).into_iter().filter(other);
    fitting.map(|other| format!(", or with the placeholder of `{0}` that of {0}", other.id())).collect()
}

/// Judges a host that is an address, for which no resolver is needed.
fn judge_address(policy: &Policy, question: &Question) -> Result<Option<Denial>, anyhow::Error> {
    if matches!(question.host, Host::Name(_)) {
        return Ok(None);
    }
    let gate = policy_check::gate(policy, Some(Vec::new()))?;
    let verdict = egress::check(&gate, &question.method, &question.target)?;
    Ok(verdict.outcome.err())
}

#[cfg(test)]
mod tests {
    use policy::{Layers, Origin};

    use super::*;

    fn compiled(text: &str) -> Policy {
        let mut layers = Layers::default();
        layers.push(Origin::Named("p.toml".into()), toml::from_str(text).unwrap());
        layers.compile().unwrap().policy
    }

    fn explained(policy: &Policy, method: &str, text: &str) -> Vec<Explanation> {
        let question = Question::parse(Method::parse(method).unwrap(), text).unwrap();
        explain_each(policy, &question, &Spec::default()).unwrap()
    }

    fn explained_without_method(policy: &Policy, text: &str) -> Vec<Explanation> {
        let question = Question::without_method(Method::parse("GET").unwrap(), text).unwrap();
        explain_each(policy, &question, &Spec::default()).unwrap()
    }

    fn lines(explained: &[Explanation]) -> String {
        told(explained).iter().map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn a_tunnel_is_explained_as_it_is_judged() {
        let policy = compiled(
            r#"
            [egress]
            allow = [
                { url = "https://api.example.com/v1/*", methods = ["GET"] },
                { host = "free.example.com" },
                { host = "10.0.0.5", ports = [443] },
            ]
            deny = [{ host = "shut.example.com" }]
            "#,
        );
        let planes = |explained: &[Explanation]| explained.iter().map(|one| one.way).collect::<Vec<_>>();
        for (target, ways, words) in [
            ("api.example.com:443", &[Way::Dns, Way::Connect][..], "its requests are decided one by one"),
            ("free.example.com:443", &[Way::Dns, Way::Connect, Way::Addresses], "every address"),
            ("10.0.0.5:443", &[Way::Connect, Way::Addresses], "named by its rule"),
            ("10.0.0.6:443", &[Way::Connect], "denied"),
            ("shut.example.com:443", &[Way::Dns, Way::Connect], "denied"),
        ] {
            let explained = explained(&policy, "CONNECT", target);
            assert_eq!(planes(&explained), ways, "{target}");
            assert!(lines(&explained).contains(words), "{target}: {}", lines(&explained));
            let gate = policy_check::gate(&policy, Some(vec!["93.184.216.34".parse().unwrap()])).unwrap();
            let checked = egress::check(&gate, &Method::parse("CONNECT").unwrap(), target).unwrap();
            assert_eq!(checked.outcome.is_ok(), verdict(&explained) == Verdict::Allow, "{target}");
        }
        for target in ["api.example.com", "https://api.example.com/v1/x"] {
            assert!(Question::parse(Method::parse("CONNECT").unwrap(), target).is_err(), "{target}");
        }
    }

    #[test]
    fn another_service_at_an_address_is_judged_as_a_connection() {
        let named = "egress.allow = [{ host = \"10.0.0.5\", ports = [5432] }, { host = \"[fd12::5]\", ports = [22] }]";
        let open = "egress.default = \"open-internet\"";
        for (rules, target, expected) in [
            (named, "10.0.0.5:5432", Verdict::Allow),
            (named, "[fd12::5]:22", Verdict::Allow),
            (named, "10.0.0.6:5432", Verdict::Deny),
            (open, "93.184.216.34:5432", Verdict::Allow),
            (open, "10.0.0.5:5432", Verdict::Deny),
        ] {
            let explained = explained_without_method(&compiled(rules), target);
            assert_eq!(verdict(&explained), expected, "{target}: {}", lines(&explained));
            assert!(!lines(&explained).contains("target_syntax"), "{target}: {}", lines(&explained));
        }
    }

    #[test]
    fn a_method_that_is_said_makes_a_request_of_another_service() {
        let get = || Method::parse("GET").unwrap();
        let service = "a.example:8080";
        let asked = |question: Result<Question, Denial>| {
            let question = question.ok().unwrap();
            let ways: Vec<_> = question.planes.iter().map(|(way, _)| *way).collect();
            (question.asked().split_once(' ').unwrap().0.to_owned(), ways)
        };
        let request = vec![Way::Proxy, Way::Connect, Way::Redirected];
        assert_eq!(asked(Question::parse(get(), service)), ("GET".into(), request.clone()));
        let page = asked(Question::without_method(get(), "http://a.example:8080/"));
        assert_eq!(page, ("GET".into(), request));
        let bare = asked(Question::without_method(get(), service));
        assert_eq!(bare, ("CONNECT".into(), vec![Way::Connect, Way::Redirected]));
        let tunnel = asked(Question::parse(Method::parse("CONNECT").unwrap(), service));
        assert_eq!(tunnel, ("CONNECT".into(), vec![Way::Connect]));
    }

    #[test]
    fn what_denies_is_named_once() {
        let policy = compiled(r#"egress.deny = [{ host = "ads.example.com", reason = "no ads" }]"#);
        let lines = lines(&explained(&policy, "GET", "ads.example.com"));
        let proxy = lines.lines().find(|line| line.contains("through the proxy")).unwrap();
        assert!(proxy.contains("no ads, by egress.deny[0] in p.toml"), "{lines}");
        assert_eq!(lines.matches("egress.deny[0]").count(), lines.matches("no ads").count(), "{lines}");
    }

    #[test]
    fn the_guard_has_a_field_of_its_own_and_a_place_in_the_line() {
        let policy = compiled("egress.allow = [{ host = \"a.example\", ports = [80] }]");
        let explained = explained(&policy, "GET", "https://a.example/");
        let proxy = explained.iter().find(|one| one.way == Way::Proxy).unwrap();
        assert!(proxy.guard == Some("port_not_allowed") && proxy.reason == "port 443 is not among 80");
        let line = proxy.line();
        assert!(line.contains("denied: port_not_allowed: port 443 is not among 80"), "{line}");
        let name = &explained_without_method(&policy, "b.example:22")[0];
        assert!(name.line().contains("does not exist: host_not_allowed: "), "{}", name.line());
        assert!(!name.reason.contains("host_not_allowed"), "{}", name.reason);
    }

    #[test]
    fn a_hint_for_every_way_is_told_once() {
        let lines = lines(&explained(&compiled(""), "GET", "http://www.example.com/"));
        assert_eq!(lines.matches("to allow it: ").count(), 1, "{lines}");
        assert!(lines.trim_end().lines().last().unwrap().contains("to allow it: "), "{lines}");
    }

    #[test]
    fn nothing_lies_on_the_way_to_a_companion() {
        let policy = compiled(
            r#"
            backend = "container"
            image = "alpine"
            companion = [{ name = "db", image = "postgres", ports = [5432] }]
            proxy = [{ id = "corp", url = "http://proxy.example:3128" }]
            egress.proxy = "corp"
            "#,
        );
        let explained = explained_without_method(&policy, "db:5432");
        assert!(verdict(&explained) == Verdict::Allow, "{}", lines(&explained));
        let lines = lines(&explained);
        assert!(lines.ends_with(&format!("{BESIDE}\n")), "{lines}");
        assert!(!lines.contains("upstream") && !lines.contains("public"), "{lines}");
    }

    #[test]
    fn no_connection_is_redirected_to_where_questions_of_dns_are_answered() {
        let policy = compiled("egress.allow = [{ host = \"ns.example.com\", ports = [53, 54] }]");
        for (target, is_taken) in [("ns.example.com:53", false), ("ns.example.com:54", true)] {
            let explained = explained_without_method(&policy, target);
            let redirected = explained.iter().find(|one| one.way == Way::Redirected).unwrap();
            assert_eq!((redirected.grant.is_some(), redirected.reason == OWN_DNS), (is_taken, !is_taken));
            // The proxy connects there all the same.
            assert_eq!(verdict(&explained), Verdict::Allow);
        }
    }

    #[test]
    fn nothing_lies_on_the_way_to_what_the_policy_places() {
        let policy = compiled(
            r#"
            proxy = [{ id = "corp", url = "http://proxy.example:3128" }]
            [egress]
            proxy = "corp"
            allow = [{ host = "far.example" }, { host = "db.example", addresses = ["10.0.0.5"] }]
            "#,
        );
        let upstream = |target: &str| lines(&explained(&policy, "GET", target)).contains("proxy.example");
        assert!(upstream("http://far.example/") && !upstream("http://db.example/"));
    }

    #[test]
    fn other_credentials_that_are_good_are_named() {
        let policy = compiled(
            r#"
            providers = ["github"]
            [[provider]]
            id = "work"
            authorized_uris = ["https://api.github.com/repos/work/*"]
            [[provider]]
            id = "read"
            authorized_uris = ["https://api.github.com/*"]
            methods = ["GET"]
            "#,
        );
        let told = |method: &str, path: &str| {
            lines(&explained(&policy, method, &format!("https://api.github.com/{path}")))
        };
        let work = told("GET", "repos/work/x");
        let both = ", or with the placeholder of `github` that of github, or with the placeholder of `read` that of read";
        assert!(work.contains("allowed by provider work") && work.contains(both), "{work}");
        assert!(!told("POST", "user").contains("or with"), "{}", told("POST", "user"));
        assert!(told("GET", "user").contains("with the placeholder of `read`"), "{}", told("GET", "user"));
    }

    #[test]
    fn a_bound_credential_opens_whatever_else_may_be_sent() {
        let policy = |pinned: bool| {
            compiled(&format!(
                r#"
                [[provider]]
                id = "one"
                authorized_uris = ["https://api.example.com/*"]
                inject = {{ header = "authorization", value = "Bearer {{{{access_token}}}}" }}
                pinned = {pinned}
                "#
            ))
        };
        for pinned in [true, false] {
            let lines = lines(&explained(&policy(pinned), "GET", "https://api.example.com/x"));
            assert!(lines.contains("because a credential is bound there"), "{pinned}: {lines}");
            assert!(!lines.contains("names paths"), "{pinned}: {lines}");
        }
    }
}
