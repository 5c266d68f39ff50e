//! Companions: service containers beside the command, each with its own sandbox and reached by name.

use std::collections::BTreeMap;

use crate::error::ConfigError;
use crate::hostname::Hostname;
use crate::inbound::refuse_unservable;
use crate::limits::{Limits, LimitsAsked, limits_of};
use crate::location::Location;
use crate::origin::{Origin, parse};
use crate::pattern::is_reserved;
use crate::quantity::Span;
use crate::reach::compile_ports;
use crate::rules::Policy;
use crate::target::Port;
use crate::variable::is_name;
use crate::written::CompanionConfig;

/// The longest name: it is a DNS label and part of file names.
const LONGEST_NAME: usize = 32;
/// The default and the longest time that a companion may take to become healthy.
const PATIENCE: Span = Span::from_secs(60);
const MOST_PATIENCE: Span = Span::from_secs(600);

/// A compiled companion.
#[derive(Clone, Debug)]
pub struct Companion {
    /// The host name by which it is reached.
    pub name: Hostname,
    /// Its image, by its name in the store.
    pub image: String,
    /// Its command, if not the image's own.
    pub command: Option<Vec<String>>,
    /// Its environment.
    pub env: Vec<(String, String)>,
    /// The ports that may be reached.
    pub ports: Vec<Port>,
    /// The health check command, if open ports are not enough.
    pub probe: Option<Vec<String>>,
    /// How long it may take to become healthy.
    pub patience: Span,
    /// Its resource limits.
    pub limits: Limits,
    /// The limits that were set explicitly: a host that cannot enforce one of them refuses the run.
    pub limits_asked: LimitsAsked,
    /// Whether the disk size was set explicitly.
    pub disk_asked: bool,
    /// The policy for its own requests.
    pub policy: Policy,
    /// Whether it has rules of its own.
    pub(crate) own_rules: bool,
}

impl Companion {
    /// Returns whether its requests are decided by its own rules instead of the run's.
    #[must_use]
    pub fn has_own_rules(&self) -> bool {
        self.own_rules
    }

    /// Compiles one entry. `rules` is the policy of its own `egress` table, if it has one.
    pub(crate) fn compile(
        origin: &Origin,
        index: usize,
        config: &CompanionConfig,
        rules: Option<Policy>,
    ) -> Result<Self, ConfigError> {
        let named = origin.to_string();
        let field = format!("companion[{index}]");
        let at = Location { origin: &named, field: &field, width: crate::pattern::Width::BelowPublicSuffix };
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
        refuse_bad_command(&at, "command", config.command.as_deref())?;
        refuse_bad_command(&at, "health.command", health.command.as_deref())?;
        let patience = compile_patience(origin, &at, health.within.as_deref())?;
        refuse_bad_variables(&at, &config.env)?;
        let resources = config.resources.as_limits();
        let mut limits_asked = LimitsAsked::default();
        limits_asked.add(&resources);
        Ok(Self {
            name,
            image: config.image.clone(),
            command: config.command.clone(),
            env: config.env.clone().into_iter().collect(),
            ports,
            probe: health.command,
            patience,
            limits: limits_of(origin, &format!("{field}.resources"), &resources)?,
            limits_asked,
            disk_asked: resources.disk.is_some(),
            own_rules: rules.is_some(),
            policy: rules.unwrap_or_default(),
        })
    }
}

fn refuse_bad_command(at: &Location<'_>, field: &str, command: Option<&[String]>) -> Result<(), ConfigError> {
    let is_bad = |words: &[String]| {
        words.first().is_none_or(String::is_empty) || words.iter().any(|word| word.contains('\0'))
    };
    if command.is_some_and(is_bad) {
        return Err(at.error(field, "write it as [\"PROGRAM\", \"ARGUMENT\", …]"));
    }
    Ok(())
}

fn compile_patience(origin: &Origin, at: &Location<'_>, within: Option<&str>) -> Result<Span, ConfigError> {
    let Some(text) = within else { return Ok(PATIENCE) };
    let patience: Span = parse(origin, &format!("{}.health.within", at.field), text)?;
    if patience > MOST_PATIENCE {
        return Err(at.error("health.within", format!("{patience} is longer than {MOST_PATIENCE}")));
    }
    Ok(patience)
}

