//! Companions: the services a command needs beside it, each an image in a sandbox of its own, reached by its name.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::apply::{limits_of, parse};
use crate::asked::{Asked, View};
use crate::config::{AllowConfig, DenyConfig, EgressConfig, EgressDefault, LimitsConfig, Number, RunConfig};
use crate::decide::Carriage;
use crate::denial::{Denial, Guard};
use crate::error::ConfigError;
use crate::hostname::{Host, Hostname};
use crate::inbound::refuse_unservable;
use crate::layer::Origin;
use crate::pattern::is_reserved;
use crate::quantity::Span;
use crate::reach::compile_ports;
use crate::rule::{At, Policy, RuleName};
use crate::spec::{Backend, Limits, RunSpec};
use crate::target::Port;

/// How many companions a run may have: each is a sandbox, a sidecar and their memory.
const MOST: usize = 16;
/// The longest name: it is a label of a host's name, and part of the names of files.
const LONGEST_NAME: usize = 32;
/// How long a companion may take to become healthy unless it says otherwise, and at most.
const PATIENCE: Span = Span::from_secs(60);
const MOST_PATIENCE: Span = Span::from_secs(600);

/// `[[companion]]`: a service beside the command, from an image of its own.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CompanionConfig {
    /// The name by which the command reaches it: one label, as in `db`.
    pub name: String,
    /// The image, by its name in the store.
    pub image: String,
    /// Its command; the image's own if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Variables of its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The TCP ports that may be reached. Others are refused.
    pub ports: Vec<u16>,
    /// When it counts as healthy; when every port accepts a connection if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthConfig>,
    /// What it may use up, beside what the command may.
    #[serde(default, skip_serializing_if = "ResourcesConfig::is_empty")]
    pub resources: ResourcesConfig,
    /// Where its own requests may go; where the command's may, without credentials, if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<CompanionEgress>,
}

/// `resources`: what a companion may use up.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct ResourcesConfig {
    /// Memory, swap included, as in `512MiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Processors, as in `2` or `0.5`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Number>,
    /// Processes and threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// What may be written over its image, as in `1GiB`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
}

impl ResourcesConfig {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn as_limits(&self) -> LimitsConfig {
        let Self { memory, cpus, pids, disk } = self.clone();
        LimitsConfig { memory, cpus, pids, disk, enforce: None }
    }
}

/// `[companion.egress]`: the rules of a companion that has its own.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct CompanionEgress {
    /// Named groups of rules that ship with the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub presets: Vec<String>,
    /// What happens to a host that no rule names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<EgressDefault>,
    /// What is allowed. An empty list allows nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<AllowConfig>,
    /// What is denied whatever is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<DenyConfig>,
}

impl CompanionEgress {
    /// The same as the part of a policy file that is about a run's own requests.
    pub(crate) fn as_of_a_run(&self) -> RunConfig {
        let Self { presets, default, allow, deny } = self.clone();
        let egress = EgressConfig { default, allow, deny, ..EgressConfig::default() };
        RunConfig { presets, egress, ..RunConfig::default() }
    }
}

/// `health`: when a companion counts as healthy.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct HealthConfig {
    /// A command that is run in the companion until it exits with 0; every port must accept a connection if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// How long it may take, as in `60s`, which is the default; `10m` at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}

/// A service beside the command, compiled.
#[derive(Clone, Debug)]
pub struct Companion {
    /// The name by which it is reached.
    pub name: Hostname,
    /// Its image, by its name in the store.
    pub image: String,
    /// Its command, where it is not the image's own.
    pub command: Option<Vec<String>>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// The ports that may be reached.
    pub ports: Vec<Port>,
    /// The command that tells whether it is healthy, where the ports alone do not.
    pub probe: Option<Vec<String>>,
    /// How long it may take to become healthy.
    pub patience: Span,
    /// What it may use up.
    pub limits: Limits,
    /// Whether that was asked for, so that a host that cannot hold it refuses the run.
    pub limits_asked: bool,
    /// Where its own requests may go.
    pub policy: Policy,
    /// Whether it has rules of its own.
    pub(crate) own_rules: bool,
}

