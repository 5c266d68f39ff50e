//! Applies one configuration layer to the run spec. Each value is parsed, or refused with the path of its field.

use std::sync::Arc;

use crate::choice::parse_field;
use crate::companion::Companion;
use crate::denial::MANAGED;
use crate::error::ConfigError;
use crate::hint::Hint;
use crate::inbound::Inbound;
use crate::layer::Layer;
use crate::limits::set_limits;
use crate::location::Location;
use crate::mounts::{self, CopyIn, MountMode, MountPoint};
use crate::origin::{Origin, parse};
use crate::pattern::{HostPattern, Width};
use crate::preset::{self, Preset};
use crate::provider::Provider;
use crate::provider_id::ProviderId;
use crate::proxy::{Proxies, Proxy, ProxyChoice};
use crate::rule::{AllowRule, DenyRule, RuleName};
use crate::rules::Policy;
use crate::spec::{RunSpec, Terminal};
use crate::variable::is_name;
use crate::written::{
    CompanionEgress, DenyConfig, EgressDefault, RunConfig, TerminalConfig, WorkspaceConfig,
};
use crate::{claim, label, name_network, setup};

pub(crate) fn apply(layer: &Layer, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let Layer { origin, config } = layer;
    let named = origin.to_string();
    if let Some(backend) = &config.backend {
        spec.backend = parse_field(&named, "backend", backend)?;
    }
    if let Some(wiring) = &config.wiring {
        spec.wiring = parse_field(&named, "wiring", wiring)?;
    }
    if let Some(network) = &config.name_addresses {
        spec.name_addresses = name_network::parse(&named, network)?;
    }
    if let Some(image) = &config.image {
        if image.is_empty() {
            let hint =
                "lockgate image ls names those that are here; leave it out for this machine's own files";
            return Err(ConfigError::new(&named, "image", "it is empty").with_hint(hint));
        }
        spec.image = Some(image.clone());
    }
    if let Some(directory) = &config.workdir {
        spec.directory = Some(mounts::target(directory).map_err(|e| ConfigError::new(&named, "workdir", e))?);
    }
    apply_workspace(&named, config, spec)?;
    apply_limits(origin, config, spec)?;
    if let Some(terminal) = config.terminal {
        spec.terminal = match terminal {
            TerminalConfig::Auto => Terminal::Auto,
            TerminalConfig::Always => Terminal::Always,
            TerminalConfig::Never => Terminal::Never,
        };
    }
    apply_env(&named, config, spec)?;
    spec.tools.extend(config.tools.iter().cloned());
    spec.builtin_tools.extend(config.builtin_tools.iter().cloned());
    if let Some(organisation) = &config.org {
        spec.organisation = Some(parse(origin, "org", organisation)?);
    }
    label::apply(&named, &config.labels, &mut spec.labels)?;
    apply_mounts(&named, config, spec)?;
    spec.spending.apply(&named, &config.llm)?;
    apply_egress(origin, config, spec)?;
    setup::apply(origin, &config.setup, &mut spec.setup)?;
    apply_companions(origin, config, spec)?;
    for (index, entry) in config.inbound.iter().enumerate() {
        spec.inbound.push(Inbound::compile(&named, index, entry)?);
    }
    Ok(())
}

/// Applies a layer's companions. A later layer's entry replaces an earlier one of the same name.
fn apply_companions(origin: &Origin, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let mut named: Vec<&str> = Vec::new();
    for (index, entry) in config.companion.iter().enumerate() {
        let field = format!("companion[{index}]");
        if named.contains(&entry.name.as_str()) {
            let problem = format!("there are two companions `{}`", entry.name);
            return Err(ConfigError::new(&origin.to_string(), format!("{field}.name"), problem));
        }
        named.push(&entry.name);
        let own = entry.egress.as_ref().map(CompanionEgress::as_of_a_run);
        let rules =
            own.map(|own| compile_egress(origin, &format!("{field}."), &own, &spec.policy)).transpose()?;
        let companion = Companion::compile(origin, index, entry, rules)?;
        spec.companions.retain(|known| known.name != companion.name);
        spec.companions.push(companion);
    }
    Ok(())
}

