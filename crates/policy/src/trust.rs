//! The two layers that are not like the others: a project's file, which is untrusted until it is approved, and a managed
//! policy, which nothing can widen.

use crate::apply::{apply_limits, parse_backend, parse_wiring};
use crate::error::ConfigError;
use crate::layer::Layer;
use crate::limits::Enforcement;
use crate::llm::Spending;
use crate::origin::Origin;
use crate::place::WorkspaceMode;
use crate::rules::Policy;
use crate::spec::{Backend, RunSpec};
use crate::written::{EgressDefault, LlmConfig, RunConfig, Scrub, TerminalConfig, WorkspaceConfig};

/// Refuses a project's file that would widen anything before the person has approved it.
pub(crate) fn refuse_unapproved(layer: &Layer, so_far: &RunSpec) -> Result<(), ConfigError> {
    let Origin::Project { path, approved: false } = &layer.origin else { return Ok(()) };
    let wider = widenings(path, &layer.config, so_far)?;
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
fn widenings(path: &str, config: &RunConfig, so_far: &RunSpec) -> Result<Vec<&'static str>, ConfigError> {
    let mut asked = RunSpec { policy: Policy::default(), ..so_far.clone() };
    let origin = Origin::Named(path.into());
    apply_limits(&origin, config, &mut asked)?;
    let more = asked.limits.memory > so_far.limits.memory
        || asked.limits.cpus > so_far.limits.cpus
        || asked.limits.pids > so_far.limits.pids
        || asked.limits.disk > so_far.limits.disk
        || (asked.limits.enforcement == Enforcement::BestEffort
            && so_far.limits.enforcement == Enforcement::Required);
    let workspace = match &config.workspace {
        Some(WorkspaceConfig::Path(_)) => true,
        Some(WorkspaceConfig::Table(table)) => {
            let mode = table.mode.as_deref();
            // What is kept apart is written as well, and kept.
            let writes = mode == Some("rw")
                || mode == Some("overlay") && so_far.workspace_mode == WorkspaceMode::ReadOnly;
            table.path.is_some() || writes || !table.open.is_empty()
        }
        None => false,
    };
    let egress = &config.egress;
    let backend = config.backend.as_deref().map(|name| parse_backend(path, name)).transpose()?;
    // To ask for a sandbox where there is none narrows; any other shows other files, or is held by other walls.
    let other = backend.is_some_and(|asked| {
        asked != so_far.backend && (so_far.backend, asked) != (Backend::Process, Backend::Linux)
    });
    let rows = [
        (other || backend == Some(Backend::Process), "backend"),
        // Whose programs are run.
        (config.image.is_some(), "image"),
        (config.workdir.is_some(), "workdir"),
        // The person's own terminal would be the command's.
        (config.terminal == Some(TerminalConfig::Never), "terminal"),
        // It is made in this machine's own network.
        (config.wiring.as_deref().is_some_and(|wiring| wiring != "redirect"), "wiring"),
        (workspace, "workspace"),
        (asked.timeout > so_far.timeout, "timeout"),
        (!config.presets.is_empty(), "presets"),
        (!config.tools.is_empty(), "tools"),
        (!config.builtin_tools.is_empty(), "builtin_tools"),
        // Whose keys are used, and who pays.
        (config.org.is_some(), "org"),
        // Whoever looks for runs by them would find this one.
        (!config.labels.is_empty(), "labels"),
        (more, "limits"),
        (!config.env.set.is_empty(), "env.set"),
        (!config.env.pass.is_empty(), "env.pass"),
        // To keep a credential in widens nothing.
        (crate::expose::is_asked(&config.env.variable), "env.variable"),
        (!config.mount.is_empty(), "mount"),
        (!config.copy.is_empty(), "copy"),
        (egress.default == Some(EgressDefault::OpenInternet), "egress.default"),
        (!config.llm.price.is_empty(), "llm.price"),
        (raises(&config.llm, &so_far.spending), "llm.budget"),
        (!config.providers.is_empty(), "providers"),
        (config.web_search == Some(true), "web_search"),
        (!config.provider.is_empty(), "provider"),
        (!config.proxy.is_empty(), "proxy"),
        (egress.proxy.is_some(), "egress.proxy"),
        (!egress.no_proxy.is_empty(), "egress.no_proxy"),
        (!egress.allow.is_empty(), "egress.allow"),
        (!config.setup.is_empty(), "setup"),
        (!config.companion.is_empty(), "companion"),
        (!config.inbound.is_empty(), "inbound"),
        (egress.denied_status.is_some(), "egress.denied_status"),
        (egress.scrub == Some(Scrub::BestEffort), "egress.scrub"),
    ];
    Ok(rows.into_iter().filter_map(|(wider, name)| wider.then_some(name)).collect())
}