/// What a policy knows of a companion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Beside {
    pub(crate) name: Hostname,
    pub(crate) ports: Vec<Port>,
}

impl Companion {
    /// Compiles one entry; `rules` are those of its own egress, where it has them.
    pub(crate) fn compile(
        origin: &Origin,
        index: usize,
        config: &CompanionConfig,
        rules: Option<Policy>,
    ) -> Result<Self, ConfigError> {
        let named = origin.to_string();
        let field = format!("companion[{index}]");
        let at = At { origin: &named, field: &field, width: crate::pattern::Width::BelowPublicSuffix };
        let name = name(&config.name).map_err(|why| at.error("name", why))?;
        if config.image.is_empty() {
            return Err(at
                .error("image", "name an image")
                .with_hint("`lockgate image ls` shows those that are here"));
        }
        if config.ports.is_empty() {
            return Err(at.error("ports", "name at least one: a companion is reached by its ports alone"));
        }
        let ports = compile_ports(&at, &config.ports)?;
        ports.iter().try_for_each(|port| refuse_unservable(&at, "ports", *port))?;
        let health = config.health.clone().unwrap_or_default();
        for (field, command) in [("command", &config.command), ("health.command", &health.command)] {
            let wrong =
                |c: &Vec<String>| c.is_empty() || c[0].is_empty() || c.iter().any(|p| p.contains('\0'));
            if command.as_ref().is_some_and(wrong) {
                return Err(at.error(field, "write it as [\"PROGRAM\", \"ARGUMENT\", …]"));
            }
        }
        let patience = match &health.within {
            None => PATIENCE,
            Some(text) => parse(origin, &format!("{field}.health.within"), text)?,
        };
        if patience > MOST_PATIENCE {
            return Err(at.error("health.within", format!("{patience} is longer than {MOST_PATIENCE}")));
        }
        for (name, value) in &config.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return Err(at.error("env", format!("`{}` is not a variable", name.escape_default())));
            }
        }
        Ok(Self {
            name,
            image: config.image.clone(),
            command: config.command.clone(),
            env: config.env.clone().into_iter().collect(),
            ports,
            probe: health.command,
            patience,
            limits: limits_of(origin, &format!("{field}.resources"), &config.resources.as_limits())?,
            limits_asked: !config.resources.is_empty(),
            own_rules: rules.is_some(),
            policy: rules.unwrap_or_default(),
        })
    }
}

/// A name that can be a host's, is nobody else's, and leads nowhere else.
fn name(text: &str) -> Result<Hostname, String> {
    let name = Hostname::parse(text).map_err(|why| format!("`{text}`: {why}"))?;
    if name.as_str().contains('.') || text.len() > LONGEST_NAME || name.as_str() != text {
        return Err(format!(
            "`{text}` must be one label of lower-case letters, digits and `-`, at most {LONGEST_NAME}"
        ));
    }
    // The last is what a sandbox calls itself.
    if is_reserved(&name) || name.as_str() == "lockgate" {
        return Err(format!("`{text}` already means something in a sandbox"));
    }
    Ok(name)
}

