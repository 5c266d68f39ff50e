//! `lockgate policy`: what a run may do, without running anything.

use policy::{Asked, Carriage, Denial, Host, Method, Plane, Policy as Rules, Port, Target, View};

use super::spec::settings;
use super::{hint, policy_check, policy_edit};
use crate::arguments::{Policy, Spec};
use crate::exit::{Done, Usage};
use crate::output::{self, Form};

pub(crate) fn policy(command: Policy) -> Done {
    match command {
        Policy::Init { file } => policy_edit::init(&file),
        Policy::Allow { targets, file } => policy_edit::allow(&file, &targets),
        Policy::Deny { targets, reason, file } => policy_edit::deny(&file, &targets, reason.as_deref()),
        Policy::Approve { workspace } => policy_edit::approve(workspace),
        Policy::Ls { spec, json } => ls(&spec, Form::of(json)),
        Policy::Check(check) => policy_check::check(&check),
        Policy::Explain { spec, target, method } => explain(&spec, &target, &method),
        Policy::Schema => {
            output::data(&serde_json::to_string_pretty(&schemars::schema_for!(policy::RunConfig))?)?;
            Ok(0)
        }
    }
}

fn ls(spec: &Spec, form: Form) -> Done {
    let spec = settings(spec)?.spec;
    if form == Form::Json {
        for (effect, name, reach) in spec.policy.rules() {
            let line = serde_json::json!({"effect": effect, "rule": name.as_str(), "reach": reach});
            output::data(&line.to_string())?;
        }
        let rest = if spec.policy.is_open() { "allow" } else { "deny" };
        let line =
            serde_json::json!({"effect": rest, "rule": "egress.default", "reach": rest_of(&spec.policy)});
        output::data(&line.to_string())?;
        return Ok(0);
    }
    ls_rules(&spec.policy, "")?;
    for provider in spec.policy.providers().filter(|provider| !provider.exposed().is_empty()) {
        row("expose", &provider.exposed().join(", "), &format!("provider {}", provider.id()))?;
    }
    for inbound in &spec.inbound {
        let from = if inbound.is_local() {
            "this machine".to_owned()
        } else {
            inbound.sources().collect::<Vec<_>>().join(", ")
        };
        row("admit", &format!("{from} to port {}", inbound.host_port), &inbound.to_string())?;
    }
    for companion in &spec.companions {
        let ports: Vec<_> = companion.ports.iter().map(ToString::to_string).collect();
        let rules = if companion.has_own_rules() { "rules of its own" } else { "the rules above" };
        let named = format!("companion, image {}, {rules}", output::plain(&companion.image));
        row("reach", &format!("{}:{}", companion.name, ports.join(",")), &named)?;
        if companion.has_own_rules() {
            ls_rules(&companion.policy, "  ")?;
        }
    }
    Ok(0)
}

/// The rules of a policy and what is left, in the order in which they are asked.
fn ls_rules(policy: &Rules, indent: &str) -> std::io::Result<()> {
    for (effect, name, reach) in policy.rules() {
        row(&format!("{indent}{effect}"), &reach.to_string(), name.as_str())?;
    }
    let effect = if policy.is_open() { "allow" } else { "deny" };
    output::data(&format!("{indent}{effect:<6} {}", rest_of(policy)))
}

/// What no rule speaks of.
fn rest_of(policy: &Rules) -> &'static str {
    if policy.is_open() { "everything else at public addresses" } else { "everything else" }
}

fn row(effect: &str, reach: &str, name: &str) -> std::io::Result<()> {
    output::data(&format!("{effect:<6} {reach:<48}  {name}"))
}