fn apply_workspace(origin: &str, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let (path, mode) = match &config.workspace {
        None => return Ok(()),
        Some(WorkspaceConfig::Path(path)) => (Some(path), None),
        Some(WorkspaceConfig::Table(table)) => {
            spec.open.extend(table.open.iter().map(Into::into));
            (table.path.as_ref(), table.mode.as_deref())
        }
    };
    if let Some(path) = path {
        spec.workspace =
            Some(mounts::source(path).map_err(|e| ConfigError::new(origin, "workspace.path", e))?);
    }
    if let Some(word) = mode {
        spec.workspace_mode = parse_field(origin, "workspace.mode", word)?;
    }
    Ok(())
}

pub(crate) fn apply_limits(
    origin: &Origin,
    config: &RunConfig,
    spec: &mut RunSpec,
) -> Result<(), ConfigError> {
    if let Some(text) = &config.timeout {
        spec.timeout = parse(origin, "timeout", text)?;
    }
    let limits = &config.limits;
    spec.limits_asked.add(limits);
    spec.disk_asked |= limits.disk.is_some();
    set_limits(origin, "limits", limits, &mut spec.limits)
}

fn apply_env(origin: &str, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let names = config.env.set.keys().chain(&config.env.pass);
    for name in names {
        if !is_name(name) {
            return Err(ConfigError::new(
                origin,
                "env",
                format!("`{}` is not a variable's name", name.escape_default()),
            ));
        }
    }
    for (name, value) in &config.env.set {
        if value.contains('\0') {
            return Err(ConfigError::new(origin, format!("env.set.{name}"), "a value cannot hold NUL"));
        }
        spec.env.set.retain(|(old, _)| old != name);
        spec.env.set.push((name.clone(), value.clone()));
    }
    spec.env.pass.extend(config.env.pass.iter().cloned());
    Ok(())
}

fn apply_mounts(origin: &str, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    for (index, mount) in config.mount.iter().enumerate() {
        let at = |field: &str, e: String| ConfigError::new(origin, format!("mount[{index}].{field}"), e);
        let mode =
            mount.mode.as_deref().map(|word| parse_field(origin, format!("mount[{index}].mode"), word));
        let mode = mode.transpose()?.unwrap_or(MountMode::ReadOnly);
        let source = mounts::source(&mount.source).map_err(|e| at("source", e))?;
        let target = match &mount.target {
            Some(target) => mounts::target(target).map_err(|e| at("target", e))?,
            // The same path inside; a `~` in it is replaced as in the source.
            None if mount.source.starts_with('~') => source.clone(),
            None => mounts::target(&mount.source).map_err(|e| at("target", e))?,
        };
        spec.mounts.push(MountPoint { source, target, mode });
    }
    for (index, copy) in config.copy.iter().enumerate() {
        let at = |field: &str, e: String| ConfigError::new(origin, format!("copy[{index}].{field}"), e);
        let source = mounts::source(&copy.source).map_err(|e| at("source", e))?;
        let target = mounts::target(&copy.target).map_err(|e| at("target", e))?;
        spec.copies.push(CopyIn { source, target });
    }
    Ok(())
}

fn apply_egress(origin: &Origin, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let rules = compile_egress(origin, "", config, &spec.policy)?;
    if let Some(status) = config.egress.denied_status {
        if !(400..=599).contains(&status) {
            let problem = format!("{status} is not an HTTP error status, 400 to 599");
            return Err(ConfigError::new(&origin.to_string(), "egress.denied_status", problem));
        }
        spec.policy.denied_status = status;
    }
    if matches!(origin, Origin::Project { .. }) {
        claim::refuse(&origin.to_string(), config, &spec.policy)?;
    }
    apply_proxies(origin, config, &mut spec.policy.proxies)?;
    spec.policy.scrub = config.egress.scrub.unwrap_or(spec.policy.scrub);
    let says_default = config.egress.default.is_some() || rules.default == EgressDefault::OpenInternet;
    if says_default {
        spec.policy.default = rules.default;
    }
    Arc::make_mut(&mut spec.policy.deny).extend(rules.deny.iter().cloned());
    spec.policy.allow.extend(rules.allow.iter().cloned());
    for provider in &rules.providers {
        if provider.may_be_in_the_clear() {
            spec.notices.push(format!(
                "the credential of `{}` may go over plain HTTP, where others can read it",
                provider.id()
            ));
        }
        // A later layer's entry replaces an earlier one of the same id.
        spec.policy.providers.retain(|known| known.id() != provider.id());
        spec.policy.providers.push(Arc::clone(provider));
    }
    refuse_shared_variable(origin, config, &spec.policy.providers)?;
    // The egress rules of a managed policy are a ceiling, not a starting point.
    if matches!(origin, Origin::Managed(_))
        && (says_default || !rules.allow.is_empty() || !rules.providers.is_empty())
    {
        spec.policy.ceiling = Some(Box::new(rules));
    }
    Ok(())
}