/// Whether a budget would be larger than the one so far. None at all is the largest.
fn raises(config: &LlmConfig, so_far: &Spending) -> bool {
    let mut asked = Spending::default();
    let unreadable = asked.apply("project", config).is_err();
    let more = |asked: Option<u64>, so_far: Option<u64>| {
        asked.zip(so_far).is_some_and(|(asked, so_far)| asked > so_far)
    };
    let micros = |spending: &Spending| spending.budget.usd.map(crate::llm::MicroUsd::micros);
    unreadable
        || more(asked.budget.requests, so_far.budget.requests)
        || more(asked.budget.tokens, so_far.budget.tokens)
        || more(micros(&asked), micros(so_far))
}

/// Brings the merged spec back under the limits of a managed layer.
pub(crate) fn hold_to_managed(layer: &Layer, spec: &mut RunSpec) -> Result<(), ConfigError> {
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
    if layer.config.egress.scrub == Some(Scrub::Strict) {
        spec.policy.scrub = Scrub::Strict;
    }
    let mut spending = Spending::default();
    spending.apply(path, &layer.config.llm)?;
    spec.spending.hold_to(&spending.budget);
    if let Some(backend) = &layer.config.backend {
        let managed = parse_backend(path, backend)?;
        if managed != spec.backend {
            let problem =
                format!("this machine's policy is `{managed}`, and `{}` was asked for", spec.backend);
            return Err(ConfigError::new(path, "backend", problem));
        }
    }
    if let (Some(managed), Some(asked)) = (&layer.config.org, &spec.organisation)
        && managed != asked.as_str()
    {
        let problem = format!("this machine's policy is `{managed}`, and `{asked}` was asked for");
        return Err(ConfigError::new(path, "org", problem));
    }
    if let Some(wiring) = &layer.config.wiring {
        let managed = parse_wiring(path, wiring)?;
        if managed != spec.wiring {
            let problem =
                format!("this machine's policy is `{managed}`, and `{}` was asked for", spec.wiring);
            return Err(ConfigError::new(path, "wiring", problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layers;
    use crate::spec::Wiring;

    // S1.27
    #[test]
    fn whose_keys_are_used_is_neither_a_projects_to_say_nor_beyond_a_managed_policy() {
        let compile = |layers: &[(Origin, &str)]| {
            let mut all = Layers::default();
            for (origin, text) in layers {
                all.push(origin.clone(), toml::from_str(text).unwrap());
            }
            all.fall_back_to_organisation("LOCKGATE_ORG", "shell");
            all.compile()
                .map(|spec| spec.organisation.unwrap().to_string())
                .map_err(|error| error.to_string())
        };
        let project = |approved| Origin::Project { path: "lockgate.toml".into(), approved };
        let managed = || Origin::Managed("/etc/policy".into());
        let (acme, globex) = ("org = \"acme\"", "org = \"globex\"");
        assert_eq!(compile(&[]).unwrap(), "shell");
        assert_eq!(compile(&[(project(true), acme)]).unwrap(), "acme");
        assert_eq!(compile(&[(project(true), acme), (Origin::Flags, globex)]).unwrap(), "globex");
        assert_eq!(compile(&[(managed(), acme), (Origin::Flags, acme)]).unwrap(), "acme");
        // Not even the one that would be used anyway.
        let refused = compile(&[(Origin::User("mine".into()), acme), (project(false), acme)]).unwrap_err();
        assert!(refused.starts_with("lockgate.toml: org: "), "{refused}");
        let held = compile(&[(managed(), acme), (Origin::Flags, globex)]).unwrap_err();
        assert!(held.contains("org") && held.contains("`acme`") && held.contains("`globex`"), "{held}");
        assert!(compile(&[(Origin::Flags, "org = \"../acme\"")]).unwrap_err().contains("org"));
    }

    #[test]
    fn a_project_may_ask_for_less_and_for_nothing_else() {
        let asked = |before: &str, text: &str| {
            let mut all = Layers::default();
            all.push(Origin::User("mine".into()), toml::from_str(before).unwrap());
            let project = Origin::Project { path: "lockgate.toml".into(), approved: false };
            all.push(project, toml::from_str(text).unwrap());
            all.fall_back_to_image("PI_IMAGE", "mine:1");
            all.compile().map(drop).map_err(|error| error.to_string())
        };
        let container = "backend = \"container\"";
        for (before, text, field) in [
            ("", "backend = \"process\"", "backend"),
            ("", "backend = \"docker\"", "backend"),
            ("", container, "backend"),
            (container, "backend = \"linux\"", "backend"),
            ("backend = \"process\"", "backend = \"docker\"", "backend"),
            ("", "image = \"theirs\"", "image"),
            ("image = \"mine\"", "image = \"theirs\"", "image"),
            ("", "workdir = \"/etc\"", "workdir"),
            ("", "terminal = \"never\"", "terminal"),
            ("workspace = { mode = \"ro\" }", "workspace = { mode = \"overlay\" }", "workspace"),
            ("", "workspace = { mode = \"rw\" }", "workspace"),
        ] {
            let why = asked(before, text).unwrap_err();
            assert!(why.starts_with(&format!("lockgate.toml: {field}: ")), "{before}, {text}: {why}");
        }
        for (before, text) in [
            ("backend = \"process\"", "backend = \"linux\""),
            (container, container),
            ("", "terminal = \"auto\""),
            ("", "workspace = { mode = \"overlay\" }"),
            ("workspace = { mode = \"overlay\" }", "workspace = { mode = \"ro\" }"),
            ("", "timeout = \"1m\""),
        ] {
            assert_eq!(asked(before, text), Ok(()), "{before}, {text}");
        }
    }

    #[test]
    fn a_link_is_neither_a_projects_to_ask_for_nor_beyond_a_managed_policy() {
        let compile = |layers: &[(Origin, &str)]| {
            let mut all = Layers::default();
            for (origin, text) in layers {
                all.push(origin.clone(), toml::from_str(text).unwrap());
            }
            all.compile()
        };
        let project = |approved| Origin::Project { path: "lockgate.toml".into(), approved };
        let managed = || Origin::Managed("/etc/policy".into());
        let (veth, redirect) = ("wiring = \"veth\"", "wiring = \"redirect\"");
        assert_eq!(compile(&[(project(true), veth)]).unwrap().wiring, Wiring::Veth);
        assert_eq!(compile(&[(project(false), redirect)]).unwrap().wiring, Wiring::Redirect);
        assert_eq!(compile(&[(managed(), veth)]).unwrap().wiring, Wiring::Veth);
        for layers in [
            [(Origin::Flags, redirect), (project(false), veth)],
            [(managed(), redirect), (Origin::Flags, veth)],
            [(managed(), veth), (Origin::Flags, redirect)],
        ] {
            let error = compile(&layers).unwrap_err().to_string();
            assert!(error.contains("wiring"), "{error}");
        }
        assert!(compile(&[(Origin::Flags, "wiring = \"tap\"")]).is_err());
    }
}
