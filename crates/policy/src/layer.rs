//! Layers of configuration, merged in order and compiled into one [`RunSpec`](crate::RunSpec).
//!
//! ```text
//! managed ─► user ─► project ─► environment ─► flags      a later layer overrides a value, and adds to a list
//! ```
//! Two layers are special. Nothing can widen a *managed* policy: its limits are ceilings, and a destination that its rules do not
//! allow stays closed. A *project's* file is untrusted: until the user has approved its exact content it may only narrow the run.
//! If it would widen it, the run is refused with the name of the field, instead of applying half of the file.

use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::choice::Choice;
use crate::error::ConfigError;
use crate::organisation::OrganisationName;
use crate::origin::{Origin, parse};
use crate::written::RunConfig;

/// One layer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Layer {
    /// Its origin.
    pub origin: Origin,
    /// Its configuration.
    pub config: RunConfig,
}

/// The layers of a run, in order of increasing precedence.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Layers(pub(crate) Vec<Layer>);

/// A value and the layer that determined it.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The path of the field.
    pub field: String,
    /// Its value; for a list, the elements that the layer adds.
    pub value: toml::Value,
    /// The layer that gave it, or `default`.
    pub origin: String,
}

/// The origin of what no layer sets.
pub(crate) const DEFAULT: &str = "default";

impl Merged {
    /// Whether no layer sets it.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.origin == DEFAULT
    }
}

impl Layers {
    /// Adds a layer on top.
    pub fn push(&mut self, origin: Origin, config: RunConfig) {
        self.0.push(Layer { origin, config });
    }

    /// Adds a bound on the timeout from the environment. It replaces the product's own ceiling; a managed policy overrides it. S1.34
    pub fn bound(&mut self, variable: &str, seconds: u32) {
        let config = RunConfig { timeout: Some(format!("{seconds}s")), ..RunConfig::default() };
        self.0.insert(0, Layer { origin: Origin::Bound(variable.into()), config });
    }

    /// Adds an image from the user's environment if a layer names a backend that needs one and no layer names the image. The variable
    /// selects the image, but never makes a run use one. S1.6
    pub fn fall_back_to_image(&mut self, variable: &str, image: &str) {
        let word = self.0.iter().rev().find_map(|layer| layer.config.backend.as_deref());
        let is_named = self.0.iter().any(|layer| layer.config.image.is_some());
        let needs_one = matches!(word.and_then(Backend::read), Some(Backend::Container | Backend::Docker));
        if needs_one && !is_named {
            let config = RunConfig { image: Some(image.into()), ..RunConfig::default() };
            self.push(Origin::Variable(variable.into()), config);
        }
    }

    /// Adds an organisation from the user's environment if no layer names one. It is only a default: a variable that some shell has set
    /// must not change whose keys a policy asks for. S1.27
    pub fn fall_back_to_organisation(&mut self, variable: &str, name: &str) {
        if self.0.iter().all(|layer| layer.config.org.is_none()) {
            let config = RunConfig { org: Some(name.into()), ..RunConfig::default() };
            self.push(Origin::Variable(variable.into()), config);
        }
    }

    /// Returns the organisation that the last layer to name one names, whatever the other fields say.
    ///
    /// # Errors
    /// If it is no name of one.
    pub fn organisation(&self) -> Result<Option<OrganisationName>, ConfigError> {
        let named = self.0.iter().rev().find_map(|layer| Some((&layer.origin, layer.config.org.as_deref()?)));
        named.map(|(origin, name)| parse(origin, "org", name)).transpose()
    }

    /// Returns the workspace that the last layer to name one names, whatever the other fields say.
    #[must_use]
    pub fn workspace(&self) -> Option<&str> {
        self.0.iter().rev().find_map(|layer| layer.config.workspace.as_ref()?.path())
    }

    /// Returns every field that a layer sets, with its value and that layer, and each default that no layer overrides.
    #[must_use]
    pub fn origins(&self) -> Vec<Merged> {
        let mut rows = Vec::new();
        if let Some(defaults) = self.defaults() {
            list(&defaults, DEFAULT, &mut rows);
        }
        for layer in &self.0 {
            list(&layer.config, &layer.origin.to_string(), &mut rows);
        }
        rows
    }

