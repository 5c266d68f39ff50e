//! Finds, reads and merges the settings of a run: files, environment and flags. The policy crate knows what a layer means; where a
//! layer is found, and whether it must be approved, is decided here.

use std::num::{IntErrorKind, ParseIntError};
use std::path::{Path, PathBuf};

use credential::Vault;
use policy::{Backend, Layers, Origin, RunConfig, RunSpec};
use sandbox::Caller;
use serde::Deserialize;

use crate::approval::is_approved;
use crate::error::Error;
use crate::policy_file::{Keeper, read_layer_if_there, read_policy, read_policy_if_there};
use crate::project::{PROJECT, ProjectFile};
use crate::state::StateDirectory;
use crate::unreadable::why_unreadable;
use crate::{builtin, proxy_url, system_proxies};

/// The machine's managed policy.
pub(crate) const MANAGED: &str = "/etc/lockgate/policy.toml";
/// The variable by which existing set-ups name the agent's image. S1.6, S1.44
const IMAGE: &str = "PI_IMAGE";
/// The variable by which existing set-ups bound every run. S1.34
const RUN_LIMITS: &str = "PLATFORM_RUN_LIMITS";
/// The variable that names the organisation whose keys are used, where nothing else does. S1.27
const ORGANISATION: &str = "LOCKGATE_ORG";

/// The content of that variable. A limit that this program does not keep is refused, not ignored (E16).
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with one field")]
struct RunLimits {
    timeout_ceiling_seconds: Option<u32>,
}

/// What the command line asks of the settings.
#[derive(Clone, Debug, Default)]
pub struct SettingsRequest {
    /// A named file: it must exist, and replaces the project's.
    pub policy: Option<PathBuf>,
    /// Ignores the project's file.
    pub no_project: bool,
    /// The named workspace.
    pub workspace: Option<PathBuf>,
    /// The flags.
    pub flags: RunConfig,
}

/// The merged settings.
#[derive(Debug)]
pub struct Settings {
    /// The layers, for showing where a value came from.
    pub layers: Layers,
    /// The compiled settings.
    pub spec: RunSpec,
    /// The project's file, if there is one.
    pub project: Option<PathBuf>,
}

/// What a run would have, for showing it also where no run would begin.
#[derive(Debug)]
pub struct Verdict {
    /// The layers, and the proxy of the environment as the last of them if the run has it.
    pub layers: Layers,
    /// What they compile to, or why a run would be refused.
    pub spec: Result<RunSpec, Error>,
}

/// Every layer, before they are compiled.
struct Found {
    layers: Layers,
    /// The project's file, if one was looked for.
    looked_for: Option<ProjectFile>,
    /// Its path, if there is one.
    project: Option<PathBuf>,
}

impl Settings {
    /// Finds, reads, merges and compiles every layer. Without a state directory nothing is approved, and no credential is stored.
    ///
    /// # Errors
    /// The first file or value that is wrong.
    pub fn load(
        request: &SettingsRequest,
        caller: &Caller,
        state: Option<&StateDirectory>,
    ) -> Result<Self, Error> {
        let mut found = Self::find(request, caller, state)?;
        let mut spec = found.compile(state)?;
        found.refuse_link(&spec)?;
        proxy_url::fall_back(&mut spec, caller)?;
        spec.notices.extend(proxy_url::resolving(&spec));
        Ok(Self { layers: found.layers, spec, project: found.project })
    }

    /// Returns what [`project_above`] would, and reads nothing again.
    #[must_use]
    pub fn project_above(&self, request: &SettingsRequest, caller: &Caller) -> Option<PathBuf> {
        let is_looked_for = request.policy.is_none() && !request.no_project && self.project.is_none();
        let workspace = request.workspace.as_ref().or(self.spec.workspace.as_ref());
        is_looked_for.then(|| above(workspace.map(PathBuf::as_path), caller))?
    }