/// Refuses two providers with one variable: it holds one placeholder, and the other provider's would be nowhere.
fn refuse_shared_variable(
    origin: &Origin,
    config: &RunConfig,
    providers: &[Arc<Provider>],
) -> Result<(), ConfigError> {
    for (index, provider) in providers.iter().enumerate() {
        let earlier = &providers[..index];
        let of_another = |name: &&String| earlier.iter().find(|it| it.environment().contains(*name));
        let shared = provider.environment().iter().find_map(|name| Some((name, of_another(&name)?)));
        if let Some((name, other)) = shared {
            let own = config.provider.iter().position(|it| it.id == provider.id().as_str());
            let field = own.map_or("providers".to_owned(), |index| format!("provider[{index}].env"));
            let problem = format!("`{}` and `{}` both have the variable {name}", other.id(), provider.id());
            return Err(ConfigError::new(&origin.to_string(), field, problem)
                .with_hint("it can hold the placeholder of one alone: give one of them another `env`"));
        }
    }
    Ok(())
}

/// Compiles the egress rules of one layer: its presets first, then its own. `place` is their path in the layer, `known` the
/// result of the layers before.
fn compile_egress(
    origin: &Origin,
    place: &str,
    config: &RunConfig,
    known: &Policy,
) -> Result<Policy, ConfigError> {
    let named = origin.to_string();
    let mut rules = Policy::default();
    for (index, name) in config.presets.iter().enumerate() {
        let preset = Preset::named(name, &named, &format!("{place}presets[{index}]"))?;
        rules.default = preset.default.unwrap_or(rules.default);
        for allow in &preset.allow {
            let at = Location { origin: "preset", field: name, width: Width::AsWritten };
            rules.allow.push(AllowRule::compile(&at, allow, RuleName::new(format!("preset {name}")))?);
        }
    }
    rules.default = config.egress.default.unwrap_or(rules.default);
    rules.providers = compile_providers(&named, config, known)?;
    for (index, allow) in config.egress.allow.iter().enumerate() {
        let field = format!("{place}egress.allow[{index}]");
        let name = rule_name(origin, &field);
        rules.allow.push(AllowRule::compile(
            &Location { origin: &named, field: &field, width: Width::BelowPublicSuffix },
            allow,
            name,
        )?);
    }
    rules.deny = Arc::new(compile_denials(origin, place, config)?);
    Ok(rules)
}

/// Compiles the deny rules of one layer.
pub(crate) fn compile_denials(
    origin: &Origin,
    place: &str,
    config: &RunConfig,
) -> Result<Vec<DenyRule>, ConfigError> {
    let named = origin.to_string();
    let rule = |(index, deny): (usize, &DenyConfig)| {
        let field = format!("{place}egress.deny[{index}]");
        let at = Location { origin: &named, field: &field, width: Width::Closing };
        let rule = DenyRule::compile(&at, deny, rule_name(origin, &field))?;
        let remedy = Some(match origin {
            Origin::Managed(_) => Hint::from(MANAGED),
            _ => Hint::Edit("take that rule out of its file; no allow rule outweighs it".into()),
        });
        Ok(DenyRule { remedy, ..rule })
    };
    config.egress.deny.iter().enumerate().map(rule).collect()
}

