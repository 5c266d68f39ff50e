//! `lockgate policy explain`: the decision on a target on each plane, by the same `decide` that enforces.

use policy::{Asked, Carriage, Denial, Grant, Host, Method, Plane, Policy, Scheme, Target, View};
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

/// What an explanation is about. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Everywhere,
    Dns,
    Proxy,
    Connect,
    Redirected,
    /// The address guard, which decides last.
    Addresses,
    /// The proxy on the way out, which decides nothing.
    Upstream,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Everywhere => "on every plane",
            Self::Dns => "dns",
            Self::Proxy => "through the proxy",
            Self::Connect => "CONNECT to the proxy",
            Self::Redirected => "redirected",
            Self::Addresses => "then",
            Self::Upstream => "upstream proxy",
        }
    }

    /// Whether requests come in this way.
    fn is_plane(self) -> bool {
        matches!(self, Self::Everywhere | Self::Proxy | Self::Connect | Self::Redirected)
    }
}

impl Serialize for Stage {
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

/// The explanation for one plane.
#[derive(Serialize)]
struct Way {
    way: Stage,
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
}

impl Way {
    fn allowed(way: Stage, rule: Option<String>, reason: String) -> Self {
        Self { way, verdict: Verdict::Allow, guard: None, rule, reason, hint: None, told: None, group: None }
    }

    fn denied(way: Stage, denial: &Denial, flags: &Spec) -> Self {
        Self {
            way,
            verdict: Verdict::Deny,
            guard: Some(denial.guard.code()),
            rule: denial.rule.clone(),
            reason: denial.to_string(),
            hint: denial.hint.clone().map(|hint| hint::suited(hint, flags).to_string()),
            told: denial.hint.as_ref().map(|hint| hint::told(hint, flags)),
            group: denial.hint.as_ref().and_then(hint::group),
        }
    }

    /// An explanation without a decision.
    fn never_taken(way: Stage, reason: &str) -> Self {
        Self { verdict: Verdict::Deny, ..Self::allowed(way, None, reason.into()) }
    }

    fn is_allowed(&self) -> bool {
        self.verdict == Verdict::Allow
    }

