//! Layers of configuration, merged in order and compiled into one [`RunSpec`].
//!
//! ```text
//! managed ─► user ─► project ─► environment ─► flags      a later layer overrides a value, and adds to a list
//! ```
//! Two layers are special. Nothing can widen a *managed* policy: its limits are ceilings, and what its rules do not
//! allow stays closed. A *project's* file is untrusted: until the person has approved its exact content it may only
//! narrow, and one that would widen refuses the run by name instead of being half obeyed.

use std::fmt;

use crate::config::{EgressDefault, RunConfig, TerminalConfig, WorkspaceConfig};
use crate::error::ConfigError;
use crate::place::{self, CopyIn, MountMode, MountPoint, WorkspaceMode};
use crate::preset::Preset;
use crate::quantity::Span;
use crate::rule::{AllowRule, At, DenyRule, Policy, RuleName};
use crate::spec::{Backend, Enforcement, RunSpec, TIMEOUT_CEILING, Terminal};

/// Where a layer came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The machine's managed policy, by its path.
    Managed(String),
    /// The person's own configuration, by its path.
    User(String),
    /// A project's file, and whether the person has approved its exact content.
    Project {
        /// The path of the file.
        path: String,
        /// Whether this content was approved.
        approved: bool,
    },
    /// A file named with `--policy`.
    Named(String),
    /// `LOCKGATE_*` variables.
    Environment,
    /// Command-line flags.
    Flags,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed(path) | Self::User(path) | Self::Project { path, .. } | Self::Named(path) => {
                f.write_str(path)
            }
            Self::Environment => f.write_str("environment"),
            Self::Flags => f.write_str("command line"),
        }
    }
}

/// One layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Where it came from.
    pub origin: Origin,
    /// What it says.
    pub config: RunConfig,
}

/// The layers of a run, in order of increasing precedence.
#[derive(Clone, Debug, Default)]
pub struct Layers(Vec<Layer>);

/// A value and the layer that had the last word on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The path of the field.
    pub field: String,
    /// Its value, as text.
    pub value: String,
    /// The layer that gave it.
    pub origin: String,
}

impl Layers {
    /// Adds a layer on top.
    pub fn push(&mut self, origin: Origin, config: RunConfig) {
        self.0.push(Layer { origin, config });
    }

    /// Merges and compiles all layers.
    ///
    /// # Errors
    /// The first value that is wrong, with the layer and the field it stands in.
    pub fn compile(&self) -> Result<RunSpec, ConfigError> {
        let mut spec = RunSpec {
            backend: Backend::Linux,
            workspace: None,
            workspace_mode: WorkspaceMode::ReadWrite,
            timeout: TIMEOUT_CEILING,
            terminal: Terminal::Auto,
            limits: crate::Limits::default(),
            limits_asked: false,
            env: crate::EnvSpec::default(),
            mounts: Vec::new(),
            copies: Vec::new(),
            tools: Vec::new(),
            policy: Policy::default(),
            notices: Vec::new(),
        };
        for layer in &self.0 {
            refuse_unapproved(layer, &spec)?;
            apply(layer, &mut spec)?;
        }
        for layer in &self.0 {
            hold_to_managed(layer, &mut spec)?;
        }
        clamp_timeout(self.ceiling()?, &mut spec);
        Ok(spec)
    }

    /// Every field that some layer gives, with its value and the layer that gave it.
    #[must_use]
    pub fn origins(&self) -> Vec<Merged> {
        let mut rows: Vec<Merged> = Vec::new();
        for layer in &self.0 {
            let Ok(toml::Value::Table(table)) = toml::Value::try_from(&layer.config) else { continue };
            flatten("", &toml::Value::Table(table), &mut |field, value, list| {
                let row = Merged {
                    field: field.into(),
                    value: value.to_string(),
                    origin: layer.origin.to_string(),
                };
                match rows.iter_mut().find(|r| r.field == row.field && !list) {
                    Some(old) => *old = row,
                    None => rows.push(row),
                }
            });
        }
        rows
    }