/// Once every layer has spoken: a companion without rules of its own has the command's, and none has its credentials. Those
/// before it are within its reach.
pub(crate) fn settle(spec: &mut RunSpec) -> Result<(), ConfigError> {
    if spec.companions.is_empty() {
        return Ok(());
    }
    let refuse = |problem: String| ConfigError::new("the run", "companion", problem);
    if spec.backend == Backend::Process {
        return Err(refuse(format!("backend `{}` has no companions", spec.backend))
            .with_hint("use `linux`, `container` or `docker`"));
    }
    if spec.companions.len() > MOST {
        return Err(refuse(format!("there are {}, and a run has {MOST} at most", spec.companions.len())));
    }
    let mut beside = Vec::new();
    for companion in &mut spec.companions {
        let rules = match companion.own_rules {
            true => Policy { ceiling: spec.policy.ceiling.clone(), ..companion.policy.clone() },
            false => spec.policy.clone(),
        };
        companion.policy = Policy { providers: Vec::new(), companions: beside.clone(), ..rules };
        beside.push(Beside { name: companion.name.clone(), ports: companion.ports.clone() });
    }
    spec.policy.companions = beside;
    Ok(())
}

impl Policy {
    /// The companion of a name, and what its rule is called.
    pub(crate) fn companion_of(&self, name: &Hostname) -> Option<(&Beside, RuleName)> {
        let found = self.companions.iter().find(|companion| companion.name == *name)?;
        Some((found, RuleName::new(format!("companion {name}"))))
    }

