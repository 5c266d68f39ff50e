//! Compiles all layers into one [`RunSpec`].

use crate::apply::apply;
use crate::backend::{Backend, Wiring};
use crate::error::ConfigError;
use crate::layer::Layers;
use crate::limits::{Limits, LimitsAsked};
use crate::llm::Spending;
use crate::mounts::WorkspaceMode;
use crate::origin::{Origin, parse};
use crate::quantity::Span;
use crate::rules::Policy;
use crate::spec::{EnvSpec, RunSpec, TIMEOUT_CEILING, Terminal};
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
        clamp_timeout(self.ceiling()?, &mut spec);
        search::settle(&self.0, &mut spec)?;
        settle::companions(&mut spec)?;
        expose::settle(&self.0, &mut spec)?;
        settle::inbound(&spec)?;
        settle::names(&mut spec);
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

    /// Returns the longest allowed timeout and its origin: the managed policy's, the environment's, or the product's own.
    fn ceiling(&self) -> Result<(Span, Option<&Origin>), ConfigError> {
        let timeout = |is: fn(&Origin) -> bool| {
            let layer = self.0.iter().find(|layer| is(&layer.origin))?;
            layer.config.timeout.as_ref().map(|text| (layer, text))
        };
        let managed = timeout(|origin| matches!(origin, Origin::Managed(_)));
        match managed.or_else(|| timeout(|origin| matches!(origin, Origin::Bound(_)))) {
            Some((layer, text)) => Ok((parse(&layer.origin, "timeout", text)?, Some(&layer.origin))),
            None => Ok((TIMEOUT_CEILING, None)),
        }
    }
}

impl RunSpec {
    /// Returns what a run is before any layer says something.
    pub(crate) fn of_no_layer() -> Self {
        Self {
            backend: Backend::Linux,
            wiring: Wiring::default(),
            image: None,
            directory: None,
            workspace: None,
            workspace_mode: WorkspaceMode::ReadWrite,
            open: Vec::new(),
            timeout: TIMEOUT_CEILING,
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

fn clamp_timeout((ceiling, whose): (Span, Option<&Origin>), spec: &mut RunSpec) {
    let wish = spec.timeout;
    if wish <= ceiling {
        return;
    }
    let raise = match whose {
        Some(managed @ Origin::Managed(_)) => format!("the ceiling is `timeout` in {managed}"),
        _ => {
            let seconds = wish.duration().as_secs();
            let bound = format!("PLATFORM_RUN_LIMITS='{{\"timeout_ceiling_seconds\": {seconds}}}'");
            match whose {
                Some(variable) => format!("{variable} sets the ceiling; to raise it, set {bound}"),
                None => format!(
                    "to raise it, set {bound} before the command, or `timeout = \"{wish}\"` in /etc/lockgate/policy.toml"
                ),
            }
        }
    };
    spec.notices
        .push(format!("timeout {wish} is longer than the ceiling; the run ends after {ceiling} ({raise})"));
    spec.timeout = ceiling;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_wish_is_cut_and_told_with_the_line_that_raises_the_ceiling() {
        let notice = |layers: &[(Origin, &str)], bound: Option<u32>| {
            let mut all = Layers::default();
            for (origin, text) in layers {
                all.push(origin.clone(), toml::from_str(text).unwrap());
            }
            if let Some(seconds) = bound {
                all.bound("PLATFORM_RUN_LIMITS", seconds);
            }
            let spec = all.compile().unwrap();
            (spec.timeout.to_string(), spec.notices.join("\n"))
        };
        let wish = (Origin::User("mine".into()), "timeout = \"2h\"");
        let line = "PLATFORM_RUN_LIMITS='{\"timeout_ceiling_seconds\": 7200}'";
        let (timeout, told) = notice(std::slice::from_ref(&wish), None);
        assert!(timeout == TIMEOUT_CEILING.to_string() && told.contains(line), "{timeout}: {told}");
        assert!(told.contains("`timeout = \"2h\"` in /etc/lockgate/policy.toml"), "{told}");
        let (_, told) = notice(std::slice::from_ref(&wish), Some(60));
        assert!(told.contains(line) && !told.contains("policy.toml"), "{told}");
        let managed = (Origin::Managed("/etc/policy".into()), "timeout = \"5m\"");
        let (_, told) = notice(&[managed, wish.clone()], Some(60));
        assert!(told.contains("/etc/policy") && !told.contains("PLATFORM_RUN_LIMITS"), "{told}");
        // With the line that the notice recommends, the requested timeout is granted.
        assert_eq!(notice(&[wish], Some(7200)), ("2h".to_owned(), String::new()));
    }
}