    /// Finds and reads every layer, and compiles them as [`load`](Self::load) does.
    ///
    /// # Errors
    /// The first file that is wrong.
    pub fn judge(
        request: &SettingsRequest,
        caller: &Caller,
        state: Option<&StateDirectory>,
    ) -> Result<Verdict, Error> {
        let mut found = Self::find(request, caller, state)?;
        let compiled = found.compile(state);
        // What cannot be compiled is shown with the reason.
        compiled.as_ref().map_or(Ok(()), |spec| found.refuse_link(spec))?;
        let Found { mut layers, .. } = found;
        let spec = compiled.and_then(|mut spec| {
            let of_environment = proxy_url::as_layer(&spec, caller);
            proxy_url::fall_back(&mut spec, caller)?;
            sandbox::check_tools(&spec.tools)?;
            builtin::check(&spec.builtin_tools)?;
            of_environment.into_iter().for_each(|(origin, config)| layers.push(origin, config));
            Ok(spec)
        });
        Ok(Verdict { layers, spec })
    }

    fn find(
        request: &SettingsRequest,
        caller: &Caller,
        state: Option<&StateDirectory>,
    ) -> Result<Found, Error> {
        let mut layers = below_projects(caller)?;
        let workspace = workspace_in(request, &layers);
        let (mut looked_for, mut project) = (None, None);
        if let Some(path) = &request.policy {
            let path = caller.resolve(path);
            let text = read_policy(&path)?;
            layers.push(Origin::Named(path.display().to_string()), parse(&path, &text)?);
        } else if !request.no_project {
            looked_for = Some(ProjectFile::of(workspace.as_deref(), caller));
        }
        if let Some(path) = looked_for.as_ref().map(ProjectFile::path)
            && let Some(text) = read_policy_if_there(&path)?
        {
            let approved = state.map_or(Ok(false), |state| is_approved(state, &path, &text))?;
            // By its bare name it is approved in the current folder.
            let name = workspace.map_or_else(|| PROJECT.into(), |_| path.display().to_string());
            let origin = Origin::Project { path: name, approved };
            // The folder is that of the approval, and is not looked for again.
            let config = parse_in(path.parent(), &path, &text).map_err(|error| match error {
                // Whoever made the link chose what an error would quote, from files that only the person may read.
                Error::ParseSettings { path, .. } if path.is_symlink() => Error::ParseSettings {
                    path,
                    why: "it is a link, and what it leads to is no policy".into(),
                },
                error => error,
            })?;
            layers.push(origin, config);
            project = Some(path);
        }
        for (name, config) in from_environment(caller)? {
            layers.push(Origin::Variable(name.into()), config);
        }
        if request.flags != RunConfig::default() {
            layers.push(Origin::Flags, request.flags.clone());
        }
        if let Some(image) = caller.variable(IMAGE).filter(|image| !image.is_empty()) {
            layers.fall_back_to_image(IMAGE, image);
        }
        if let Some(name) = caller.variable(ORGANISATION).filter(|name| !name.is_empty()) {
            layers.fall_back_to_organisation(ORGANISATION, name);
        }
        Ok(Found { layers, looked_for, project })
    }

    /// Compiles a file as if the person named it, on top of the layers that are always in force.
    ///
    /// # Errors
    /// The first file or value that is wrong.
    pub fn of_file(name: &str, config: RunConfig, caller: &Caller) -> Result<RunSpec, Error> {
        Self::of_layer(Origin::Named(name.into()), config, caller)
    }

    /// Compiles a project's file as if the person had approved it; some things are refused even then.
    ///
    /// # Errors
    /// The first file or value that is wrong.
    pub fn of_project(name: &str, config: RunConfig, caller: &Caller) -> Result<RunSpec, Error> {
        Self::of_layer(Origin::Project { path: name.into(), approved: true }, config, caller)
    }