/// Names a rule by its place.
fn rule_name(origin: &Origin, field: &str) -> RuleName {
    RuleName::new(match origin {
        Origin::Flags => format!("{field} on the command line"),
        origin => format!("{field} in {origin}"),
    })
}

/// Compiles a layer's providers: the built-in ones that it names, then those that it declares. A declared provider, of this layer
/// or of one before, is in force whether or not it is named as well: a name does not replace what a layer before means by it.
fn compile_providers(
    origin: &str,
    config: &RunConfig,
    known: &Policy,
) -> Result<Vec<Arc<Provider>>, ConfigError> {
    let mut providers: Vec<Arc<Provider>> = Vec::new();
    let is_in_force = |name: &str| match config.provider.iter().any(|own| own.id == name) {
        // Which of the two is meant, the layer itself has to say.
        true => !preset::is_provider(name),
        false => known.providers().any(|own| own.id().as_str() == name),
    };
    for (index, name) in config.providers.iter().enumerate() {
        if is_in_force(name) {
            continue;
        }
        let known = preset::provider(name, origin, &format!("providers[{index}]"))?;
        let at = Location { origin: "provider", field: name, width: Width::AsWritten };
        providers.push(Arc::new(Provider::compile(&at, &known)?));
    }
    for (index, own) in config.provider.iter().enumerate() {
        let field = format!("provider[{index}]");
        let at = Location { origin, field: &field, width: Width::OfCredential };
        let provider = Provider::compile(&at, own)?;
        if providers.iter().any(|known| known.id() == provider.id()) {
            return Err(at.error("id", format!("there are two providers `{}`", provider.id())));
        }
        providers.push(Arc::new(provider));
    }
    Ok(providers)
}

/// Adds a layer's proxies. Any layer may declare them, and the last choice wins. S0.54
fn apply_proxies(origin: &Origin, config: &RunConfig, proxies: &mut Proxies) -> Result<(), ConfigError> {
    let named = origin.to_string();
    for (index, declared) in config.proxy.iter().enumerate() {
        let field = format!("proxy[{index}]");
        let at = Location { origin: &named, field: &field, width: Width::AsWritten };
        let proxy = Proxy::compile(&at, declared)?;
        if config.proxy[..index].iter().any(|before| before.id == proxy.id) {
            return Err(at.error("id", format!("there are two proxies `{}`", proxy.id.escape_default())));
        }
        // The credential of a proxy from a variable has a name that no file can use.
        if let Some(name) = &declared.credential
            && !matches!(origin, Origin::Variable(_))
        {
            ProviderId::given(name).map_err(|why| at.error("credential", why))?;
        }
        proxies.declared.retain(|known| known.id != proxy.id);
        let proxy = Arc::new(proxy);
        // It was chosen by its name, and what that names is replaced.
        if let ProxyChoice::Through(chosen) = &mut proxies.chosen
            && chosen.id == proxy.id
        {
            *chosen = Arc::clone(&proxy);
        }
        proxies.declared.push(proxy);
    }
    for (index, host) in config.egress.no_proxy.iter().enumerate() {
        let bad = |why| ConfigError::new(&named, format!("egress.no_proxy[{index}]"), why);
        // As wide as a deny rule: past the proxy, nothing is allowed that the policy does not allow.
        proxies.direct.push(HostPattern::parse_within(host, Width::Closing).map_err(bad)?);
    }
    match config.egress.proxy.as_deref() {
        None => {}
        Some("direct") => proxies.chosen = ProxyChoice::Direct,
        Some(id) => {
            let known = proxies.declared.iter().find(|proxy| proxy.id == id).cloned();
            proxies.chosen = ProxyChoice::Through(known.ok_or_else(|| {
                let names: Vec<&str> = proxies.declared.iter().map(|proxy| proxy.id.as_str()).collect();
                let hint = match names.as_slice() {
                    [] => "none is declared; a proxy is a [[proxy]] of the policy file".to_owned(),
                    names => format!(
                        "the proxies are {}; another is a [[proxy]] of the policy file",
                        names.join(", ")
                    ),
                };
                ConfigError::new(&named, "egress.proxy", format!("there is no proxy `{id}`")).with_hint(hint)
            })?);
        }
    }
    Ok(())
}
