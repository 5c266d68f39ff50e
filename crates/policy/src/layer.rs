//! Layers of configuration, merged in order and compiled into one [`RunSpec`].
//!
//! ```text
//! managed ─► user ─► project ─► environment ─► flags      a later layer overrides a value, and adds to a list
//! ```
//! Two layers are special. Nothing can widen a *managed* policy: its limits are ceilings, and what its rules do not
//! allow stays closed. A *project's* file is untrusted: until the person has approved its exact content it may only
//! narrow, and one that would widen refuses the run by name instead of being half obeyed.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::apply::{apply, parse};
use crate::config::RunConfig;
use crate::error::ConfigError;
use crate::place::WorkspaceMode;
use crate::quantity::Span;
use crate::rule::Policy;
use crate::spec::{Backend, RunSpec, TIMEOUT_CEILING, Terminal, Wiring};
use crate::trust::{hold_to_managed, refuse_unapproved};

/// Where a layer came from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
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
    /// A variable of other programs', by its name, which is heard where nothing else says it.
    Variable(String),
    /// Command-line flags.
    Flags,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed(path) | Self::User(path) | Self::Project { path, .. } | Self::Named(path) => {
                f.write_str(path)
            }
            Self::Variable(name) => f.write_str(name),
            Self::Environment => f.write_str("environment"),
            Self::Flags => f.write_str("command line"),
        }
    }
}

/// One layer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Layer {
    /// Where it came from.
    pub origin: Origin,
    /// What it says.
    pub config: RunConfig,
}

/// The layers of a run, in order of increasing precedence.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
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
            wiring: Wiring::default(),
            image: None,
            directory: None,
            workspace: None,
            workspace_mode: WorkspaceMode::ReadWrite,
            open: Vec::new(),
            timeout: TIMEOUT_CEILING,
            terminal: Terminal::Auto,
            limits: crate::Limits::default(),
            limits_asked: false,
            env: crate::EnvSpec::default(),
            mounts: Vec::new(),
            copies: Vec::new(),
            tools: Vec::new(),
            builtin_tools: Vec::new(),
            organisation: None,
            labels: Vec::new(),
            spending: crate::Spending::default(),
            policy: Policy::default(),
            setup: Vec::new(),
            companions: Vec::new(),
            inbound: Vec::new(),
            notices: Vec::new(),
            layers: self.clone(),
        };
        for layer in &self.0 {
            refuse_unapproved(layer, &spec)?;
            apply(layer, &mut spec)?;
        }
        self.settle_backend(&mut spec)?;
        for layer in &self.0 {
            hold_to_managed(layer, &mut spec)?;
        }
        clamp_timeout(self.ceiling()?, &mut spec);
        crate::companion::settle(&mut spec)?;
        crate::expose::settle(&self.0, &mut spec)?;
        crate::inbound::settle(&spec)?;
        Ok(spec)
    }

    /// Adds an image of the person's environment where a backend that needs one was named, and no layer names the image: the variable
    /// says which image, and never that there is to be one. S1.6
    pub fn fall_back_to_image(&mut self, variable: &str, image: &str) {
        let backend = self.0.iter().rev().find_map(|layer| layer.config.backend.as_deref());
        let is_named = self.0.iter().any(|layer| layer.config.image.is_some());
        if matches!(backend, Some("container" | "docker")) && !is_named {
            let config = RunConfig { image: Some(image.into()), ..RunConfig::default() };
            self.push(Origin::Variable(variable.into()), config);
        }
    }

    /// Adds an organisation of the person's environment where no layer names one: a default, so that whose keys a policy asks for is
    /// not changed by a variable that some shell has set. S1.27
    pub fn fall_back_to_organisation(&mut self, variable: &str, name: &str) {
        if self.0.iter().all(|layer| layer.config.org.is_none()) {
            let config = RunConfig { org: Some(name.into()), ..RunConfig::default() };
            self.push(Origin::Variable(variable.into()), config);
        }
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

    /// An image asks for the backend that has one, and the other way round.
    fn settle_backend(&self, spec: &mut RunSpec) -> Result<(), ConfigError> {
        let last = |says: fn(&RunConfig) -> bool| {
            self.0.iter().rfind(|layer| says(&layer.config)).map(|layer| layer.origin.to_string())
        };
        let named = last(|config| config.backend.is_some());
        match (&spec.image, spec.backend, named) {
            (Some(_), _, None) => spec.backend = Backend::Container,
            (Some(_), Backend::Linux | Backend::Process, Some(origin)) => {
                let problem =
                    format!("`{}` has the files of this machine, and an image was named", spec.backend);
                return Err(ConfigError::new(&origin, "backend", problem)
                    .with_hint("say `container` or `docker`, or leave the image out"));
            }
            (None, Backend::Container | Backend::Docker, origin) => {
                let problem = format!("`{}` needs an image", spec.backend);
                let here =
                    if spec.backend == Backend::Docker { "docker image ls" } else { "lockgate image ls" };
                return Err(ConfigError::new(&origin.unwrap_or_default(), "image", problem).with_hint(
                    format!("name one with --image or PI_IMAGE; `{here}` shows those that are here"),
                ));
            }
            (Some(_), Backend::Container | Backend::Docker, Some(_))
            | (None, Backend::Linux | Backend::Process, _) => {}
        }
        Ok(())
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
}