    /// Whether what is asked for is a companion, and then how far it goes. Its ports alone decide: it is part of the sandbox, and
    /// what it may do outside is for its own policy to say.
    pub(crate) fn decide_companion(&self, asked: &Asked) -> Option<Result<(RuleName, Carriage), Denial>> {
        let Host::Name(name) = &asked.host else { return None };
        let (companion, rule) = self.companion_of(name)?;
        if !companion.ports.contains(&asked.port) {
            let list: Vec<String> = companion.ports.iter().map(ToString::to_string).collect();
            let reason = format!("port {} of the companion is not among {}", asked.port, list.join(", "));
            let denial = Denial::new(Guard::Port, reason).with_rule(rule.as_str());
            return Some(Err(denial.with_hint("name it in the `ports` of that [[companion]]")));
        }
        let carriage = match asked.view {
            View::Request { .. } => Carriage::Request,
            View::Tls | View::Opaque => Carriage::Any,
        };
        Some(Ok((rule, carriage)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Layers, Method, Plane, RunConfig, Target};

    fn compiled(text: &str) -> Result<RunSpec, ConfigError> {
        let config: RunConfig = toml::from_str(text).unwrap();
        let mut layers = Layers::default();
        layers.push(Origin::Flags, config);
        layers.compile()
    }

    const DB: &str = "[[companion]]\nname = \"db\"\nimage = \"postgres\"\nports = [5432]\n";

    fn asked(host: &str, port: u16) -> Asked {
        let host = Host::parse(host).unwrap();
        Asked::connection(Plane::Transparent, host, Port::new(port).unwrap(), View::Opaque)
    }

    #[test]
    fn a_companion_is_reached_at_its_ports_and_nowhere_else() {
        let spec = compiled(DB).unwrap();
        let grant = spec.policy.decide(&asked("db", 5432)).unwrap();
        assert_eq!((grant.rule().as_str(), grant.carriage()), ("companion db", Carriage::Any));
        assert!(grant.is_companion());
        assert_eq!(spec.policy.decide(&asked("db", 22)).unwrap_err().guard, Guard::Port);
        for other in ["db.example.com", "dbx", "127.0.0.1", "198.18.0.1"] {
            assert!(spec.policy.decide(&asked(other, 5432)).is_err(), "{other}");
        }
        assert!(spec.policy.decide_name(&Hostname::parse("db").unwrap()).is_ok());
        let target = Target::parse("http://db:5432/x").unwrap();
        let request = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
        assert_eq!(spec.policy.decide(&request).unwrap().carriage(), Carriage::Request);
    }

    #[test]
    fn a_deny_rule_beats_a_companion() {
        let spec = compiled(&format!("{DB}[[egress.deny]]\nhost = \"db\"\n")).unwrap();
        assert_eq!(spec.policy.decide(&asked("db", 5432)).unwrap_err().guard, Guard::DenyRule);
    }

    #[test]
    fn what_it_may_do_is_the_commands_or_its_own_and_never_a_credential() {
        let rules = "providers = [\"github\"]\n[egress]\nallow = [{ host = \"a.example.com\" }]\n";
        let own = "[companion.egress]\nallow = [{ host = \"b.example.com\" }]\n";
        let spec = compiled(&format!("{rules}{DB}")).unwrap();
        let db = &spec.companions[0].policy;
        assert!(db.decide(&asked("a.example.com", 443)).is_ok());
        assert!(db.decide(&asked("api.github.com", 443)).is_err() && db.providers().next().is_none());
        assert!(db.decide(&asked("db", 5432)).is_err());
        let spec = compiled(&format!("{rules}{DB}{own}")).unwrap();
        let db = &spec.companions[0].policy;
        assert!(db.decide(&asked("a.example.com", 443)).is_err());
        assert!(db.decide(&asked("b.example.com", 443)).is_ok());
        assert!(spec.policy.decide(&asked("b.example.com", 443)).is_err());
    }

    #[test]
    fn one_reaches_those_before_it() {
        let web = DB.replace("\"db\"", "\"web\"").replace("5432", "8080");
        let spec = compiled(&format!("{DB}{web}")).unwrap();
        assert!(spec.companions[1].policy.decide(&asked("db", 5432)).is_ok());
        assert!(spec.companions[0].policy.decide(&asked("web", 8080)).is_err());
    }

    #[test]
    fn a_managed_policy_bounds_what_a_companion_opens() {
        let managed: RunConfig = toml::from_str("[egress]\nallow = [{ host = \"a.example.com\" }]").unwrap();
        let own =
            "[companion.egress]\nallow = [{ host = \"a.example.com\" }, { host = \"b.example.com\" }]\n";
        let run: RunConfig = toml::from_str(&format!("{DB}{own}")).unwrap();
        let mut layers = Layers::default();
        layers.push(Origin::Managed("managed".into()), managed);
        layers.push(Origin::Flags, run);
        let spec = layers.compile().unwrap();
        assert!(spec.companions[0].policy.decide(&asked("a.example.com", 443)).is_ok());
        let denial = spec.companions[0].policy.decide(&asked("b.example.com", 443)).unwrap_err();
        assert_eq!(denial.guard, Guard::Managed);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rows = [
            (DB.replace("\"db\"", "\"a.b\""), "companion[0].name"),
            (DB.replace("\"db\"", "\"DB\""), "companion[0].name"),
            (DB.replace("\"db\"", "\"sidecar\""), "companion[0].name"),
            (DB.replace("\"db\"", "\"localhost\""), "companion[0].name"),
            (DB.replace("5432", ""), "companion[0].ports"),
            (DB.replace("5432", "0"), "companion[0].ports"),
            (DB.replace("5432", "80"), "companion[0].ports"),
            (DB.replace("5432", "41999"), "companion[0].ports"),
            (DB.replace("\"db\"", "\"lockgate\""), "companion[0].name"),
            (DB.replace("postgres", ""), "companion[0].image"),
            (format!("{DB}command = []\n"), "companion[0].command"),
            (format!("{DB}health = {{ command = [\"\"] }}\n"), "companion[0].health.command"),
            (format!("{DB}health = {{ within = \"11m\" }}\n"), "companion[0].health.within"),
            (format!("{DB}env = {{ \"A=B\" = \"c\" }}\n"), "companion[0].env"),
            (format!("{DB}resources = {{ memory = \"1KiB\" }}\n"), "companion[0].resources.memory"),
            (format!("{DB}{DB}"), "companion[1].name"),
            (format!("backend = \"process\"\n{DB}"), "companion"),
        ];
        for (text, field) in rows {
            assert_eq!(compiled(&text).unwrap_err().field, field, "{text}");
        }
        assert_eq!(compiled(DB).unwrap().backend, Backend::Linux);
    }
}
