//! The two special layers: a project's file, which is untrusted until the user approves it, and a managed policy, which
//! nothing can widen.

use std::fmt::Display;
use std::path::Path;

use crate::apply::apply_limits;
use crate::backend::{Backend, Wiring};
use crate::choice::{Choice, parse_field};
use crate::enforcement::Enforcement;
use crate::error::ConfigError;
use crate::layer::Layer;
use crate::limits::{Limits, set_limits};
use crate::llm::{Budget, MicroUsd, Spending};
use crate::mounts::WorkspaceMode;
use crate::origin::Origin;
use crate::rules::Policy;
use crate::shell_quoting::shell_word;
use crate::spec::RunSpec;
use crate::written::{
    EgressConfig, EgressDefault, EnvConfig, LlmConfig, RunConfig, Scrub, TerminalConfig, WorkspaceConfig,
    WorkspaceTable,
};

/// Refuses a project's file that would widen the run and that the user has not approved.
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
    .with_hint(format!(
        "read it, then run `lockgate policy approve{}`; or leave it out with `--no-project`",
        approved_in(path)
    )))
}

/// Returns the flag by which a file is approved from another folder: a path leads there, a bare name lies in the current one.
fn approved_in(path: &str) -> String {
    let folder = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map(|folder| format!(" --workspace {}", shell_word(&folder.to_string_lossy()))).unwrap_or_default()
}

/// Returns the fields of a project's file that would widen the run. The pattern names every field, so that each new one has to be
/// considered here.
fn widenings(path: &str, config: &RunConfig, so_far: &RunSpec) -> Result<Vec<&'static str>, ConfigError> {
    let RunConfig {
        backend,
        wiring,
        // Inside, and of public addresses alone: it leads nowhere.
        name_addresses: _,
        image,
        workdir,
        workspace,
        timeout: _, // with the limits
        terminal,
        presets,
        tools,
        builtin_tools,
        org,
        labels,
        limits: _,
        env: EnvConfig { set, pass, variable },
        mount,
        copy,
        providers,
        web_search,
        provider,
        proxy,
        llm,
        egress,
        setup,
        companion,
        inbound,
    } = config;
    let rows = [
        (is_another_backend(path, backend.as_deref(), so_far)?, "backend"),
        // It decides whose programs run.
        (image.is_some(), "image"),
        (workdir.is_some(), "workdir"),
        // The command would get the user's own terminal.
        (*terminal == Some(TerminalConfig::Never), "terminal"),
        // A link is made in this machine's own network.
        (wiring.as_deref().is_some_and(|word| Wiring::read(word) != Some(Wiring::Redirect)), "wiring"),
        (workspace.as_ref().is_some_and(|it| shows_more(it, so_far)), "workspace"),
        (!presets.is_empty(), "presets"),
        (!tools.is_empty(), "tools"),
        (!builtin_tools.is_empty(), "builtin_tools"),
        // It decides whose keys are used, and who pays.
        (org.is_some(), "org"),
        // A search for runs by label would find this run.
        (!labels.is_empty(), "labels"),
        (!set.is_empty(), "env.set"),
        (!pass.is_empty(), "env.pass"),
        // `expose = false` widens nothing.
        (crate::expose::is_asked(variable), "env.variable"),
        (!mount.is_empty(), "mount"),
        (!copy.is_empty(), "copy"),
        (!providers.is_empty(), "providers"),
        (*web_search == Some(true), "web_search"),
        (!provider.is_empty(), "provider"),
        (!proxy.is_empty(), "proxy"),
        (!setup.is_empty(), "setup"),
        (!companion.is_empty(), "companion"),
        (!inbound.is_empty(), "inbound"),
    ];
    let rows = rows.into_iter().chain(more_use(path, config, so_far)?);
    let rows = rows.chain(more_spending(llm, &so_far.spending)).chain(more_egress(egress));
    Ok(rows.filter_map(|(wider, name)| wider.then_some(name)).collect())
}