    /// The managed timeout, or the product's own ceiling.
    fn ceiling(&self) -> Result<Span, ConfigError> {
        let managed = self.0.iter().find(|l| matches!(l.origin, Origin::Managed(_)));
        match managed.and_then(|l| l.config.timeout.as_ref().map(|text| (l, text))) {
            Some((layer, text)) => parse(&layer.origin, "timeout", text),
            None => Ok(TIMEOUT_CEILING),
        }
    }
}

/// Calls `row` for each leaf and each list entry below `value`.
fn flatten(path: &str, value: &toml::Value, row: &mut impl FnMut(&str, &toml::Value, bool)) {
    match value {
        toml::Value::Table(table) => {
            for (key, inner) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, inner, row);
            }
        }
        toml::Value::Array(entries) => entries.iter().for_each(|entry| row(path, entry, true)),
        leaf => row(path, leaf, false),
    }
}

fn clamp_timeout(ceiling: Span, spec: &mut RunSpec) {
    if spec.timeout > ceiling {
        spec.notices.push(format!(
            "timeout {} is longer than the ceiling; the run ends after {ceiling}",
            spec.timeout
        ));
        spec.timeout = ceiling;
    }
}

/// Refuses a project's file that would widen anything before the person has approved it.
fn refuse_unapproved(layer: &Layer, so_far: &RunSpec) -> Result<(), ConfigError> {
    let Origin::Project { path, approved: false } = &layer.origin else { return Ok(()) };
    let wider = widenings(&layer.config, so_far)?;
    if wider.is_empty() {
        return Ok(());
    }
    Err(ConfigError::new(
        path,
        wider.join(", "),
        "a project's file may widen a run only once you have approved it",
    )
    .with_hint("read it, then run `lockgate policy approve`; or leave it out with `--no-project`"))
}

/// The fields of a project's file that give the run more than it has.
fn widenings(config: &RunConfig, so_far: &RunSpec) -> Result<Vec<&'static str>, ConfigError> {
    let mut asked = RunSpec { policy: Policy::default(), ..so_far.clone() };
    let origin = Origin::Named("project".into());
    apply_limits(&origin, config, &mut asked)?;
    let more = asked.limits.memory > so_far.limits.memory
        || asked.limits.cpus > so_far.limits.cpus
        || asked.limits.pids > so_far.limits.pids
        || asked.limits.disk > so_far.limits.disk
        || (asked.limits.enforcement == Enforcement::BestEffort
            && so_far.limits.enforcement == Enforcement::Required);
    let workspace = match &config.workspace {
        Some(WorkspaceConfig::Path(_)) => true,
        Some(WorkspaceConfig::Table(table)) => table.path.is_some() || table.mode.as_deref() == Some("rw"),
        None => false,
    };
    let egress = &config.egress;
    let rows = [
        (config.backend.as_deref().is_some_and(|b| b != "linux"), "backend"),
        (workspace, "workspace"),
        (asked.timeout > so_far.timeout, "timeout"),
        (!config.presets.is_empty(), "presets"),
        (!config.tools.is_empty(), "tools"),
        (more, "limits"),
        (!config.env.set.is_empty(), "env.set"),
        (!config.env.pass.is_empty(), "env.pass"),
        (!config.mount.is_empty(), "mount"),
        (!config.copy.is_empty(), "copy"),
        (egress.default == Some(EgressDefault::OpenInternet), "egress.default"),
        (!egress.allow.is_empty(), "egress.allow"),
        (egress.denied_status.is_some(), "egress.denied_status"),
    ];
    Ok(rows.into_iter().filter_map(|(wider, name)| wider.then_some(name)).collect())
}