    /// Returns what holds where no layer says anything: what a run is compiled to that has no layers but the backend, the image and the
    /// presets of these, which bring defaults of their own.
    fn defaults(&self) -> Option<RunConfig> {
        let mut said = Self::default();
        for Layer { origin, config } in &self.0 {
            let RunConfig { backend, image, presets, .. } = config.clone();
            said.push(origin.clone(), RunConfig { backend, image, presets, ..RunConfig::default() });
        }
        let spec = said.compile().or_else(|_| Self::default().compile()).ok()?;
        Some(spec.written())
    }
}

/// Adds what a layer sets to the rows. A value replaces that of the layers before, and a list stands beside theirs.
fn list(config: &RunConfig, origin: &str, rows: &mut Vec<Merged>) {
    let Ok(written) = toml::Value::try_from(config) else { return };
    flatten("", &written, &mut |field, value| {
        // The short form of that field.
        let field = if field == "workspace" { "workspace.path" } else { field };
        let row = Merged { field: field.into(), value: value.clone(), origin: origin.into() };
        match rows.iter_mut().find(|r| r.field == row.field && !value.is_array()) {
            Some(old) => *old = row,
            None => rows.push(row),
        }
    });
}

/// Calls `row` for each leaf and each list below `value`.
pub(crate) fn flatten(path: &str, value: &toml::Value, row: &mut impl FnMut(&str, &toml::Value)) {
    match value {
        toml::Value::Table(table) => {
            for (key, inner) in table {
                let key = written_key(key);
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                flatten(&path, inner, row);
            }
        }
        leaf => row(path, leaf),
    }
}