/// Returns whether the file asks for another backend. To replace `process` by `linux` narrows; any other change gives the command
/// other files or other isolation.
fn is_another_backend(path: &str, asked: Option<&str>, so_far: &RunSpec) -> Result<bool, ConfigError> {
    let asked = asked.map(|word| parse_field(path, "backend", word)).transpose()?;
    let other = asked.is_some_and(|asked| {
        asked != so_far.backend && (so_far.backend, asked) != (Backend::Process, Backend::Linux)
    });
    Ok(other || asked == Some(Backend::Process))
}

fn shows_more(workspace: &WorkspaceConfig, so_far: &RunSpec) -> bool {
    let WorkspaceConfig::Table(WorkspaceTable { path, mode, open }) = workspace else { return true };
    // An overlay is written as well, and its changes are kept.
    let writes = match mode.as_deref().and_then(WorkspaceMode::read) {
        Some(WorkspaceMode::ReadWrite) => true,
        Some(WorkspaceMode::Overlay) => so_far.workspace_mode == WorkspaceMode::ReadOnly,
        // An invalid word is refused when the layer is applied.
        Some(WorkspaceMode::ReadOnly) | None => false,
    };
    path.is_some() || writes || !open.is_empty()
}

/// Judges the timeout and the resource limits.
fn more_use(
    path: &str,
    config: &RunConfig,
    so_far: &RunSpec,
) -> Result<[(bool, &'static str); 2], ConfigError> {
    let mut asked = RunSpec { policy: Policy::default(), ..so_far.clone() };
    apply_limits(&Origin::Named(path.into()), config, &mut asked)?;
    let Limits { memory, cpus, pids, disk, enforcement } = asked.limits;
    let held = &so_far.limits;
    let more = memory > held.memory
        || cpus > held.cpus
        || pids > held.pids
        || disk > held.disk
        || (enforcement == Enforcement::BestEffort && held.enforcement == Enforcement::Required);
    Ok([(asked.timeout > so_far.timeout, "timeout"), (more, "limits")])
}

fn more_spending(config: &LlmConfig, so_far: &Spending) -> [(bool, &'static str); 2] {
    let LlmConfig { price, budget: _ } = config;
    [(!price.is_empty(), "llm.price"), (raises(config, so_far), "llm.budget")]
}

fn more_egress(config: &EgressConfig) -> [(bool, &'static str); 6] {
    // A deny rule narrows.
    let EgressConfig { default, denied_status, scrub, proxy, no_proxy, allow, deny: _ } = config;
    [
        (*default == Some(EgressDefault::OpenInternet), "egress.default"),
        (proxy.is_some(), "egress.proxy"),
        (!no_proxy.is_empty(), "egress.no_proxy"),
        (!allow.is_empty(), "egress.allow"),
        (denied_status.is_some(), "egress.denied_status"),
        (*scrub == Some(Scrub::BestEffort), "egress.scrub"),
    ]
}

/// Returns whether a budget is larger than the one so far. No budget is the largest.
fn raises(config: &LlmConfig, so_far: &Spending) -> bool {
    let mut asked = Spending::default();
    let unreadable = asked.apply("project", config).is_err();
    let more = |asked: Option<u64>, so_far: Option<u64>| {
        asked.zip(so_far).is_some_and(|(asked, so_far)| asked > so_far)
    };
    let Budget { requests, tokens, usd } = asked.budget;
    let held = &so_far.budget;
    unreadable
        || more(requests, held.requests)
        || more(tokens, held.tokens)
        || more(usd.map(MicroUsd::micros), held.usd.map(MicroUsd::micros))
}

/// Lowers the merged spec to the limits of a managed layer. The pattern names every field, so that each new one has to be
/// considered here.
pub(crate) fn hold_to_managed(layer: &Layer, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let Layer { origin: Origin::Managed(path), config } = layer else { return Ok(()) };
    let RunConfig {
        backend,
        wiring,
        org,
        llm: LlmConfig { budget: _, price: _ },
        workspace,
        limits: _,
        egress: EgressConfig { scrub, default: _, allow: _, deny: _, denied_status: _, proxy: _, no_proxy: _ },
        // Enforced elsewhere: rules as a ceiling, the timeout as the longest, forbidden features by name.
        timeout: _,
        presets: _,
        providers: _,
        provider: _,
        web_search: _,
        env: EnvConfig { variable: _, set: _, pass: _ },
        // Defaults, which another layer may replace or extend.
        name_addresses: _,
        image: _,
        workdir: _,
        terminal: _,
        tools: _,
        builtin_tools: _,
        labels: _,
        mount: _,
        copy: _,
        proxy: _,
        setup: _,
        companion: _,
        inbound: _,
    } = config;
    hold_limits(path, layer, spec)?;
    hold_workspace(path, workspace.as_ref(), spec);
    if *scrub == Some(Scrub::Strict) && spec.policy.scrub != Scrub::Strict {
        spec.policy.scrub = Scrub::Strict;
        spec.notices.push(format!("`egress.scrub` is held to that of {path}: strict, not best-effort"));
    }
    hold_spending(path, &config.llm, spec)?;
    let refuse = |field: &str, managed: &dyn Display, asked: &dyn Display| {
        let problem = format!("this machine's policy is `{managed}`, and `{asked}` was asked for");
        Err(ConfigError::new(path, field, problem))
    };
    if let Some(backend) = backend {
        let managed: Backend = parse_field(path, "backend", backend)?;
        if managed != spec.backend {
            return refuse("backend", &managed, &spec.backend);
        }
    }
    if let (Some(managed), Some(asked)) = (org, &spec.organisation)
        && managed != asked.as_str()
    {
        return refuse("org", managed, asked);
    }
    if let Some(wiring) = wiring {
        let managed: Wiring = parse_field(path, "wiring", wiring)?;
        if managed != spec.wiring {
            return refuse("wiring", &managed, &spec.wiring);
        }
    }
    Ok(())
}

/// Lowers what the command may do with the workspace. Its path is a default.
fn hold_workspace(path: &str, workspace: Option<&WorkspaceConfig>, spec: &mut RunSpec) {
    let Some(WorkspaceConfig::Table(WorkspaceTable { mode: Some(word), path: _, open: _ })) = workspace
    else {
        return;
    };
    // An invalid word was refused when the layer was applied.
    let Some(most) = WorkspaceMode::read(word).filter(|most| *most < spec.workspace_mode) else { return };
    let wish = std::mem::replace(&mut spec.workspace_mode, most);
    let (held, wish) = (most.as_str(), wish.as_str());
    spec.notices.push(format!("`workspace.mode` is held to that of {path}: {held}, not {wish}"));
}

/// Lowers the budget of the run.
fn hold_spending(path: &str, config: &LlmConfig, spec: &mut RunSpec) -> Result<(), ConfigError> {
    fn cut<T: Display + PartialEq>(name: &str, held: Option<T>, wish: Option<T>) -> Option<String> {
        let (held, wish) = held.zip(wish)?;
        (held != wish).then(|| format!("{name} {held}, not {wish}"))
    }
    let mut managed = Spending::default();
    managed.apply(path, config)?;
    let wish = spec.spending.budget.clone();
    spec.spending.hold_to(managed);
    let held = &spec.spending.budget;
    let rows = [
        cut("requests", held.requests, wish.requests),
        cut("tokens", held.tokens, wish.tokens),
        cut("money", held.usd, wish.usd),
    ];
    let cut = rows.into_iter().flatten().collect::<Vec<_>>().join("; ");
    if !cut.is_empty() {
        spec.notices.push(format!("`llm.budget` is held to that of {path}: {cut}"));
    }
    Ok(())
}

/// Lowers the limits of the run and of each companion.
fn hold_limits(path: &str, layer: &Layer, spec: &mut RunSpec) -> Result<(), ConfigError> {
    let wish = spec.limits.clone();
    spec.limits = held(&wish, layer)?;
    let enforced = layer.config.limits.enforce.as_deref().and_then(Enforcement::read);
    if enforced == Some(Enforcement::Required) {
        spec.limits.enforcement = Enforcement::Required;
    }
    if spec.limits != wish {
        spec.notices.push(format!("limits are held to those of {path}: {}", lowered(&wish, &spec.limits)));
    }
    for companion in &mut spec.companions {
        let limits = held(&companion.limits, layer)?;
        let wish = std::mem::replace(&mut companion.limits, limits);
        companion.limits_asked.add(&layer.config.limits);
        if companion.limits != wish {
            let name = &companion.name;
            let lowered = lowered(&wish, &companion.limits);
            spec.notices.push(format!("limits of companion `{name}` are held to those of {path}: {lowered}"));
        }
    }
    Ok(())
}

/// Tells which limits are lower than they were asked for.
fn lowered(wish: &Limits, held: &Limits) -> String {
    let enforced = |limits: &Limits| limits.enforcement.as_str().to_owned();
    let rows = [
        ("memory", held.memory.to_string(), wish.memory.to_string()),
        ("cpus", held.cpus.to_string(), wish.cpus.to_string()),
        ("pids", held.pids.to_string(), wish.pids.to_string()),
        ("disk", held.disk.to_string(), wish.disk.to_string()),
        ("enforce", enforced(held), enforced(wish)),
    ];
    let rows = rows.iter().filter(|(_, held, wish)| held != wish);
    rows.map(|(name, held, wish)| format!("{name} {held}, not {wish}")).collect::<Vec<_>>().join("; ")
}

/// Returns limits, each no more than the layer sets.
fn held(wish: &Limits, layer: &Layer) -> Result<Limits, ConfigError> {
    let mut most = wish.clone();
    set_limits(&layer.origin, "limits", &layer.config.limits, &mut most)?;
    let Limits { memory, cpus, pids, disk, enforcement: _ } = most;
    Ok(Limits {
        memory: wish.memory.min(memory),
        cpus: wish.cpus.min(cpus),
        pids: wish.pids.min(pids),
        disk: wish.disk.min(disk),
        enforcement: wish.enforcement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layers;

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
        // Not even for the organisation that would be used anyway.
        let refused = compile(&[(Origin::User("mine".into()), acme), (project(false), acme)]).unwrap_err();
        assert!(refused.starts_with("lockgate.toml: org: "), "{refused}");
        let held = compile(&[(managed(), acme), (Origin::Flags, globex)]).unwrap_err();
        assert!(held.contains("org") && held.contains("`acme`") && held.contains("`globex`"), "{held}");
        assert!(compile(&[(Origin::Flags, "org = \"../acme\"")]).unwrap_err().contains("org"));
    }

    #[test]
    fn the_limits_of_a_managed_policy_are_the_most_of_a_companion_as_well() {
        let mut all = Layers::default();
        let managed = "limits = { memory = \"256MiB\", pids = 600 }";
        all.push(Origin::Managed("/etc/policy".into()), toml::from_str(managed).unwrap());
        let run = "limits = { cpus = 1, memory = \"128MiB\" }\n\
            [[companion]]\nname = \"db\"\nimage = \"i\"\nports = [5432]\nresources = { memory = \"8GiB\", cpus = 4 }\n\
            [[companion]]\nname = \"cache\"\nimage = \"i\"\nports = [6379]\nresources = { memory = \"64MiB\" }\n";
        all.push(Origin::Flags, toml::from_str(run).unwrap());
        let spec = all.compile().unwrap();
        let limits = spec.companions.iter().map(|it| {
            let Limits { memory, cpus, pids, disk, enforcement: _ } = &it.limits;
            (memory.to_string(), cpus.to_string(), *pids, disk.to_string())
        });
        let wanted = [("256MiB", "4", 512, "4GiB"), ("64MiB", "2", 512, "4GiB")];
        let wanted = wanted.map(|(memory, cpus, pids, disk)| (memory.into(), cpus.into(), pids, disk.into()));
        assert_eq!(limits.collect::<Vec<_>>(), wanted);
        assert_eq!(
            spec.notices,
            ["limits of companion `db` are held to those of /etc/policy: memory 256MiB, not 8GiB"]
        );
        assert!(
            spec.companions.iter().all(|it| it.limits_asked.pids),
            "what a managed policy sets is asked for"
        );
    }

    #[test]
    fn no_limit_of_a_run_is_above_that_of_a_managed_policy() {
        let limits = |managed: &str, own: &str| {
            let mut all = Layers::default();
            all.push(Origin::Managed("/etc/policy".into()), toml::from_str(managed).unwrap());
            all.push(Origin::Flags, toml::from_str(own).unwrap());
            let Limits { memory, cpus, pids, disk, enforcement: _ } = all.compile().unwrap().limits;
            [memory.to_string(), cpus.to_string(), pids.to_string(), disk.to_string()]
        };
        let managed = "limits = { memory = \"256MiB\", cpus = 1, pids = 64, disk = \"1GiB\" }";
        let more = "limits = { memory = \"512MiB\", cpus = 2, pids = 65, disk = \"2GiB\" }";
        let less = "limits = { memory = \"128MiB\", cpus = 0.5, pids = 63, disk = \"512MiB\" }";
        assert_eq!(limits(managed, more), ["256MiB", "1", "64", "1GiB"]);
        assert_eq!(limits(managed, less), ["128MiB", "0.5", "63", "512MiB"]);
    }

    #[test]
    fn what_a_managed_policy_requires_no_other_layer_takes_back() {
        let compile = |managed: &str, own: &str| {
            let mut all = Layers::default();
            all.push(Origin::Managed("/etc/policy".into()), toml::from_str(managed).unwrap());
            all.push(Origin::Flags, toml::from_str(own).unwrap());
            all.compile().unwrap()
        };
        let wish = "egress.scrub = \"best-effort\"\nlimits.enforce = \"best-effort\"";
        let held = compile("egress.scrub = \"strict\"\nlimits.enforce = \"required\"", wish);
        assert_eq!((held.policy.scrub(), held.limits.enforcement), (Scrub::Strict, Enforcement::Required));
        let free = compile("egress.scrub = \"best-effort\"\nlimits.enforce = \"best-effort\"", wish);
        assert_eq!(
            (free.policy.scrub(), free.limits.enforcement),
            (Scrub::BestEffort, Enforcement::BestEffort)
        );
        assert_eq!(free.notices, [""; 0]);
        let scrub = "`egress.scrub` is held to that of /etc/policy: strict, not best-effort";
        assert!(held.notices.iter().any(|told| told == scrub), "{:?}", held.notices);
        for (managed, own, mode, told) in [
            ("ro", "rw", WorkspaceMode::ReadOnly, Some("ro, not rw")),
            ("ro", "overlay", WorkspaceMode::ReadOnly, Some("ro, not overlay")),
            ("overlay", "rw", WorkspaceMode::Overlay, Some("overlay, not rw")),
            ("overlay", "ro", WorkspaceMode::ReadOnly, None),
            ("rw", "overlay", WorkspaceMode::Overlay, None),
        ] {
            let held =
                compile(&format!("workspace.mode = \"{managed}\""), &format!("workspace.mode = \"{own}\""));
            let told = told.map(|told| format!("`workspace.mode` is held to that of /etc/policy: {told}"));
            assert_eq!((held.workspace_mode, held.notices), (mode, Vec::from_iter(told)), "{managed} {own}");
        }
        let spending = "llm.budget = { requests = 7, usd = 1.0 }";
        let held = compile(spending, "llm.budget = { requests = 6, tokens = 9, usd = 100.0 }");
        let told = held.notices.iter().find(|told| told.starts_with("`llm.budget` is held"));
        assert_eq!(
            told.unwrap(),
            "`llm.budget` is held to that of /etc/policy: money 1.0000 USD, not 100.0000 USD"
        );
        assert!(!compile(spending, "").notices.iter().any(|told| told.contains("is held")));
        let backend = |managed: &str, own: &str| {
            let mut all = Layers::default();
            for (origin, word) in [(Origin::Managed("/etc/policy".into()), managed), (Origin::Flags, own)] {
                all.push(origin, toml::from_str(&format!("backend = \"{word}\"")).unwrap());
            }
            all.compile().map(|spec| spec.backend).map_err(|error| error.to_string())
        };
        assert_eq!(backend("linux", "linux"), Ok(Backend::Linux));
        let refused = backend("linux", "process").unwrap_err();
        assert!(refused.contains("backend") && refused.contains("`linux`"), "{refused}");
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
        let limits =
            "limits = { memory = \"256MiB\", cpus = 1, pids = 64, disk = \"1GiB\", enforce = \"required\" }";
        let budget = "llm.budget = { requests = 5, tokens = 7, usd = 9 }";
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
            ("", "timeout = \"2h\"", "timeout"),
            ("", "limits.enforce = \"best-effort\"", "limits"),
            (limits, "limits.memory = \"257MiB\"", "limits"),
            (limits, "limits.cpus = 2", "limits"),
            (limits, "limits.pids = 65", "limits"),
            (limits, "limits.disk = \"2GiB\"", "limits"),
            (limits, "limits.enforce = \"best-effort\"", "limits"),
            (budget, "llm.budget.requests = 6", "llm.budget"),
            (budget, "llm.budget.tokens = 8", "llm.budget"),
            (budget, "llm.budget.usd = 10", "llm.budget"),
            ("", "llm.price = [{ model = \"m\", input = 0.1, output = 0.1 }]", "llm.price"),
            ("", "egress.default = \"open-internet\"", "egress.default"),
            ("", "egress.allow = [{ host = \"a.example.com\" }]", "egress.allow"),
            ("", "egress.no_proxy = [\"a.example.com\"]", "egress.no_proxy"),
            ("", "egress.proxy = \"direct\"", "egress.proxy"),
            ("", "egress.denied_status = 404", "egress.denied_status"),
            ("", "egress.scrub = \"best-effort\"", "egress.scrub"),
            ("backend = \"process\"", "backend = \"process\"", "backend"),
            ("", "workspace = \"/\"", "workspace"),
            ("", "workspace = { path = \"/\" }", "workspace"),
            ("", "workspace = { open = [\".git/hooks\"] }", "workspace"),
            ("", "presets = [\"github\"]", "presets"),
            ("", "tools = [\"npm\"]", "tools"),
            ("", "builtin_tools = [\"npm\"]", "builtin_tools"),
            ("", "labels = { team = \"a\" }", "labels"),
            ("", "env.set = { A = \"1\" }", "env.set"),
            ("", "env.pass = [\"A\"]", "env.pass"),
            ("", "mount = [{ source = \"/a\", target = \"/a\" }]", "mount"),
            ("", "copy = [{ source = \"/a\", target = \"/a\" }]", "copy"),
            ("", "providers = [\"github\"]", "providers"),
            ("", "web_search = true", "web_search"),
            ("", "provider = [{ id = \"a\", authorized_uris = [\"https://a.example.com/*\"] }]", "provider"),
            ("", "proxy = [{ id = \"a\", url = \"http://a.example.com:80\" }]", "proxy"),
            ("", "setup = [{ command = [\"make\"] }]", "setup"),
            ("", "companion = [{ name = \"db\", image = \"i\", ports = [5432] }]", "companion"),
            ("", "inbound = [{ container_port = 8080 }]", "inbound"),
            (budget, "llm.budget.usd = -1", "llm.budget"),
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
            (limits, limits),
            (limits, "limits = { memory = \"255MiB\", cpus = 0.5, pids = 63, disk = \"1MiB\" }"),
            (budget, budget),
            (budget, "llm.budget = { requests = 4, tokens = 6, usd = 8 }"),
            ("", "llm.budget.requests = 1000"),
            (
                "",
                "egress = { default = \"deny\", scrub = \"strict\", deny = [{ host = \"a.example.com\" }] }",
            ),
        ] {
            assert_eq!(asked(before, text), Ok(()), "{before}, {text}");
        }
    }

    #[test]
    fn a_file_elsewhere_is_approved_where_it_lies() {
        for (path, recommended) in [
            ("lockgate.toml", "`lockgate policy approve`"),
            ("/src/a/lockgate.toml", "`lockgate policy approve --workspace /src/a`"),
            ("/my src/lockgate.toml", "`lockgate policy approve --workspace '/my src'`"),
        ] {
            let mut layers = Layers::default();
            let project = Origin::Project { path: path.into(), approved: false };
            layers.push(project, toml::from_str("presets = [\"github\"]").unwrap());
            let error = layers.compile().unwrap_err();
            assert!(error.to_string().starts_with(path), "{error}");
            assert!(error.hint.as_ref().unwrap().contains(recommended), "{:?}", error.hint);
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