    /// Returns whether a project's file needs no approval: it widens nothing that the layers below it say, as a run would find.
    #[must_use]
    pub fn narrows_only(config: RunConfig, caller: &Caller) -> bool {
        Self::unapproved(config, caller).is_ok()
    }

    /// Compiles a project's file that is not approved with the layers below it.
    ///
    /// # Errors
    /// When it widens what they say, with the fields that do; or for what is wrong with it whether it is approved or not.
    pub fn unapproved(config: RunConfig, caller: &Caller) -> Result<RunSpec, Error> {
        Self::of_layer(Origin::Project { path: PROJECT.into(), approved: false }, config, caller)
    }

    fn of_layer(origin: Origin, config: RunConfig, caller: &Caller) -> Result<RunSpec, Error> {
        let mut layers = below_projects(caller)?;
        layers.push(origin, config);
        Ok(layers.compile()?)
    }
}

impl Found {
    /// Compiles the layers, once a search is chosen: what exposes its credential would not compile without.
    fn compile(&mut self, state: Option<&StateDirectory>) -> Result<RunSpec, Error> {
        if self.layers.want_a_search()? {
            let organisation = self.layers.organisation()?;
            let stored = state.map(|state| Vault::ids(&state.vault(organisation.as_ref()))).transpose()?;
            self.layers.choose_search(&stored.unwrap_or_default())?;
        }
        Ok(self.layers.compile()?)
    }

    /// Refuses a workspace behind a link. Backend `process` guards no files, so there a link is as good as the folder.
    fn refuse_link(&self, spec: &RunSpec) -> Result<(), Error> {
        let looked_for = self.looked_for.as_ref().filter(|_| spec.backend != Backend::Process);
        looked_for.map_or(Ok(()), ProjectFile::refuse_link)
    }
}

/// Returns the workspace whose file is a run's project's; `None` is the current folder. A project's file cannot name it: which one that
/// is would depend on itself.
///
/// # Errors
/// The first file that is wrong, of those that may name it.
pub fn workspace(request: &SettingsRequest, caller: &Caller) -> Result<Option<PathBuf>, Error> {
    match &request.workspace {
        Some(named) => Ok(Some(named.clone())),
        None => Ok(workspace_in(request, &below_projects(caller)?)),
    }
}

/// Returns the workspace that the flags name, or else the layers below every project's.
fn workspace_in(request: &SettingsRequest, below: &Layers) -> Option<PathBuf> {
    request.workspace.clone().or_else(|| below.workspace().map(PathBuf::from))
}

/// Returns the nearest project file above the workspace, if the workspace has none and no file was named. It is not read.
#[must_use]
pub fn project_above(request: &SettingsRequest, caller: &Caller) -> Option<PathBuf> {
    if request.policy.is_some() || request.no_project {
        return None;
    }
    above(workspace(request, caller).ok()?.as_deref(), caller)
}

fn above(workspace: Option<&Path>, caller: &Caller) -> Option<PathBuf> {
    // A home cannot be a workspace.
    let home = caller.home.as_ref().map(|home| home.join(PROJECT));
    let own = ProjectFile::of(workspace, caller).path();
    let mut found =
        own.parent()?.ancestors().map(|folder| folder.join(PROJECT)).filter(|path| path.is_file());
    found.next().filter(|path| *path != own && Some(path) != home.as_ref())
}