/// Returns a key in TOML: in quotes if it is not a bare key.
fn written_key(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if is_bare { key.to_owned() } else { toml::Value::from(key).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    // S1.6, S1.44
    #[test]
    fn an_image_of_the_environment_is_heard_where_one_is_needed_and_none_is_named() {
        let image = |texts: &[&str]| {
            let mut layers = Layers::default();
            for text in texts {
                layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
            }
            layers.fall_back_to_image("PI_IMAGE", "pi:1");
            let from = layers.origins().into_iter().find(|row| row.field == "image").map(|row| row.origin);
            let spec = layers.compile().unwrap();
            (spec.backend, spec.image, from)
        };
        let found = |backend| (backend, Some("pi:1".into()), Some("PI_IMAGE".into()));
        assert_eq!(image(&["backend = \"docker\""]), found(Backend::Docker));
        assert_eq!(image(&["backend = \"linux\"", "backend = \"container\""]), found(Backend::Container));
        assert_eq!(image(&[]), (Backend::Linux, None, None));
        assert_eq!(image(&["backend = \"docker\"", "backend = \"linux\""]), (Backend::Linux, None, None));
        let named = (Backend::Docker, Some("mine".into()), Some("file".into()));
        assert_eq!(image(&["backend = \"docker\"\nimage = \"mine\""]), named);
    }

    #[test]
    fn a_whole_address_in_the_place_of_a_host_is_told_where_it_goes() {
        let refused = |origin: Origin, list: &str, host: &str| {
            let mut layers = Layers::default();
            layers
                .push(origin, toml::from_str(&format!("egress.{list} = [{{ host = \"{host}\" }}]")).unwrap());
            layers.compile().unwrap_err()
        };
        let file = || Origin::Named("file".into());
        for (host, line) in [
            ("https://example.com", "url = \"https://example.com/*\""),
            ("https://example.com/", "url = \"https://example.com/*\""),
            ("http://example.com:8080/a/b", "url = \"http://example.com:8080/a/b\""),
            ("ssh://example.com", "db.example.com:5432"),
            ("https://example.com/?a", "db.example.com:5432"),
        ] {
            for list in ["allow", "deny"] {
                let error = refused(file(), list, host);
                assert!(error.problem.contains("a whole address goes into `url`"), "{error}");
                let hint = error.hint.unwrap_or_default();
                assert!(hint.contains(line), "{host}: {hint}");
                if let Some(url) = hint.strip_prefix("url = ") {
                    let config = toml::from_str(&format!("egress.{list} = [{{ url = {url} }}]")).unwrap();
                    let mut layers = Layers::default();
                    layers.push(file(), config);
                    assert!(layers.compile().is_ok(), "{hint}");
                }
            }
        }
        let hint = refused(Origin::Flags, "allow", "https://example.com:8443").hint.unwrap_or_default();
        assert!(
            hint.starts_with("--allow example.com:8443,") && hint.contains("'https://example.com:8443/*'"),
            "{hint}"
        );
    }

    #[test]
    fn a_place_as_git_writes_it_is_told_its_host() {
        let refused = |host: &str| {
            let mut layers = Layers::default();
            let text = format!("egress.allow = [{{ host = \"{host}\" }}]");
            layers.push(Origin::Flags, toml::from_str(&text).unwrap());
            layers.compile().unwrap_err()
        };
        for host in ["git@github.com:x/y.git", "git@github.com"] {
            let hint = refused(host).hint.unwrap_or_default();
            assert!(hint.ends_with("github.com:22"), "{host}: {hint}");
        }
        assert!(refused("github.com:x").hint.is_none());
    }

    #[test]
    fn what_is_merged_reads_as_a_file() {
        let mut layers = Layers::default();
        let text =
            "presets = [\"github\"]\nworkspace = \"/srv\"\nlabels = { \"a.b\" = \"c\" }\nlimits.cpus = 1";
        layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
        let rows = layers.origins();
        let lines: Vec<_> = rows.iter().map(|row| format!("{} = {}", row.field, row.value)).collect();
        let read: RunConfig = toml::from_str(&lines.join("\n")).unwrap();
        assert_eq!(read.presets, ["github"]);
        for (field, origin) in [
            ("workspace.path", "file"),
            ("labels.\"a.b\"", "file"),
            ("limits.cpus", "file"),
            ("timeout", "default"),
            ("limits.pids", "default"),
            ("egress.default", "default"),
        ] {
            assert!(rows.iter().any(|row| row.field == field && row.origin == origin), "{field}: {rows:?}");
        }
    }

    #[test]
    fn defaults_are_those_that_a_run_has() {
        let shown = |text: &str| {
            let mut layers = Layers::default();
            layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
            let rows = layers.origins().into_iter().filter(Merged::is_default);
            rows.map(|row| format!("{} = {}", row.field, row.value)).collect::<Vec<_>>()
        };
        let all = [
            "backend = \"linux\"",
            "egress.default = \"deny\"",
            "egress.denied_status = 403",
            "egress.scrub = \"strict\"",
            "limits.cpus = 2",
            "limits.disk = \"4GiB\"",
            "limits.enforce = \"required\"",
            "limits.memory = \"1536MiB\"",
            "limits.pids = 512",
            "name_addresses = \"198.18.0.0/15\"",
            "terminal = \"auto\"",
            "timeout = \"30m\"",
            "wiring = \"redirect\"",
            "workspace.mode = \"rw\"",
        ];
        let mut found = shown("");
        found.sort_unstable();
        assert_eq!(found, all);
        // Without walls there is no private directory that could be bounded.
        let of_process = shown("backend = \"process\"");
        assert!(
            !of_process.is_empty() && !of_process.iter().any(|row| row.contains("disk")),
            "{of_process:?}"
        );
        // An image has a backend of its own, and a preset may open what is closed.
        assert!(shown("image = \"x\"").contains(&"backend = \"container\"".to_owned()));
        assert!(
            shown("presets = [\"open-internet\"]").contains(&"egress.default = \"open-internet\"".to_owned())
        );
        // It compiles to what no file at all compiles to.
        let mut written = Layers::default();
        written.push(Origin::Named("file".into()), toml::from_str(&all.join("\n")).unwrap());
        let (written, none) = (written.compile().unwrap(), Layers::default().compile().unwrap());
        assert_eq!((written.limits, written.timeout), (none.limits, none.timeout));
    }

    #[test]
    fn an_image_without_a_name_is_refused() {
        let compiled = |text: &str| {
            let mut layers = Layers::default();
            layers.push(Origin::Flags, toml::from_str(text).unwrap());
            layers.compile()
        };
        let error = compiled("image = \"\"").unwrap_err();
        assert!(error.to_string().contains("image: it is empty") && error.hint.is_some(), "{error}");
        assert!(compiled("image = \"x\"").is_ok());
    }
}