/// What a target would meet on each plane: through the same `decide` that enforces.
fn explain(spec: &Spec, text: &str, method: &str) -> Done {
    let policy = settings(spec)?.spec.policy;
    let method = Method::parse(method)
        .ok_or_else(|| Usage::error(format!("`{method}` is not a method"), "as in GET"))?;
    let target = match Target::parse(&whole(text)) {
        Ok(target) => target,
        Err(denial) => {
            output::data(&format!("{method} {}", output::plain(text)))?;
            output::data(&format!("  on every plane          denied: {denial}"))?;
            return Ok(1);
        }
    };
    let (host, port) = (target.host().clone(), target.port());
    let request = |plane| Asked::request(plane, method.clone(), &target);
    let tunnel = |plane, view| Asked::connection(plane, host.clone(), port, view);
    output::data(&format!("{method} {target}"))?;
    if let Host::Name(name) = &host {
        let answer = match policy.decide_name(name) {
            Ok(rule) => format!("answered with an address of the sandbox's own, by {rule}"),
            Err(denial) => format!("does not exist: {denial}"),
        };
        output::data(&format!("  dns                     {answer}"))?;
    }
    let ways = [
        ("through the proxy", request(Plane::Forward)),
        ("CONNECT to the proxy", tunnel(Plane::Forward, View::Opaque)),
        (
            "redirected",
            match target.scheme() {
                policy::Scheme::Http => request(Plane::Transparent),
                policy::Scheme::Https => tunnel(Plane::Transparent, View::Tls),
            },
        ),
    ];
    let mut allowed = false;
    for (way, asked) in ways {
        // In a tunnel that is opened each request is asked for as well: this one.
        let decided = policy.decide(&asked).and_then(|grant| match (grant.carriage(), &asked.view) {
            (Carriage::Opened, View::Tls | View::Opaque) => {
                policy.decide(&request(asked.plane)).map(|_| grant)
            }
            _ => Ok(grant),
        });
        let line = match decided {
            Ok(grant) => {
                allowed = true;
                let how = match (grant.carriage(), grant.provider()) {
                    (Carriage::Opened, _) if grant.is_pinned() => {
                        "; TLS is opened, because a credential is bound there"
                    }
                    (Carriage::Opened, _) if policy.denies_in_part(&host, port) => {
                        "; TLS is opened, because a deny rule names paths or methods"
                    }
                    (Carriage::Opened, _) => "; TLS is opened, because it names paths or methods",
                    (Carriage::Request, Some(provider)) if !provider.exposed().is_empty() => {
                        "; its credential is put in, and is exposed to the command as well"
                    }
                    (Carriage::Request, Some(_)) => "; its credential is put in",
                    (Carriage::Tls, _) => "; TLS is spliced, not opened",
                    _ => "",
                };
                format!("allowed by {}{how}", grant.rule())
            }
            Err(denial) => format!("denied: {denial}{}", to_allow(&denial, spec)),
        };
        output::data(&format!("  {way:<22}  {line}"))?;
    }
    if allowed {
        let then = match judge_address(&policy, &method, &target)? {
            Some(denial) => {
                allowed = false;
                format!("denied: {denial}{}", to_allow(&denial, spec))
            }
            None if matches!(host, Host::Address(_)) => "its address is public, or named by its rule".into(),
            None => "every address it resolves to must be public, or be named by its rule".into(),
        };
        output::data(&format!("  then                    {then}"))?;
    }
    Ok(u8::from(!allowed))
}

/// What the guard says of a host that is an address: it needs no resolver.
fn judge_address(policy: &Rules, method: &Method, target: &Target) -> Result<Option<Denial>, anyhow::Error> {
    if matches!(target.host(), Host::Name(_)) {
        return Ok(None);
    }
    let verdict = egress::check(&policy_check::gate(policy, Some(Vec::new()))?, method, &target.to_string())?;
    Ok(verdict.outcome.err())
}

fn to_allow(denial: &Denial, flags: &Spec) -> String {
    let told = |hint: &str| format!("\n{:26}to allow it: {}", "", hint::suited(hint, flags));
    denial.hint.as_deref().map(told).unwrap_or_default()
}

/// A URL; of a host with or without a port, the one that would be asked for.
pub(super) fn whole(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("{}://{text}/", scheme_of(text)) }
}

fn scheme_of(text: &str) -> &'static str {
    let port = text.rsplit_once(':').and_then(|(_, port)| Port::parse(port));
    if port.is_some_and(|p| p.number() == 80) { "http" } else { "https" }
}
