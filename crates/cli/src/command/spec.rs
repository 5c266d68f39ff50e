//! Flags as a layer of configuration: each flag is a field of the policy file.

use std::path::{Component, Path, PathBuf};

use policy::{
    AllowConfig, ConfigError, CopyConfig, MountConfig, Number, RunConfig, SetupConfig, VariableConfig,
    WorkspaceConfig, WorkspaceTable,
};
use runtime::{Settings, SettingsRequest, StateDirectory};

use crate::arguments::Spec;
use crate::exit::Usage;
use crate::output;

/// The settings a command's flags ask for.
pub(crate) fn request(spec: &Spec) -> Result<SettingsRequest, anyhow::Error> {
    Ok(SettingsRequest {
        policy: spec.policy.clone(),
        no_project: spec.no_project,
        workspace: spec.workspace.clone(),
        flags: config(spec)?,
    })
}

/// The settings that a command's flags ask for, as a run would have them.
pub(crate) fn settings(spec: &Spec) -> Result<Settings, anyhow::Error> {
    let caller = super::caller()?;
    let state = StateDirectory::to_read(&caller)?;
    super::tell_unknown_variables(&caller);
    let request = request(spec)?;
    if let Some(path) = runtime::project_above(&request, &caller) {
        tell_project_above(&path);
    }
    Settings::load(&request, &caller, Some(&state)).map_err(named_by_flag)
}

/// Tells of a project's file in a folder above, which is not that of the command.
pub(super) fn tell_project_above(path: &Path) {
    let folder = policy::shell_word(&path.parent().unwrap_or(path).to_string_lossy());
    output::tell(&format!(
        "note: {} counts for runs in its own folder, and this one is not: --workspace {folder} names that one",
        path.display()
    ));
}

/// The flags whose values are checked as fields of a policy, and those fields.
const FLAG_FIELDS: [(&str, &str); 26] = [
    ("limits.memory", "--memory"),
    ("limits.cpus", "--cpus"),
    ("limits.pids", "--pids"),
    ("limits.disk", "--disk"),
    ("limits.enforce", "--limits"),
    ("timeout", "--timeout"),
    ("backend", "--backend"),
    ("wiring", "--wiring"),
    ("name_addresses", "--name-addresses"),
    ("image", "--image"),
    ("presets", "--preset"),
    ("providers", "--provider"),
    ("tools", "--tool"),
    ("builtin_tools", "--builtin-tool"),
    ("egress.allow", "--allow"),
    ("egress.proxy", "--proxy"),
    ("workdir", "--workdir"),
    ("workspace.path", "--workspace"),
    ("workspace.mode", "--workspace-mode"),
    ("workspace.open", "--open"),
    ("mount", "--mount"),
    ("copy", "--copy"),
    ("labels", "--label"),
    ("org", "--org"),
    ("env.variable", "--expose"),
    ("env", "--env"),
];