/// Returns the layers of the machine and of the person, which are below every project's.
fn below_projects(caller: &Caller) -> Result<Layers, Error> {
    let mut layers = Layers::default();
    if let Some(text) = caller.variable(RUN_LIMITS).filter(|text| !text.is_empty()) {
        let limits: RunLimits = policy::from_json(text.as_bytes()).map_err(|e| {
            let why = format!("it is not as in {{\"timeout_ceiling_seconds\": 7200}}: {e}");
            Error::ParseSettings { path: RUN_LIMITS.into(), why }
        })?;
        if limits.timeout_ceiling_seconds == Some(0) {
            let why = "timeout_ceiling_seconds: `0` is no time for a run; give 1 or more".into();
            return Err(Error::ParseSettings { path: RUN_LIMITS.into(), why });
        }
        limits.timeout_ceiling_seconds.inspect(|ceiling| layers.bound(RUN_LIMITS, *ceiling));
    }
    if let Some(config) = system_proxies::declared(caller)? {
        layers.push(Origin::Variable(system_proxies::VARIABLE.into()), config);
    }
    if let Some(text) = read_layer_if_there(Path::new(MANAGED), Keeper::Machine)? {
        layers.push(Origin::Managed(MANAGED.into()), parse(Path::new(MANAGED), &text)?);
    }
    if let Some(path) = user_file(caller)
        && let Some(text) = read_user_file(&path, caller)?
    {
        layers.push(Origin::User(path.display().to_string()), parse(&path, &text)?);
    }
    Ok(layers)
}

/// Reads the person's file. Who has no home, as a service whose `HOME` is `/dev/null`, has none.
fn read_user_file(path: &Path, caller: &Caller) -> Result<Option<String>, Error> {
    read_layer_if_there(path, Keeper::Person).or_else(|error| {
        let named = caller.variable("XDG_CONFIG_HOME").map(Path::new).filter(|named| named.is_absolute());
        let is_no_folder = |it: &Path| it.metadata().is_ok_and(|about| !about.is_dir());
        named.or(caller.home.as_deref()).is_some_and(is_no_folder).then_some(None).ok_or(error)
    })
}

pub(crate) fn user_file(caller: &Caller) -> Option<PathBuf> {
    let named = caller.variable("XDG_CONFIG_HOME").filter(|p| Path::new(p).is_absolute()).map(PathBuf::from);
    let base = named.or_else(|| caller.home.as_ref().map(|home| home.join(".config")))?;
    Some(base.join("lockgate/config.toml"))
}

fn parse(path: &Path, text: &str) -> Result<RunConfig, Error> {
    let folder = path.parent().map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf()));
    parse_in(folder.as_deref(), path, text)
}

/// Parses a file whose relative paths are below a folder.
fn parse_in(folder: Option<&Path>, path: &Path, text: &str) -> Result<RunConfig, Error> {
    let mut config: RunConfig = toml::from_str(text)
        .map_err(|error| Error::ParseSettings { path: path.into(), why: why_unreadable(&error) })?;
    // Whoever approves a file approves the paths it names, wherever a run is started.
    let folder = folder.unwrap_or(Path::new("/"));
    let mounts = config.mount.iter_mut().map(|mount| &mut mount.source);
    let copies = config.copy.iter_mut().map(|copy| &mut copy.source);
    // `~` alone, or before a slash, is the home; `~data` is a name as any other. The empty path is none, and stays so to be refused.
    let is_relative = |source: &Path| !source.is_absolute() && !source.starts_with("~") && source != "";
    for source in mounts.chain(copies).filter(|source| is_relative(Path::new(source.as_str()))) {
        *source = folder.join(&*source).to_string_lossy().into_owned();
    }
    Ok(config)
}

