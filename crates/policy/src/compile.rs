//! Compiles all layers into one [`RunSpec`].

use crate::apply::apply;
use crate::backend::{Backend, Wiring};
use crate::error::ConfigError;
use crate::layer::{Layer, Layers};
use crate::limits::{Limits, LimitsAsked};
use crate::llm::Spending;
use crate::mounts::WorkspaceMode;
use crate::name_network::NameNetwork;
use crate::origin::Origin;
use crate::rules::Policy;
use crate::spec::{EnvSpec, RunSpec, Terminal};
use crate::timeout::{self, Clamped, TIMEOUT_CEILING};
use crate::trust::{hold_to_managed, refuse_unapproved};
use crate::written::RunConfig;
use crate::{expose, search, settle};

impl Layers {
    /// Merges and compiles all layers.
    ///
    /// # Errors
    /// Returns the first invalid value, with its layer and field.
    pub fn compile(&self) -> Result<RunSpec, ConfigError> {
        let mut spec = RunSpec { layers: self.clone(), ..RunSpec::of_no_layer() };
        for layer in &self.0 {
            refuse_unapproved(layer, &spec)?;
            apply(layer, &mut spec)?;
        }
        self.settle_backend(&mut spec)?;
        for layer in &self.0 {
            hold_to_managed(layer, &mut spec)?;
        }
        let Clamped { timeout, ceiling, notice } = timeout::clamp(&self.0, spec.timeout)?;
        (spec.timeout, spec.timeout_ceiling) = (timeout, ceiling);
        spec.notices.extend(notice);
        search::settle(&self.0, &mut spec)?;
        settle::companions(&mut spec)?;
        expose::settle(&self.0, &mut spec)?;
        settle::inbound(&spec)?;
        settle::names(&mut spec);
        settle::name_addresses(self, &mut spec)?;
        settle::budget(&mut spec);
        Ok(spec)
    }

    /// Selects the `container` backend for an image, and requires an image for a backend that needs one.
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
                let is_managed = |layer: &Layer| {
                    matches!(layer.origin, Origin::Managed(_)) && layer.config.backend.is_some()
                };
                let hint = match self.0.iter().any(is_managed) {
                    true => "the managed policy holds every run to this backend: leave the image out",
                    false => "say `container` or `docker`, or leave the image out",
                };
                return Err(ConfigError::new(&origin, "backend", problem).with_hint(hint));
            }
            (None, Backend::Container | Backend::Docker, origin) => {
                let problem = format!("`{}` needs an image", spec.backend);
                let here =
                    if spec.backend == Backend::Docker { "docker image ls" } else { "lockgate image ls" };
                return Err(ConfigError::new(&origin.unwrap_or_default(), "image", problem).with_hint(
                    format!("name one: `image` in a policy, PI_IMAGE, or a run's --image; `{here}` shows those that are here"),
                ));
            }
            (Some(_), Backend::Container | Backend::Docker, Some(_))
            | (None, Backend::Linux | Backend::Process, _) => {}
        }
        Ok(())
    }
}

impl RunSpec {
    /// Returns what a run is before any layer says something.
    pub(crate) fn of_no_layer() -> Self {
        Self {
            backend: Backend::Linux,
            wiring: Wiring::default(),
            name_addresses: NameNetwork::default(),
            image: None,
            directory: None,
            workspace: None,
            workspace_mode: WorkspaceMode::ReadWrite,
            open: Vec::new(),
            timeout: TIMEOUT_CEILING,
            timeout_ceiling: None,
            terminal: Terminal::Auto,
            limits: Limits::default(),
            limits_asked: LimitsAsked::default(),
            disk_asked: false,
            env: EnvSpec::default(),
            mounts: Vec::new(),
            copies: Vec::new(),
            tools: Vec::new(),
            builtin_tools: Vec::new(),
            organisation: None,
            labels: Vec::new(),
            spending: Spending::default(),
            policy: Policy::default(),
            setup: Vec::new(),
            companions: Vec::new(),
            inbound: Vec::new(),
            notices: Vec::new(),
            layers: Layers::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_backend_is_advised_than_the_managed_policys() {
        let hint = |origin: Origin, other: &str| {
            let mut layers = Layers::default();
            layers.push(origin, toml::from_str("backend = \"linux\"").unwrap());
            layers.push(Origin::User("mine".into()), toml::from_str(other).unwrap());
            layers.push(Origin::Flags, toml::from_str("image = \"mine\"").unwrap());
            layers.compile().unwrap_err().hint.unwrap()
        };
        let managed = || Origin::Managed("/etc/policy".into());
        for other in ["", "backend = \"linux\""] {
            let told = hint(managed(), other);
            assert!(told.contains("leave the image out") && !told.contains("container"), "{told}");
        }
        let told = hint(Origin::User("mine".into()), "");
        assert!(told.contains("say `container` or `docker`"), "{told}");
    }
}
