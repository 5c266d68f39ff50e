//! `lockgate policy explain`: the decision on a target on each plane, as the planes themselves ask for it.

use std::sync::Arc;

use egress::{Approach, Course, OwnName};
use policy::agreed::{DNS_PORT, SANDBOX_NAME};
use policy::{Asked, Carriage, Denial, Grant, Host, Method, Policy, Provider, Scheme};
use serde::Serialize;

use super::policy_question::{Question, Way};
use super::spec::settings;
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
    /// What else would allow it, for a person.
    #[serde(skip)]
    other_ways: Vec<String>,
    /// What a plane grants.
    #[serde(skip)]
    grant: Option<Grant>,
}

impl Explanation {
    fn allowed(way: Way, rule: Option<String>, reason: String) -> Self {
        let (verdict, guard) = (Verdict::Allow, None);
        let (hint, told, other_ways, grant) = (None, None, Vec::new(), None);
        Self { way, verdict, guard, rule, reason, hint, told, other_ways, grant }
    }

    fn denied(way: Way, denial: &Denial, flags: &Spec) -> Self {
        Self {
            verdict: Verdict::Deny,
            guard: Some(denial.guard.code()),
            hint: denial.hint.clone().map(|hint| hint::suited(hint, flags).to_string()),
            told: denial.hint.as_ref().map(|hint| hint::told(hint, flags)),
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
    match form {
        Form::Json => {
            let value = serde_json::json!({"asked": asked, "verdict": verdict, "ways": explained});
            output::answer(&value.to_string())?;
        }
        Form::Text => {
            output::answer(&asked)?;
            told(&explained).iter().try_for_each(|line| output::answer(line))?;
            let other_ways = explained.iter().map(|one| &one.other_ways).find(|ways| !ways.is_empty());
            for way in other_ways.into_iter().flatten() {
                output::answer(&format!("{:26}{way}", ""))?;
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
    let planes = question.approaches.iter();
    explained.extend(planes.map(|(way, approach)| explain_plane(policy, *way, *approach, question, spec)));
    let granted = explained.iter().find_map(|one| Some((one.way, one.grant.as_ref()?)));
    let Some((way, grant)) = granted else { return Ok(explained) };
    if grant.is_companion() {
        explained.push(Explanation::allowed(Way::Companion, None, BESIDE.into()));
        return Ok(explained);
    }
    let upstream = explain_upstream(policy, grant);
    if !leaves_open(question, grant) {
        explained.push(match judge_address(policy, question, way)? {
            Some(denial) => Explanation::denied(Way::Addresses, &denial, spec),
            None => Explanation::allowed(Way::Addresses, None, fit_addresses(policy, grant).into()),
        });
    }
    explained.extend(upstream);
    Ok(explained)
}

/// Whether the requests in a granted tunnel are left to be decided when they come.
fn leaves_open(question: &Question, grant: &Grant) -> bool {
    question.request.is_none() && grant.carriage() == Carriage::Terminated
}

/// Explains what becomes of a question for the host's name, if it has one.
fn explain_dns(policy: &Policy, host: &Host, spec: &Spec) -> Option<Explanation> {
    let Host::Name(name) = host else { return None };
    if let Some(own) = OwnName::of(name) {
        let answer = match own {
            OwnName::Sidecar => "answered with the sidecar's own address",
            OwnName::Loopback => "answered with the loopback of the sandbox itself",
        };
        return Some(Explanation::allowed(Way::Dns, None, answer.into()));
    }
    if name.as_str() == SANDBOX_NAME {
        let answer = "not asked: inside, it is the name of the sandbox itself, and leads to its loopback";
        return Some(Explanation::allowed(Way::Dns, None, answer.into()));
    }
    Some(match policy.decide_name(name) {
        Ok(rule) => {
            let reason = format!("answered with an address of the sandbox's own, by {rule}");
            Explanation::allowed(Way::Dns, Some(rule.to_string()), reason)
        }
        Err(denial) => Explanation { hint: None, told: None, ..Explanation::denied(Way::Dns, &denial, spec) },
    })
}

/// Explains one plane. In a connection whose requests are seen, the request decides if it is known.
fn explain_plane(
    policy: &Policy,
    way: Way,
    approach: Approach,
    question: &Question,
    spec: &Spec,
) -> Explanation {
    if way == Way::Redirected && is_own_loopback(&question.host) {
        return Explanation::never_taken(way, OWN_LOOPBACK);
    }
    if way == Way::Redirected && question.port.number() == DNS_PORT {
        return Explanation::never_taken(way, OWN_DNS);
    }
    let foreseen = match &question.request {
        Some(target) => egress::foresee(policy, approach, &question.method, target),
        None => {
            egress::foresee_tunnel(policy, approach, &question.host, question.port).map(Course::Connection)
        }
    };
    match foreseen {
        Ok(course) => {
            let grant = course.last();
            let rule = grant.rule().to_string();
            let each =
                if leaves_open(question, grant) { "; its requests are decided one by one" } else { "" };
            let reason = format!("allowed by {rule}{}{each}", how(policy, &course, question));
            let explained = Explanation::allowed(way, Some(rule), reason);
            Explanation { grant: Some(grant.clone()), ..explained }
        }
        Err(denial) => {
            let other_ways = |hint| hint::other_ways(hint, &question.target, &hint::providers_of(policy));
            let other_ways = denial.hint.iter().flat_map(other_ways).collect();
            Explanation { other_ways, ..Explanation::denied(way, &denial, spec) }
        }
    }
}

/// Whether a connection to a host stays on the loopback inside.
fn is_own_loopback(host: &Host) -> bool {
    match host {
        Host::Name(name) => name.as_str() == SANDBOX_NAME || OwnName::of(name) == Some(OwnName::Loopback),
        Host::Address(address) => address.is_unspecified() || hint::is_loopback(host),
    }
}

/// Says which addresses a host must have.
fn fit_addresses(policy: &Policy, grant: &Grant) -> &'static str {
    match grant.host() {
        Host::Address(_) => "its address is public, or named by its rule",
        Host::Name(_) if policy.proxy_for(grant).is_some() && grant.needs_no_address() => {
            "where it resolves here, every address must be public, or be named by its rule, and none may be denied"
        }
        Host::Name(_) => {
            "every address it resolves to must be public, or be named by its rule, and none may be denied"
        }
    }
}

/// Explains the proxy on the way of a granted request, if there is one.
fn explain_upstream(policy: &Policy, grant: &Grant) -> Option<Explanation> {
    let proxy = policy.proxy_for(grant)?;
    let resolves = match grant.host() {
        Host::Name(_) if grant.needs_no_address() => {
            ", which resolves the name for itself, also one that does not resolve here"
        }
        Host::Name(_) => {
            ", which resolves the name for itself; one that does not resolve here is not asked of it"
        }
        Host::Address(_) => "",
    };
    Some(Explanation::allowed(Way::Upstream, None, format!("it is {proxy}{resolves}")))
}

/// Describes how what is granted is carried.
fn how(policy: &Policy, course: &Course, question: &Question) -> String {
    match course {
        Course::Connection(grant) => match grant.carriage() {
            Carriage::Terminated => opened(policy, grant).to_owned(),
            Carriage::Any if grant.is_bound() && !grant.is_companion() => {
                format!("{}; what begins in another protocol passes", opened(policy, grant))
            }
            Carriage::Tls => "; TLS is spliced, not opened".to_owned(),
            Carriage::Any | Carriage::Request => String::new(),
        },
        Course::RequestWithin { connection, request } if is_tls(question) => {
            let of_others = policy.binds(request.host(), request.port()) && request.provider().is_none();
            let whose = if of_others { " for other requests" } else { "" };
            format!("{}{whose}", opened(policy, connection))
        }
        Course::Request(grant) | Course::RequestWithin { request: grant, .. } => {
            question.asked_of_policy().map(|asked| credential(policy, grant, &asked)).unwrap_or_default()
        }
    }
}

fn is_tls(question: &Question) -> bool {
    question.request.as_ref().is_some_and(|target| target.scheme() == Scheme::Https)
}

/// Says why TLS is opened.
fn opened(policy: &Policy, connection: &Grant) -> &'static str {
    let (host, port) = (connection.host(), connection.port());
    if policy.binds(host, port) {
        "; TLS is opened, because a credential is bound there"
    } else if connection.is_bound() {
        "; TLS is opened, because a credential is bound to the host, at another port"
    } else if policy.denies_in_part(host, port) {
        "; TLS is opened, because a deny rule names paths or methods"
    } else {
        "; TLS is opened, because a rule names paths or methods"
    }
}

/// Says which credential a request is given, and how.
fn credential(policy: &Policy, grant: &Grant, asked: &Asked) -> String {
    let Some(provider) = grant.provider() else { return String::new() };
    let given = match (provider.injects_into(asked), provider.exposed().is_empty()) {
        (true, true) => "; its credential is put in",
        (true, false) => "; its credential is put in, and is exposed to the command as well",
        (false, true) => {
            "; no `inject` covers it: its credential goes where the agent places the placeholder"
        }
        (false, false) => {
            "; no `inject` covers it: the command places the credential, which is exposed to it"
        }
    };
    format!("{given}{}", others(policy, provider, asked))
}

/// Names the other providers whose credential is good for a request, each of which it may name instead.
fn others(policy: &Policy, put_in: &Provider, asked: &Asked) -> String {
    let other = |provider: &&Arc<Provider>| {
        let named = Asked { provider: Some(provider.id().clone()), ..asked.clone() };
        provider.id() != put_in.id() && policy.decide(&named).is_ok()
    };
    let fitting = policy.providers_for(asked).into_iter().filter(other);
    fitting.map(|other| format!(", or with the placeholder of `{0}` that of {0}", other.id())).collect()
}

/// Judges a host that is an address, for which no resolver is needed, as it is granted on that way.
fn judge_address(policy: &Policy, question: &Question, way: Way) -> Result<Option<Denial>, anyhow::Error> {
    if matches!(question.host, Host::Name(_)) {
        return Ok(None);
    }
    // No name is asked for, so nothing answers in the resolver's place: that would leave out this machine's own addresses.
    let gate = policy_check::gate(policy, None)?;
    let verdict = match Method::parse("CONNECT").filter(|_| way != Way::Proxy) {
        Some(connect) => egress::check(&gate, &connect, &format!("{}:{}", question.host, question.port))?,
        None => egress::check(&gate, &question.method, &question.target)?,
    };
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

    /// The verdict on one way: the rule that allows, or the guard and the rule that deny.
    fn on(explained: &[Explanation], way: Way) -> String {
        let one = explained.iter().find(|one| one.way == way).unwrap();
        let rule = one.rule.as_deref().map(|rule| rule.trim_end_matches(" in p.toml")).unwrap_or("none");
        format!("{}{rule}", one.guard.map(|guard| format!("{guard} by ")).unwrap_or_default())
    }

    #[test]
    fn each_way_is_explained_as_its_plane_decides() {
        let bound = "[[provider]]\nid = \"one\"\nauthorized_uris = [\"https://a.example/v1/*\"]\nmethods = [\"GET\", \"TRACE\"]\n\
             [[egress.allow]]\nhost = \"a.example\"\nports = [80, 443]\n";
        let whole = "egress.allow = [{ url = \"https://a.example/*\" }]";
        let placed = "egress.allow = [{ url = \"https://a.example/a/*\", addresses = [\"10.0.0.5\"] },\n\
             { url = \"https://a.example/b/*\", addresses = [\"10.0.0.6\"] }]\negress.deny = [{ host = \"10.0.0.6\" }]";
        let mixed = "egress.allow = [{ url = \"http://a.example:8080/x/*\" }, { host = \"a.example\", ports = [8080, 8443] },\n\
             { url = \"https://a.example:8443/x/*\" }]";
        let shut =
            "egress.deny = [{ url = \"http://a.example:8080/x/*\" }, { url = \"http://a.example/x/*\" }]";
        let open = "egress.default = \"open-internet\"";
        let (first, second) = ("egress.allow[0]", "egress.allow[1]");
        let all = |verdict: &str| [verdict; 3].map(str::to_owned);
        let each = |verdicts: [&str; 3]| verdicts.map(str::to_owned);
        for (rules, method, target, expected) in [
            (bound, "GET", "https://a.example/v1/x", all("provider one")),
            (bound, "TRACE", "https://a.example/v1/x", all("method_not_allowed by provider one")),
            (bound, "TRACE", "https://a.example/x", all(first)),
            (bound, "POST", "https://a.example/v1/x", all(first)),
            (bound, "GET", "http://a.example/v1/x", all(first)),
            (whole, "GET", "https://a.example/x", all(first)),
            (
                whole,
                "GET",
                "http://a.example:443/",
                [
                    format!("scheme_not_allowed by {first}"),
                    format!("protocol_not_allowed by {first}"),
                    format!("scheme_not_allowed by {first}"),
                ],
            ),
            (placed, "GET", "https://a.example/a/x", all(first)),
            (placed, "GET", "https://a.example/b/x", all("deny_rule by egress.deny[0]")),
            (placed, "GET", "https://a.example/c", all(&format!("path_not_allowed by {first}"))),
            (mixed, "GET", "http://a.example:8080/x/1", all(first)),
            (mixed, "GET", "http://a.example:8080/y", all(second)),
            // What is spliced is not seen.
            (mixed, "GET", "https://a.example:8443/x/1", each([second; 3])),
            (
                shut,
                "GET",
                "http://a.example:8080/x/1",
                each(["deny_rule by egress.deny[0]", "host_not_allowed by none", "host_not_allowed by none"]),
            ),
            (
                shut,
                "GET",
                "http://a.example/x/1",
                each([
                    "deny_rule by egress.deny[1]",
                    "host_not_allowed by none",
                    "deny_rule by egress.deny[1]",
                ]),
            ),
            (open, "GET", "http://a.example:8080/", all(open)),
        ] {
            let policy = compiled(rules);
            let explained = explained(&policy, method, target);
            let told = [Way::Proxy, Way::Connect, Way::Redirected].map(|way| on(&explained, way));
            assert_eq!(told, expected, "{method} {target} with {rules}");
            let gate = policy_check::gate(&policy, Some(vec!["93.184.216.34".parse().unwrap()])).unwrap();
            let checked = egress::check(&gate, &Method::parse(method).unwrap(), target).unwrap().outcome;
            let checked = match checked {
                Ok((rule, _)) => rule,
                Err(denial) => {
                    format!("{} by {}", denial.guard, denial.rule.unwrap_or_else(|| "none".into()))
                }
            };
            assert_eq!(told[0], checked.replace(" in p.toml", ""), "{method} {target} with {rules}");
            let is_granted = expected.iter().any(|verdict| !verdict.contains(" by "));
            assert_eq!(verdict(&explained) == Verdict::Allow, is_granted, "{method} {target} with {rules}");
        }
    }

    #[test]
    fn an_address_is_judged_on_a_way_that_leads_there() {
        let mut layers = Layers::default();
        let open = toml::from_str("egress.default = \"open-internet\"").unwrap();
        layers.push(Origin::Managed("managed".into()), open);
        let part = toml::from_str("egress.allow = [{ url = \"https://10.0.0.5:8443/v1/*\" }]").unwrap();
        layers.push(Origin::Named("p.toml".into()), part);
        let explained = explained(&layers.compile().unwrap().policy, "GET", "https://10.0.0.5:8443/v1/x");
        assert!(on(&explained, Way::Proxy).starts_with("managed_policy by "), "{}", lines(&explained));
        assert!(on(&explained, Way::Connect).starts_with("address_blocked by "), "{}", lines(&explained));
        assert_eq!(verdict(&explained), Verdict::Deny);
        // The open mode grants the connection, and knows no address.
        let policy = compiled(
            "egress.default = \"open-internet\"\negress.allow = [{ url = \"https://10.0.0.5/v1/*\" }]",
        );
        let explained = self::explained(&policy, "GET", "https://10.0.0.5/v1/x");
        assert!(!on(&explained, Way::Proxy).contains("address_blocked"), "{}", lines(&explained));
        for way in [Way::Connect, Way::Redirected] {
            assert!(on(&explained, way).starts_with("address_blocked by "), "{}", lines(&explained));
        }
    }

    #[test]
    fn what_opens_tls_is_told_apart_from_what_allows_the_request() {
        let policy = compiled(
            "provider = [{ id = \"one\", authorized_uris = [\"https://a.example/v1/*\"] }]\n\
             egress.allow = [{ host = \"a.example\" }]",
        );
        let told = |path: &str| lines(&explained(&policy, "GET", &format!("https://a.example/{path}")));
        let own = "allowed by provider one; TLS is opened, because a credential is bound there\n";
        let other = "allowed by egress.allow[0] in p.toml; TLS is opened, because a credential is bound there for other requests\n";
        assert_eq!(told("v1/x").matches(own).count(), 2, "{}", told("v1/x"));
        assert_eq!(told("x").matches(other).count(), 2, "{}", told("x"));
    }

    #[test]
    fn tls_is_opened_at_every_port_of_a_host_that_a_credential_is_bound_to() {
        const OTHER: &str = "; what begins in another protocol passes";
        let policy = compiled(
            "provider = [{ id = \"one\", authorized_uris = [\"https://a.example/v1/*\"] }]\n\
             egress.allow = [{ host = \"a.example\", ports = [22, 8443] }, { host = \"b.example\", ports = [22, 8443] }]",
        );
        let told = |target: &str| lines(&explained_without_method(&policy, target));
        let why = "; TLS is opened, because a credential is bound to the host, at another port";
        for (target, with, other) in [
            ("https://a.example:8443/x", "", "https://b.example:8443/x"),
            ("a.example:22", OTHER, "b.example:22"),
        ] {
            let line = format!("{why}{with}\n");
            assert_eq!(told(target).matches(&line).count(), 2, "{}", told(target));
            assert!(!told(other).contains(why), "{}", told(other));
        }
    }

    #[test]
    fn a_name_of_the_sandbox_itself_is_told_as_it_is_answered() {
        for (host, answer, redirected) in [
            ("localhost", "the loopback of the sandbox itself", OWN_LOOPBACK),
            ("lockgate", "the name of the sandbox itself", OWN_LOOPBACK),
            ("sidecar", "the sidecar's own address", "reserved_name"),
            ("x.localhost", "does not exist: reserved_name", "reserved_name"),
        ] {
            let explained = explained(&compiled(""), "GET", &format!("http://{host}:3000/"));
            let line = |way: Way| explained.iter().find(|one| one.way == way).unwrap().line();
            assert!(line(Way::Dns).contains(answer), "{}", line(Way::Dns));
            assert!(line(Way::Redirected).contains(redirected), "{}", line(Way::Redirected));
            assert_eq!(verdict(&explained), Verdict::Deny);
        }
    }

    #[test]
    fn a_provider_is_named_where_its_flag_allows_what_is_asked() {
        let own =
            "provider = [{ id = \"openai\", authorized_uris = [\"https://api.openai.com/v1/models\"] }]";
        for (rules, target, provider, is_named) in [
            ("", "https://openrouter.ai/docs", "openrouter", false),
            ("", "openrouter.ai", "openrouter", false),
            ("", "https://openrouter.ai/api/v1/models", "openrouter", true),
            ("", "http://api.openai.com/v1/x", "openai", false),
            ("", "https://api.openai.com/v1/x", "openai", true),
            (own, "https://api.openai.com/v1/chat/completions", "openai", false),
        ] {
            let flag = format!("--provider {provider}");
            let denied = explained(&compiled(rules), "GET", target);
            assert_eq!(verdict(&denied), Verdict::Deny, "{target}");
            let mut told = denied.iter().flat_map(|one| &one.other_ways);
            assert_eq!(told.any(|told| told.contains(&flag)), is_named, "{target}");
            let mut layers = Layers::default();
            layers.push(Origin::Named("p.toml".into()), toml::from_str(rules).unwrap());
            let flags = toml::from_str(&format!("providers = [\"{provider}\"]")).unwrap();
            layers.push(Origin::Flags, flags);
            let with_flag = explained(&layers.compile().unwrap().policy, "GET", target);
            assert_eq!(verdict(&with_flag) == Verdict::Allow, is_named, "{target}: {}", lines(&with_flag));
        }
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
    fn what_a_proxy_resolves_is_told_apart_from_what_must_resolve_here() {
        let policy = compiled(
            r#"
            proxy = [{ id = "corp", url = "http://proxy.example:3128" }]
            [egress]
            proxy = "corp"
            default = "open-internet"
            allow = [{ host = "far.example" }]
            "#,
        );
        let told = |target: &str| lines(&explained(&policy, "GET", target));
        let here = "every address it resolves to must be public";
        for (target, addresses, upstream) in [
            (
                "http://far.example/",
                "where it resolves here, every address",
                "also one that does not resolve here",
            ),
            ("http://a.example/", here, "one that does not resolve here is not asked of it"),
        ] {
            let told = told(target);
            assert!(told.contains(addresses) && told.contains(upstream), "{told}");
        }
        assert!(!told("http://far.example/").contains(here));
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