/// Reads `LOCKGATE_*`, and the two names by which existing set-ups ask for no sandbox: a layer of each variable, which is named by it.
fn from_environment(caller: &Caller) -> Result<Vec<(&'static str, RunConfig)>, Error> {
    let mut layers = Vec::new();
    let text = |name: &str| caller.variable(name).filter(|v| !v.is_empty()).map(str::to_owned);
    let backends = ["LOCKGATE_BACKEND", "LOCKGATE_SANDBOX", "RUN_ADAPTER"];
    if let Some((name, word)) = backends.into_iter().find_map(|name| Some((name, text(name)?))) {
        // Of a sandbox, unlike of a backend, there may be none. S4.15
        let is_none = name == "LOCKGATE_SANDBOX" && word == "none";
        let backend = if is_none { Backend::Process.to_string() } else { word };
        layers.push((name, RunConfig { backend: Some(backend), ..RunConfig::default() }));
    }
    let mut read = |name: &'static str, set: fn(&mut RunConfig, String)| {
        if let Some(text) = text(name) {
            let mut config = RunConfig::default();
            set(&mut config, text);
            layers.push((name, config));
        }
    };
    read("LOCKGATE_IMAGE", |config, text| config.image = Some(text));
    read("LOCKGATE_TIMEOUT", |config, text| config.timeout = Some(text));
    read("LOCKGATE_MEMORY", |config, text| config.limits.memory = Some(text));
    read("LOCKGATE_DISK", |config, text| config.limits.disk = Some(text));
    read("LOCKGATE_LIMITS", |config, text| config.limits.enforce = Some(text));
    read("LOCKGATE_CPUS", |config, text| config.limits.cpus = Some(policy::Number::Text(text)));
    read("LOCKGATE_PRESETS", |config, text| {
        config.presets = text.split(',').map(|name| name.trim().to_owned()).collect();
    });
    if let Some(pids) = text("LOCKGATE_PIDS") {
        let bad = |error: ParseIntError| Error::ParseSettings {
            path: "LOCKGATE_PIDS".into(),
            why: match error.kind() {
                IntErrorKind::PosOverflow => {
                    format!("`{pids}` is too large: the largest is {}", policy::Limits::MOST_PIDS)
                }
                _ => format!("`{pids}` is not a whole number"),
            },
        };
        let mut config = RunConfig::default();
        config.limits.pids = Some(pids.parse().map_err(bad)?);
        layers.push(("LOCKGATE_PIDS", config));
    }
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A caller for whom one variable names a folder.
    fn caller(folder: &Path, variable: &str) -> Caller {
        let (directory, environment) = (folder.into(), vec![(variable.into(), folder.into())]);
        Caller { uid: 0, gid: 0, superuser: false, home: None, directory, environment }
    }

    #[test]
    fn a_relative_source_is_below_the_folder_of_its_file_and_the_home_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let below = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        for (source, expected) in [
            ("data", below("data")),
            ("~data", below("~data")),
            ("~", "~".to_owned()),
            ("~/data", "~/data".to_owned()),
            ("/data", "/data".to_owned()),
            ("", String::new()),
        ] {
            let text = format!(
                "[[mount]]\nsource = \"{source}\"\n[[copy]]\nsource = \"{source}\"\ntarget = \"/d\"\n"
            );
            let read = parse(&folder.join("pol.toml"), &text).unwrap();
            assert_eq!((&read.mount[0].source, &read.copy[0].source), (&expected, &expected));
        }
    }

    #[test]
    fn a_wrong_value_of_the_environment_is_told_by_its_variable() {
        for (variables, name, field) in [
            (&[("LOCKGATE_BACKEND", "Linux"), ("RUN_ADAPTER", "linux")][..], "LOCKGATE_BACKEND", "backend"),
            (&[("LOCKGATE_SANDBOX", "Linux")], "LOCKGATE_SANDBOX", "backend"),
            (&[("RUN_ADAPTER", "none")], "RUN_ADAPTER", "backend"),
            (&[("LOCKGATE_LIMITS", "off"), ("LOCKGATE_CPUS", "2")], "LOCKGATE_LIMITS", "limits.enforce"),
            (&[("LOCKGATE_PRESETS", "github, gitbut")], "LOCKGATE_PRESETS", "presets"),
        ] {
            let caller = Caller::new(1, 1, "/").with_env(variables.iter().copied());
            let error = Settings::load(&SettingsRequest::default(), &caller, None).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: {field}")), "{variables:?}: {error}");
        }
        let none = Caller::new(1, 1, "/").with_env([("LOCKGATE_SANDBOX", "none"), ("LOCKGATE_PIDS", "64")]);
        let settings = Settings::load(&SettingsRequest::default(), &none, None).unwrap();
        assert_eq!((settings.spec.backend, settings.spec.limits.pids), (Backend::Process, 64));
    }

    #[test]
    fn run_limits_are_an_object() {
        let bound = |text: &str| {
            let environment = vec![(RUN_LIMITS.into(), text.into())];
            let directory = "/".into();
            below_projects(&Caller { uid: 0, gid: 0, superuser: false, home: None, directory, environment })
        };
        assert!(bound("{\"timeout_ceiling_seconds\": 5}").is_ok());
        for text in ["[5]", "[]", "{\"timeout_ceiling_seconds\": 5} 6", "{\"timeout_ceiling_seconds\": 0}"] {
            let error = bound(text).unwrap_err();
            assert!(
                matches!(&error, Error::ParseSettings { path, .. } if path == Path::new(RUN_LIMITS)),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn who_has_no_home_has_no_file_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let of = |home: &Path, config: Option<&Path>| {
            let caller = Caller::new(1, 1, "/").with_home(home);
            let caller = match config {
                Some(config) => caller.with_env([("XDG_CONFIG_HOME", config.to_str().unwrap())]),
                None => caller,
            };
            read_user_file(&user_file(&caller).unwrap(), &caller)
        };
        for (home, config) in [
            (Path::new("/dev/null"), None),
            (&file, None),
            (folder.path(), Some(Path::new("/dev/null"))),
            (folder.path(), None),
            (Path::new("/dev/null"), Some(folder.path())),
        ] {
            assert!(of(home, config).unwrap().is_none(), "{home:?} {config:?}");
        }
        // What is in the way of a file in a home that is there hides it.
        std::fs::write(folder.path().join(".config"), "").unwrap();
        assert!(
            of(folder.path(), None).is_err() && of(Path::new("/dev/null"), Some(&file.join("x"))).is_err()
        );
    }

    #[test]
    fn a_number_of_processes_that_is_too_large_is_told_the_largest() {
        let read = |pids: &str| {
            let read = from_environment(&Caller::new(1, 1, "/").with_env([("LOCKGATE_PIDS", pids)]));
            read.map(|layers| layers[0].1.limits.pids).map_err(|error| error.to_string())
        };
        assert_eq!(read("4294967295"), Ok(Some(u32::MAX)));
        assert!(read("4294967296").unwrap_err().contains("the largest is 4194303"));
        assert!(read("many").unwrap_err().contains("not a whole number"));
    }

    #[test]
    fn none_is_a_word_for_a_sandbox_alone() {
        for (variable, backend) in
            [("LOCKGATE_SANDBOX", "process"), ("LOCKGATE_BACKEND", "none"), ("RUN_ADAPTER", "none")]
        {
            let caller = Caller::new(1, 1, "/").with_env([(variable, "none")]);
            let layers = from_environment(&caller).unwrap();
            assert_eq!((layers[0].0, layers[0].1.backend.as_deref()), (variable, Some(backend)));
        }
    }

    #[test]
    fn what_a_project_cannot_claim_is_refused_of_its_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lockgate")).unwrap();
        let own = "[[provider]]\nid = \"corp-api\"\nauthorized_uris = [\"https://api.corp.example/*\"]\n";
        std::fs::write(folder.path().join("lockgate/config.toml"), own).unwrap();
        let caller = caller(folder.path(), "XDG_CONFIG_HOME");
        let proxy = |credential: &str| -> RunConfig {
            let text = format!(
                "[[proxy]]\nid = \"p\"\nurl = \"http://proxy.example:3128\"\ncredential = \"{credential}\"\n"
            );
            toml::from_str(&text).unwrap()
        };
        let told = Settings::of_project("lockgate.toml", proxy("corp-api"), &caller).unwrap_err().to_string();
        assert!(told.contains("proxy[0].credential") && told.contains("corp-api"), "{told}");
        assert!(Settings::of_project("lockgate.toml", proxy("mine"), &caller).is_ok());
        assert!(Settings::of_file("lockgate.toml", proxy("corp-api"), &caller).is_ok());
    }

    #[test]
    fn the_credential_of_a_search_that_is_chosen_may_be_exposed() {
        let folder = tempfile::tempdir().unwrap();
        let caller = Caller::new(0, 0, folder.path()).with_env([("XDG_CONFIG_HOME", "/dev/null")]);
        let state = StateDirectory::for_test(folder.path());
        let acme = "acme".parse().unwrap();
        for (organisation, search) in [(None, "exa"), (Some(&acme), "brave")] {
            let vault = state.vault(organisation);
            std::fs::create_dir_all(&vault).unwrap();
            std::fs::write(vault.join(format!("{search}.json")), "{}").unwrap();
        }
        let exposed = |org: &str, variable: &str| {
            let text = format!("web_search = true\n{org}\nenv.variable.{variable} = {{ expose = true }}");
            let flags = toml::from_str(&text).unwrap();
            let request = SettingsRequest { flags, no_project: true, ..SettingsRequest::default() };
            let spec = Settings::load(&request, &caller, Some(&state)).unwrap().spec;
            spec.policy.providers().map(|it| (it.id().to_string(), it.exposed().to_vec())).collect::<Vec<_>>()
        };
        for (org, search, variable) in
            [("", "exa", "EXA_API_KEY"), ("org = \"acme\"", "brave", "BRAVE_SEARCH_API_KEY")]
        {
            assert_eq!(exposed(org, variable), [(search.into(), vec![variable.into()])]);
        }
    }

    #[test]
    fn the_file_of_a_project_is_in_the_workspace_wherever_that_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for (name, text) in [
            ("l/lockgate.toml", "egress.deny = [{ host = \"l.example\" }]"),
            ("here/lockgate.toml", "egress.deny = [{ host = \"here.example\" }]"),
            ("lockgate/config.toml", "workspace = \"~/l\""),
        ] {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), text).unwrap();
        }
        std::fs::create_dir_all(root.join("here/below")).unwrap();
        let caller = |config: &str| {
            let caller = Caller::new(0, 0, root.join("here")).with_home(&root);
            caller.with_env([("XDG_CONFIG_HOME", config)])
        };
        let named = |workspace: Option<&str>| SettingsRequest {
            workspace: workspace.map(|name| root.join(name)),
            ..SettingsRequest::default()
        };
        let of_file = caller(root.to_str().unwrap());
        for (caller, workspace, place) in
            [(&of_file, None, "l"), (&of_file, Some("here"), "here"), (&caller("/dev/null"), None, "here")]
        {
            let loaded = Settings::load(&named(workspace), caller, None).unwrap();
            assert_eq!(loaded.project, Some(root.join(place).join(PROJECT)));
            let denied: Vec<_> = loaded.spec.policy.rules().map(|(_, _, reach)| reach).collect();
            assert!(denied.len() == 1 && denied[0].starts_with(&format!("{place}.example")), "{denied:?}");
        }
        let above = |workspace: Option<&str>| {
            let request = named(workspace);
            let loaded = Settings::load(&request, &of_file, None).unwrap();
            let found = project_above(&request, &of_file);
            assert_eq!(loaded.project_above(&request, &of_file), found);
            found
        };
        assert_eq!(above(Some("here/below")), Some(root.join("here").join(PROJECT)));
        assert_eq!(above(None), None, "what is above the current folder is not above the workspace");
    }

    #[test]
    fn what_is_judged_is_what_a_run_would_have() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::for_test(folder.path());
        std::fs::create_dir_all(state.vault(None)).unwrap();
        std::fs::write(state.vault(None).join("exa.json"), "{}").unwrap();
        let judge = |text: &str, url: &str| {
            let caller = Caller::new(0, 0, folder.path());
            let caller = caller.with_env([
                ("XDG_CONFIG_HOME", "/dev/null"),
                ("PROXY_URL", url),
                ("NO_PROXY", "near.example, ::1"),
            ]);
            let flags = toml::from_str(text).unwrap();
            let request = SettingsRequest { flags, no_project: true, ..SettingsRequest::default() };
            let Verdict { layers, spec } = Settings::judge(&request, &caller, Some(&state)).unwrap();
            let loaded = Settings::load(&request, &caller, Some(&state));
            assert_eq!(
                spec.as_ref().map(|_| ()).map_err(ToString::to_string),
                loaded.as_ref().map(|_| ()).map_err(ToString::to_string)
            );
            let rows = spec.map(|spec| layers.in_force(&spec)).map_err(|error| error.to_string());
            rows.map(|rows| {
                let rows = rows.iter().filter(|row| !row.is_default());
                rows.map(|row| format!("{} = {} # {}", row.field, row.value, row.origin)).collect::<Vec<_>>()
            })
        };
        let exposing = "web_search = true\nenv.variable.EXA_API_KEY = { expose = true }";
        let shown = judge(exposing, "").unwrap();
        assert!(shown.contains(&"providers = [\"exa\"] # command line".into()), "{shown:?}");
        let shown = judge("", "http://proxy.example:3128").unwrap().join("\n");
        for row in [
            "egress.proxy = \"PROXY_URL\" # PROXY_URL",
            "egress.no_proxy = [\"near.example\", \"**.near.example\", \"[::1]\"] # PROXY_URL",
            "url = \"http://proxy.example:3128\"",
        ] {
            assert!(shown.contains(row), "{row}: {shown}");
        }
        let shown = judge("", "http://bob:word@proxy.example:3128").unwrap().join("\n");
        assert!(
            shown.contains("egress.proxy") && !shown.contains("bob") && !shown.contains("word"),
            "{shown}"
        );
        let chosen = judge("egress.proxy = \"direct\"", "http://proxy.example:3128").unwrap();
        assert_eq!(chosen, ["egress.proxy = \"direct\" # command line"]);
        assert!(judge("", "ftp://proxy.example").unwrap_err().contains("PROXY_URL"));
    }

    #[test]
    fn a_tool_that_there_is_not_is_judged_as_a_run_would() {
        let folder = tempfile::tempdir().unwrap();
        let caller = Caller::new(0, 0, folder.path()).with_env([("XDG_CONFIG_HOME", "/dev/null")]);
        for (text, told) in [
            ("tools = [\"rustop\"]", "no tool `rustop`"),
            ("builtin_tools = [\"gitt\"]", "no built-in tool `gitt`"),
            ("tools = [\"rustup\"]\nbuiltin_tools = [\"git\"]", ""),
        ] {
            let flags = toml::from_str(text).unwrap();
            let request = SettingsRequest { flags, no_project: true, ..SettingsRequest::default() };
            let judged = Settings::judge(&request, &caller, None).unwrap().spec.map(drop);
            let error = judged.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(told) && error.is_empty() == told.is_empty(), "{text}: {error}");
        }
    }

    #[test]
    fn a_project_narrows_what_the_person_has_and_not_what_the_program_begins_with() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lockgate")).unwrap();
        let own = "timeout = \"5m\"\nlimits.memory = \"256MiB\"\nllm.budget.usd = 1\n";
        std::fs::write(folder.path().join("lockgate/config.toml"), own).unwrap();
        let caller = caller(folder.path(), "XDG_CONFIG_HOME");
        let narrows = |text: &str| Settings::narrows_only(toml::from_str(text).unwrap(), &caller);
        for wider in [
            "timeout = \"30m\"",
            "limits.memory = \"1536MiB\"",
            "llm.budget.usd = 1000",
            "presets = [\"github\"]",
        ] {
            assert!(!narrows(wider), "{wider}");
        }
        for less in ["", "timeout = \"1m\"", "limits.memory = \"128MiB\"", "llm.budget.usd = 0.5"] {
            assert!(narrows(less), "{less}");
        }
    }
}
