//! `lockgate policy`: what a run may do, without running anything.

use policy::{Asked, Carriage, Host, Method, Plane, Port, Target, View};

use super::spec::settings;
use super::{policy_check, policy_edit};
use crate::arguments::{Policy, Spec};
use crate::exit::{Done, Usage};
use crate::output::{self, Form};

pub(crate) fn policy(command: Policy) -> Done {
    match command {
        Policy::Init => policy_edit::init(),
        Policy::Allow { targets } => policy_edit::allow(&targets),
        Policy::Deny { targets, reason } => policy_edit::deny(&targets, reason.as_deref()),
        Policy::Approve => policy_edit::approve(),
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
    let policy = settings(spec)?.spec.policy;
    for (effect, name, reach) in policy.rules() {
        let line = match form {
            Form::Json => {
                serde_json::json!({"effect": effect, "rule": name.as_str(), "reach": reach}).to_string()
            }
            Form::Text => format!("{effect:<5}  {reach:<48}  {name}"),
        };
        output::data(&line)?;
    }
    if form == Form::Text {
        let rest = if policy.is_open() {
            "allow  everything else at public addresses"
        } else {
            "deny   everything else"
        };
        output::data(rest)?;
        for provider in policy.providers().filter(|provider| !provider.exposed().is_empty()) {
            output::data(&format!(
                "expose {:<48}  provider {}",
                provider.exposed().join(", "),
                provider.id()
            ))?;
        }
    }
    Ok(0)
}

/// What a target would meet on each plane: through the same `decide` that enforces.
fn explain(spec: &Spec, text: &str, method: &str) -> Done {
    let policy = settings(spec)?.spec.policy;
    let method = Method::parse(method)
        .ok_or_else(|| Usage::error(format!("`{method}` is not a method"), "as in GET"))?;
    let target = parse(text)?;
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
            Err(denial) => format!("denied: {denial}{}", hint(&denial)),
        };
        output::data(&format!("  {way:<22}  {line}"))?;
    }
    if allowed {
        output::data(
            "  then                    every address it resolves to must be public, or be named by its rule",
        )?;
    }
    Ok(u8::from(!allowed))
}

fn hint(denial: &policy::Denial) -> String {
    denial.hint.as_deref().map(|hint| format!("\n{:26}to allow it: {hint}", "")).unwrap_or_default()
}

/// A URL, or a host with a port, which then means HTTPS.
fn parse(text: &str) -> Result<Target, anyhow::Error> {
    let written =
        if text.contains("://") { text.to_owned() } else { format!("{}://{text}/", scheme_of(text)) };
    Target::parse(&written).map_err(|denial| {
        Usage::error(format!("`{}`: {denial}", output::plain(text)), "as in https://api.example.com/v1/")
    })
}

fn scheme_of(text: &str) -> &'static str {
    let port = text.rsplit_once(':').and_then(|(_, port)| Port::parse(port));
    if port.is_some_and(|p| p.number() == 80) { "http" } else { "https" }
}