fn apply(layer: &Layer, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let Layer { origin, config } = layer;
    let named = origin.to_string();
    if let Some(backend) = &config.backend {
        spec.backend = parse_backend(&named, backend)?;
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
    apply_places(&named, config, spec)?;
    apply_egress(origin, config, spec)
}

fn parse_backend(origin: &str, text: &str) -> Result<Backend, ConfigError> {
    match text {
        "linux" => Ok(Backend::Linux),
        "process" | "none" => Ok(Backend::Process),
        other => {
            Err(ConfigError::new(origin, "backend", format!("`{other}` is not a backend of this version"))
                .with_hint("the backends are `linux` and `process`"))
        }
    }
}

fn apply_workspace(origin: &str, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let (path, mode) = match &config.workspace {
        None => return Ok(()),
        Some(WorkspaceConfig::Path(path)) => (Some(path), None),
        Some(WorkspaceConfig::Table(table)) => (table.path.as_ref(), table.mode.as_deref()),
    };
    if let Some(path) = path {
        spec.workspace =
            Some(place::source(path).map_err(|e| ConfigError::new(origin, "workspace.path", e))?);
    }
    spec.workspace_mode = match mode {
        None => spec.workspace_mode,
        Some("rw") => WorkspaceMode::ReadWrite,
        Some("ro") => WorkspaceMode::ReadOnly,
        Some(other) => {
            return Err(ConfigError::new(origin, "workspace.mode", format!("`{other}` is not `rw` or `ro`")));
        }
    };
    Ok(())
}

fn parse<T: std::str::FromStr<Err: fmt::Display>>(
    origin: &Origin,
    field: &str,
    text: &str,
) -> Result<T, ConfigError> {
    text.parse().map_err(|e: T::Err| ConfigError::new(&origin.to_string(), field, e))
}

fn apply_limits(origin: &Origin, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let limits = &config.limits;
    if let Some(text) = &config.timeout {
        spec.timeout = parse(origin, "timeout", text)?;
    }
    if let Some(text) = &limits.memory {
        spec.limits.memory = parse(origin, "limits.memory", text)?;
    }
    if let Some(number) = &limits.cpus {
        spec.limits.cpus = parse(origin, "limits.cpus", &number.text())?;
    }
    if let Some(text) = &limits.disk {
        spec.limits.disk = parse(origin, "limits.disk", text)?;
    }
    if let Some(pids) = limits.pids {
        spec.limits.pids = pids;
    }
    spec.limits_asked |= limits.memory.is_some() || limits.cpus.is_some() || limits.pids.is_some();
    match limits.enforce.as_deref() {
        None => {}
        Some("required") => spec.limits.enforcement = Enforcement::Required,
        Some("best-effort") => spec.limits.enforcement = Enforcement::BestEffort,
        Some(other) => {
            let problem = format!("`{other}` is not `required` or `best-effort`");
            return Err(ConfigError::new(&origin.to_string(), "limits.enforce", problem));
        }
    }
    refuse_too_small(&origin.to_string(), spec)
}

/// A sandbox needs room for its own first processes.
fn refuse_too_small(origin: &str, spec: &RunSpec) -> Result<(), ConfigError> {
    const LEAST_MEMORY: u64 = 4 << 20;
    const LEAST_PIDS: u32 = 2;
    const LEAST_DISK: u64 = 64 << 10;
    let small = |field: &str, given: String, least: &str| {
        Err(ConfigError::new(
            origin,
            field,
            format!("{given} is too small to start in; give at least {least}"),
        ))
    };
    if spec.limits.memory.bytes() < LEAST_MEMORY {
        return small("limits.memory", spec.limits.memory.to_string(), "4MiB");
    }
    if spec.limits.pids < LEAST_PIDS {
        return small("limits.pids", spec.limits.pids.to_string(), "2");
    }
    if spec.limits.disk.bytes() < LEAST_DISK {
        return small("limits.disk", spec.limits.disk.to_string(), "64KiB");
    }
    Ok(())
}

fn apply_env(origin: &str, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let names = config.env.set.keys().chain(&config.env.pass);
    for name in names {
        if name.is_empty() || name.contains(['=', '\0']) {
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

fn apply_places(origin: &str, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    for (index, mount) in config.mount.iter().enumerate() {
        let at = |field: &str, e: String| ConfigError::new(origin, format!("mount[{index}].{field}"), e);
        let mode = match mount.mode.as_deref() {
            None | Some("ro") => MountMode::ReadOnly,
            Some("rw") => MountMode::ReadWrite,
            Some(other) => return Err(at("mode", format!("`{other}` is not `ro` or `rw`"))),
        };
        let source = place::source(&mount.source).map_err(|e| at("source", e))?;
        let target = mount.target.as_ref().unwrap_or(&mount.source);
        let target = place::target(target).map_err(|e| at("target", e))?;
        spec.mounts.push(MountPoint { source, target, mode });
    }
    for (index, copy) in config.copy.iter().enumerate() {
        let at = |field: &str, e: String| ConfigError::new(origin, format!("copy[{index}].{field}"), e);
        let source = place::source(&copy.source).map_err(|e| at("source", e))?;
        let target = place::target(&copy.target).map_err(|e| at("target", e))?;
        spec.copies.push(CopyIn { source, target });
    }
    Ok(())
}

fn apply_egress(origin: &Origin, config: &RunConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let rules = compile_egress(origin, config)?;
    if let Some(status) = config.egress.denied_status {
        if !(400..=599).contains(&status) {
            let problem = format!("{status} is not an HTTP error status, 400 to 599");
            return Err(ConfigError::new(&origin.to_string(), "egress.denied_status", problem));
        }
        spec.policy.denied_status = status;
    }
    let says_default = config.egress.default.is_some() || rules.default == EgressDefault::OpenInternet;
    if says_default {
        spec.policy.default = rules.default;
    }
    spec.policy.deny.extend(rules.deny.iter().cloned());
    spec.policy.allow.extend(rules.allow.iter().cloned());
    // A managed policy that speaks of egress is a ceiling, not a starting point.
    if matches!(origin, Origin::Managed(_)) && (says_default || !rules.allow.is_empty()) {
        spec.policy.ceiling = Some(Box::new(rules));
    }
    Ok(())
}

/// The rules of one layer: its presets first, then its own.
fn compile_egress(origin: &Origin, config: &RunConfig) -> Result<Policy, ConfigError> {
    let named = origin.to_string();
    let mut rules = Policy::default();
    for (index, name) in config.presets.iter().enumerate() {
        let preset = Preset::named(name, &named, &format!("presets[{index}]"))?;
        rules.default = preset.default.unwrap_or(rules.default);
        for allow in &preset.allow {
            let at = At { origin: "preset", field: name };
            rules.allow.push(AllowRule::compile(&at, allow, RuleName::new(format!("preset {name}")))?);
        }
    }
    rules.default = config.egress.default.unwrap_or(rules.default);
    for (index, allow) in config.egress.allow.iter().enumerate() {
        let field = format!("egress.allow[{index}]");
        let name = RuleName::new(format!("{field} in {named}"));
        rules.allow.push(AllowRule::compile(&At { origin: &named, field: &field }, allow, name)?);
    }
    for (index, deny) in config.egress.deny.iter().enumerate() {
        let field = format!("egress.deny[{index}]");
        let name = RuleName::new(format!("{field} in {named}"));
        rules.deny.push(DenyRule::compile(&At { origin: &named, field: &field }, deny, name)?);
    }
    Ok(rules)
}

/// Brings the merged spec back under the limits of a managed layer.
fn hold_to_managed(layer: &Layer, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let Origin::Managed(path) = &layer.origin else { return Ok(()) };
    let mut most = RunSpec { policy: Policy::default(), notices: Vec::new(), ..spec.clone() };
    apply_limits(&layer.origin, &layer.config, &mut most)?;
    let wish = spec.limits.clone();
    spec.limits.memory = wish.memory.min(most.limits.memory);
    spec.limits.cpus = wish.cpus.min(most.limits.cpus);
    spec.limits.pids = wish.pids.min(most.limits.pids);
    spec.limits.disk = wish.disk.min(most.limits.disk);
    if layer.config.limits.enforce.as_deref() == Some("required") {
        spec.limits.enforcement = Enforcement::Required;
    }
    if spec.limits != wish {
        spec.notices.push(format!("limits are held to those of {path}"));
    }
    if let Some(backend) = &layer.config.backend {
        let managed = parse_backend(path, backend)?;
        if managed != spec.backend {
            let problem =
                format!("this machine's policy is `{managed}`, and `{}` was asked for", spec.backend);
            return Err(ConfigError::new(path, "backend", problem));
        }
    }
    Ok(())
}