fn refuse_bad_variables(at: &Location<'_>, variables: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (name, value) in variables {
        if !is_name(name) || value.contains('\0') {
            return Err(at.error("env", format!("`{}` is not a variable", name.escape_default())));
        }
    }
    Ok(())
}

/// Parses a companion's name: one DNS label that is not reserved.
fn name(text: &str) -> Result<Hostname, String> {
    let name = Hostname::parse(text).map_err(|why| format!("`{text}`: {why}"))?;
    if name.as_str().contains('.') || text.len() > LONGEST_NAME || name.as_str() != text {
        return Err(format!(
            "`{text}` must be one label of lower-case letters, digits and `-`, at most {LONGEST_NAME}"
        ));
    }
    // `lockgate` is the sandbox's own host name.
    if is_reserved(&name) || name.as_str() == "lockgate" {
        return Err(format!("`{text}` already means something in a sandbox"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asked::{Asked, View};
    use crate::carriage::Carriage;
    use crate::denial::Guard;
    use crate::hostname::Host;
    use crate::spec::RunSpec;
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
    fn the_machines_and_the_persons_deny_rules_hold_for_a_companion_that_has_its_own() {
        let deny = |host: &str| toml::from_str(&format!("[[egress.deny]]\nhost = \"{host}\"\n")).unwrap();
        let own = "[companion.egress]\ndefault = \"open-internet\"\n\
            allow = [{ host = \"a.example.com\" }, { host = \"b.example.com\" }, { host = \"c.example.com\" }]\n";
        let mut layers = Layers::default();
        layers.push(Origin::Managed("managed".into()), deny("a.example.com"));
        layers.push(Origin::User("mine".into()), deny("b.example.com"));
        let run = format!("{DB}{own}[[egress.deny]]\nhost = \"c.example.com\"\n");
        layers.push(Origin::Named("file".into()), toml::from_str(&run).unwrap());
        let policy = layers.compile().unwrap().companions.remove(0).policy;
        for (host, by) in [("a.example.com", "managed"), ("b.example.com", "mine")] {
            let denial = policy.decide(&asked(host, 443)).unwrap_err();
            let rule = format!("egress.deny[0] in {by}");
            assert_eq!((denial.guard, denial.rule.as_deref()), (Guard::DenyRule, Some(rule.as_str())));
            assert!(policy.decide_name(&Hostname::parse(host).unwrap()).is_err());
            assert!(policy.rules().any(|(effect, name, _)| effect == "deny" && name.as_str() == rule));
        }
        assert!(policy.decide(&asked("c.example.com", 443)).is_ok(), "that rule is the command's");
    }

    #[test]
    fn what_no_companion_says_of_itself_is_the_runs() {
        let proxies = "proxy = [{ id = \"plain\", url = \"http://p:1\" }, \
            { id = \"corp\", url = \"http://q:1\", credential = \"corp\" }]\n";
        let egress = |chosen: &str| {
            format!(
                "egress = {{ proxy = \"{chosen}\", denied_status = 502, no_proxy = [\"near.example.com\"] }}\n"
            )
        };
        let with = |chosen: &str, own: &str| {
            let text = format!("{proxies}{}{DB}{own}", egress(chosen));
            compiled(&text).unwrap().companions.remove(0).policy
        };
        let opens = |host: &str| format!("egress = {{ allow = [{{ host = \"{host}\" }}] }}\n");
        for own in [String::new(), opens("far.example.com"), "egress = {}\n".into()] {
            let policy = with("plain", &own);
            let way = |host: &str| policy.proxies().on_the_way_to(&Host::parse(host).unwrap()).is_some();
            assert!(way("far.example.com") && !way("near.example.com"), "{own}");
            assert_eq!(policy.denied_status(), 502, "{own}");
            // It has no credential, so it is offered no proxy that needs one.
            assert!(policy.proxies().named("plain").is_some() && policy.proxies().named("corp").is_none());
            assert!(policy.proxy_with_credential().is_none());
        }
        for (own, needs_one) in [
            (opens("far.example.com"), true),
            (opens("**.example.com"), true),
            ("egress = { default = \"open-internet\" }\n".into(), true),
            (opens("near.example.com"), false),
            ("egress = {}\n".into(), false),
            (String::new(), false),
        ] {
            assert_eq!(with("corp", &own).proxy_with_credential().is_some(), needs_one, "{own}");
        }
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