    fn line(&self) -> String {
        let told = self.told.as_deref().map(output::plain);
        let told = told.map(|hint| format!("\n{:26}{hint}", "")).unwrap_or_default();
        let denied = if self.guard.is_none() || self.way == Stage::Dns { "" } else { "denied: " };
        format!("  {:<22}  {denied}{}{told}", self.way.name(), output::plain(&self.reason))
    }
}

pub(super) fn explain(spec: &Spec, text: &str, method: &str, form: Form) -> Done {
    let policy = settings(spec)?.spec.policy;
    let method = policy_check::method_of(method)?;
    let (asked, ways) = match Target::parse(&whole(text)) {
        Ok(target) => (format!("{method} {target}"), ways(&policy, &method, &target, spec)?),
        Err(denial) => {
            let on_all = Way::denied(Stage::Everywhere, &denial, spec);
            (format!("{method} {}", output::plain(text)), vec![on_all])
        }
    };
    let allowed = ways.iter().filter(|way| way.way.is_plane()).any(Way::is_allowed)
        && ways.iter().filter(|way| way.way == Stage::Addresses).all(Way::is_allowed);
    match form {
        Form::Json => {
            let verdict = if allowed { Verdict::Allow } else { Verdict::Deny };
            let value = serde_json::json!({"asked": asked, "verdict": verdict, "ways": ways});
            output::data(&value.to_string())?;
        }
        Form::Text => {
            output::data(&asked)?;
            ways.iter().try_for_each(|way| output::data(&way.line()))?;
            if let Some(group) = ways.iter().find_map(|way| way.group.as_deref()) {
                output::data(&format!("{:26}{group}", ""))?;
            }
        }
    }
    Ok(u8::from(!allowed))
}

fn ways(policy: &Policy, method: &Method, target: &Target, spec: &Spec) -> Result<Vec<Way>, anyhow::Error> {
    let (host, port) = (target.host(), target.port());
    let request = |plane| Asked::request(plane, method.clone(), target);
    let tunnel = |plane, view| Asked::connection(plane, host.clone(), port, view);
    let redirected = match target.scheme() {
        Scheme::Http => request(Plane::Transparent),
        Scheme::Https => tunnel(Plane::Transparent, View::Tls),
    };
    let planes = [
        (Stage::Proxy, request(Plane::Forward)),
        (Stage::Connect, tunnel(Plane::Forward, View::Opaque)),
        (Stage::Redirected, redirected),
    ];
    let mut ways: Vec<Way> = dns_way(policy, host, spec).into_iter().collect();
    ways.extend(planes.map(|(way, asked)| plane_way(policy, way, &asked, &request(asked.plane), spec)));
    if ways.iter().any(|way| way.way.is_plane() && way.is_allowed()) {
        ways.push(match judge_address(policy, method, target)? {
            Some(denial) => Way::denied(Stage::Addresses, &denial, spec),
            None => Way::allowed(Stage::Addresses, None, fit_addresses(host).into()),
        });
        ways.extend(upstream_way(policy, host));
    }
    Ok(ways)
}

/// Explains what becomes of a question for the host's name, if it has one.
fn dns_way(policy: &Policy, host: &Host, spec: &Spec) -> Option<Way> {
    let Host::Name(name) = host else { return None };
    Some(match policy.decide_name(name) {
        Ok(rule) => {
            let reason = format!("answered with an address of the sandbox's own, by {rule}");
            Way::allowed(Stage::Dns, Some(rule.to_string()), reason)
        }
        Err(denial) => Way {
            reason: format!("does not exist: {denial}"),
            hint: None,
            told: None,
            ..Way::denied(Stage::Dns, &denial, spec)
        },
    })
}

/// Explains one plane, on which `asked` is asked. In a tunnel that is terminated, `request` is decided too.
fn plane_way(policy: &Policy, way: Stage, asked: &Asked, request: &Asked, spec: &Spec) -> Way {
    if way == Stage::Redirected && hint::is_loopback(&asked.host) {
        return Way::never_taken(way, OWN_LOOPBACK);
    }
    let decided = policy.decide(asked).and_then(|grant| match (grant.carriage(), &asked.view) {
        (Carriage::Terminated, View::Tls | View::Opaque) => policy.decide(request).map(|_| grant),
        _ => Ok(grant),
    });
    // The rule's own addresses are known already.
    let decided = decided.and_then(|grant| {
        grant.addresses().map_or(Ok(()), |given| grant.vet(given))?;
        Ok(grant)
    });
    match decided {
        Ok(grant) => {
            let rule = grant.rule().to_string();
            let how = how(&grant, policy.denies_in_part(&asked.host, asked.port));
            Way::allowed(way, Some(rule.clone()), format!("allowed by {rule}{how}"))
        }
        Err(denial) => Way::denied(way, &denial, spec),
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

/// Explains the proxy on the way to a host, if there is one.
fn upstream_way(policy: &Policy, host: &Host) -> Option<Way> {
    let proxy = policy.proxies().on_the_way_to(host)?;
    let unresolved = match host {
        Host::Name(_) => "; a name that does not resolve here goes to it by name",
        Host::Address(_) => "",
    };
    Some(Way::allowed(Stage::Upstream, None, format!("it is {proxy}{unresolved}")))
}

/// Describes how a granted connection is carried.
fn how(grant: &Grant, is_denied_in_part: bool) -> &'static str {
    match (grant.carriage(), grant.provider()) {
        (Carriage::Terminated, _) if grant.is_pinned() => {
            "; TLS is opened, because a credential is bound there"
        }
        (Carriage::Terminated, _) if is_denied_in_part => {
            "; TLS is opened, because a deny rule names paths or methods"
        }
        (Carriage::Terminated, _) => "; TLS is opened, because it names paths or methods",
        (Carriage::Request, Some(provider)) if !provider.exposed().is_empty() => {
            "; its credential is put in, and is exposed to the command as well"
        }
        (Carriage::Request, Some(_)) => "; its credential is put in",
        (Carriage::Tls, _) => "; TLS is spliced, not opened",
        _ => "",
    }
}

/// Judges a host that is an address, for which no resolver is needed.
fn judge_address(policy: &Policy, method: &Method, target: &Target) -> Result<Option<Denial>, anyhow::Error> {
    if matches!(target.host(), Host::Name(_)) {
        return Ok(None);
    }
    let verdict = egress::check(&policy_check::gate(policy, Some(Vec::new()))?, method, &target.to_string())?;
    Ok(verdict.outcome.err())
}