/// Returns an error over a flag's value with the flag in place of its field, which the person did not write.
pub(super) fn named_by_flag(error: runtime::Error) -> anyhow::Error {
    let runtime::Error::Settings(wrong) = error else { return error.into() };
    let is_within = |field: &str| {
        wrong.field.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let flag = FLAG_FIELDS.iter().find(|(field, _)| is_within(field)).map(|(_, flag)| *flag);
    let field = flag.filter(|_| wrong.origin == policy::Origin::Flags.to_string());
    let field = field.map_or_else(|| wrong.field.clone(), str::to_owned);
    runtime::Error::Settings(ConfigError { field, ..wrong }).into()
}

fn config(spec: &Spec) -> Result<RunConfig, anyhow::Error> {
    let named = [
        ("--preset", &spec.preset),
        ("--provider", &spec.provider),
        ("--tool", &spec.tool),
        ("--builtin-tool", &spec.builtin_tool),
        ("--allow", &spec.allow),
    ];
    named.into_iter().try_for_each(|(flag, names)| names.iter().try_for_each(|name| one_name(flag, name)))?;
    let mut config = RunConfig {
        backend: spec.backend.clone(),
        wiring: spec.wiring.clone(),
        name_addresses: spec.name_addresses.clone(),
        image: spec.image.clone(),
        workdir: spec.workdir.clone(),
        workspace: workspace(spec)?,
        timeout: spec.timeout.clone(),
        presets: spec.preset.clone(),
        tools: spec.tool.clone(),
        builtin_tools: spec.builtin_tool.clone(),
        providers: spec.provider.clone(),
        web_search: spec.web_search.then_some(true),
        org: spec.org.clone(),
        ..RunConfig::default()
    };
    config.egress.proxy.clone_from(&spec.proxy);
    config.limits.memory.clone_from(&spec.memory);
    config.limits.cpus = spec.cpus.clone().map(Number::Text);
    config.limits.pids = spec.pids;
    config.limits.disk.clone_from(&spec.disk);
    config.limits.enforce.clone_from(&spec.limits);
    for host in &spec.allow {
        config.egress.allow.push(AllowConfig { host: Some(host.clone()), ..AllowConfig::default() });
    }
    for mount in &spec.mount {
        config.mount.push(parse_mount(mount)?);
    }
    for copy in &spec.copy {
        config.copy.push(parse_copy(copy)?);
    }
    for label in &spec.label {
        let (name, value) = label.split_once('=').ok_or_else(|| {
            Usage::error(format!("--label `{label}` gives no value"), "write it as NAME=VALUE")
        })?;
        config.labels.insert(name.into(), value.into());
    }
    for line in &spec.setup {
        if line.trim().is_empty() {
            return Err(Usage::error("--setup names no command", "as in --setup 'npm ci'"));
        }
        let command = ["/bin/sh", "-c", line].map(String::from).to_vec();
        config.setup.push(SetupConfig { command, ..SetupConfig::default() });
    }
    for variable in &spec.env {
        match variable.split_once('=') {
            Some((name, value)) => {
                config.env.set.insert(name.into(), value.into());
            }
            None => config.env.pass.push(variable.clone()),
        }
    }
    for variable in &spec.expose {
        config.env.variable.insert(variable.clone(), VariableConfig { expose: Some(true) });
    }
    Ok(config)
}

/// Refuses several names in one: nothing that is named has a comma, but for what a URL has behind its host.
fn one_name(flag: &str, name: &str) -> Result<(), anyhow::Error> {
    let up_to_host = match name.split_once("://") {
        Some((_, rest)) => rest.split(['/', '?', '#']).next().unwrap_or_default(),
        None => name,
    };
    // What begins like another URL behind a comma is one.
    let is_scheme = |text: &str| text.trim().chars().all(|c| c.is_ascii_alphabetic());
    let is_another = |rest: &str| {
        let before = rest.split_once("://").and_then(|(before, _)| before.rsplit_once(','));
        before.is_some_and(|(_, scheme)| is_scheme(scheme))
    };
    let names_several = up_to_host.contains(',')
        || name.split_once("://").is_some_and(|(scheme, rest)| scheme.contains(',') || is_another(rest));
    if !names_several {
        return Ok(());
    }
    // A piece of digits is one more port of the host before it.
    let mut host = "";
    let each = name.split(',').map(str::trim).map(|piece| {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if is_number(piece) && !host.is_empty() {
            return format!("{flag} {host}:{piece}");
        }
        host = piece.rsplit_once(':').filter(|(_, port)| is_number(port)).map_or(piece, |(host, _)| host);
        format!("{flag} {piece}")
    });
    let each = each.collect::<Vec<_>>().join(" ");
    let what = format!("{flag} `{}` names several at once", output::plain(name));
    Err(Usage::error(what, format!("give {flag} for each: {}", output::plain(&each))))
}

fn workspace(spec: &Spec) -> Result<Option<WorkspaceConfig>, anyhow::Error> {
    // A policy is text: with another path put in its place a run would work in a folder that nobody named.
    let text = |path: &PathBuf| {
        path.to_str().map(str::to_owned).ok_or_else(|| {
            let what = format!("--workspace `{}` is not UTF-8", path.to_string_lossy().escape_debug());
            Usage::error(what, "rename that folder, or name another")
        })
    };
    let path = spec.workspace.as_ref().map(text).transpose()?;
    let path = path.map(|path| without_climbing(&path)).transpose()?;
    Ok(match (path, spec.workspace_mode.clone()) {
        (None, None) if spec.open.is_empty() => None,
        (Some(path), None) if spec.open.is_empty() => Some(WorkspaceConfig::Path(path)),
        (path, mode) => Some(WorkspaceConfig::Table(WorkspaceTable { path, mode, open: spec.open.clone() })),
    })
}

/// Returns the path of a flag without `..`, which no path of a policy has, from the shell's folder. One that climbs out of a link leads
/// elsewhere than it looks; it stays as it is, and is refused.
fn without_climbing(path: &str) -> Result<String, anyhow::Error> {
    if !Path::new(path).components().any(|part| part == Component::ParentDir) {
        return Ok(path.to_owned());
    }
    let whole = super::caller()?.resolve(Path::new(path));
    let mut plain = PathBuf::new();
    for part in whole.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    let leads_there = whole.canonicalize().ok() == plain.canonicalize().ok();
    Ok(plain.to_str().filter(|_| leads_there).unwrap_or(path).to_owned())
}

fn parse_mount(text: &str) -> Result<MountConfig, anyhow::Error> {
    let parts: Vec<&str> = text.split(':').collect();
    let (source, target, mode) = match parts.as_slice() {
        [source, target] => (*source, *target, None),
        [source, target, mode @ ("ro" | "rw")] => (*source, *target, Some((*mode).to_owned())),
        _ => {
            return Err(Usage::error(
                format!("--mount `{text}` is not SRC:DST[:ro|rw]"),
                "as in --mount ~/data:/data:ro; a path with a colon goes into a [[mount]] of a policy file",
            ));
        }
    };
    Ok(MountConfig { source: source.into(), target: Some(target.into()), mode })
}

fn parse_copy(text: &str) -> Result<CopyConfig, anyhow::Error> {
    match text.split(':').collect::<Vec<_>>().as_slice() {
        [source, target] => Ok(CopyConfig { source: (*source).into(), target: (*target).into() }),
        _ => Err(Usage::error(
            format!("--copy `{text}` is not SRC:DST"),
            "as in --copy ~/data:/data, and without a mode, for a copy is the run's own; a path with a colon goes into a \
             [[copy]] of a policy file",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_too_many_is_refused_with_the_form_that_takes_it() {
        let hint =
            |read: Result<(), anyhow::Error>| crate::exit::code_and_remedy(&read.unwrap_err()).1.unwrap();
        for (mount, expected) in
            [("/a:/x", true), ("/a:/x:rw", true), ("/a:b:/x", false), ("/a:/x:r", false), ("/a", false)]
        {
            let read = parse_mount(mount).map(drop);
            assert!(read.is_ok() == expected && (expected || hint(read).contains("[[mount]]")), "{mount}");
        }
        for (copy, expected) in [("/a:/x", true), ("/a:/x:ro", false), ("/a", false)] {
            let read = parse_copy(copy).map(drop);
            assert!(read.is_ok() == expected && (expected || hint(read).contains("[[copy]]")), "{copy}");
        }
    }

    #[test]
    fn a_path_that_climbs_is_taken_from_the_shells_folder_and_not_out_of_a_link() {
        let here = std::env::current_dir().unwrap();
        let above = here.parent().unwrap().to_str().unwrap();
        for (typed, plain) in
            [("..", above), ("../none", &format!("{above}/none")), ("src", "src"), ("/usr/../usr", "/usr")]
        {
            assert_eq!(without_climbing(typed).unwrap(), plain);
        }
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/usr/lib", folder.path().join("link")).unwrap();
        let out_of_it = format!("{}/link/..", folder.path().display());
        assert_eq!(without_climbing(&out_of_it).unwrap(), out_of_it);
        // S3.12
        assert_eq!(parse_mount("..:/x").unwrap().source, "..");
        assert_eq!(parse_copy("..:/x").unwrap().source, "..");
    }

    #[test]
    fn a_flag_is_blamed_by_its_own_name() {
        let told = |flags: Spec| {
            let mut layers = policy::Layers::default();
            layers.push(policy::Origin::Flags, config(&flags).unwrap());
            named_by_flag(layers.compile().map(drop).unwrap_err().into()).to_string()
        };
        let memory = told(Spec { memory: Some("2gb".into()), ..Spec::default() });
        assert!(memory.starts_with("command line: --memory: "), "{memory}");
        let of = |text: &str| vec![text.to_owned()];
        for (flags, flag) in [
            (Spec { allow: of("not_a_host"), ..Spec::default() }, "--allow"),
            (Spec { workdir: Some("a\0".into()), ..Spec::default() }, "--workdir"),
            (Spec { workspace_mode: Some("RO".into()), ..Spec::default() }, "--workspace-mode"),
            (Spec { proxy: Some("none".into()), ..Spec::default() }, "--proxy"),
            (Spec { mount: of(":/data"), ..Spec::default() }, "--mount"),
            (Spec { copy: of(":/data"), ..Spec::default() }, "--copy"),
            (Spec { org: Some("a b".into()), ..Spec::default() }, "--org"),
            (Spec { env: of("A B=1"), ..Spec::default() }, "--env"),
            (Spec { env: of("A=\0"), ..Spec::default() }, "--env"),
        ] {
            let told = told(flags);
            assert!(told.starts_with(&format!("command line: {flag}: ")), "{told}");
        }
    }

    #[test]
    fn several_names_in_one_are_refused_and_a_comma_in_a_path_is_not() {
        for (name, expected) in [
            ("github", true),
            ("https://example.com/a,b", true),
            ("https://example.com/?a,b=http://x", true),
            ("github,pypi", false),
            ("a.example,https://example.com/a", false),
            ("https://a.example,b.example/x", false),
            ("https://a.example/x,https://b.example/y", false),
        ] {
            assert_eq!(one_name("--allow", name).is_ok(), expected, "{name}");
        }
    }

    #[test]
    fn a_port_behind_a_comma_is_of_the_host_before_it() {
        for (name, each) in [
            ("a.example:22,443", "--allow a.example:22 --allow a.example:443"),
            ("a.example, 22,b.example", "--allow a.example --allow a.example:22 --allow b.example"),
            ("[::1]:22,443", "--allow [::1]:22 --allow [::1]:443"),
        ] {
            let (_, remedy) = crate::exit::code_and_remedy(&one_name("--allow", name).unwrap_err());
            assert_eq!(remedy.unwrap(), format!("give --allow for each: {each}"));
        }
    }
}
