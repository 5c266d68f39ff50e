//! The longest timeout of a run, and what sets it. S1.34, S1.36

use std::fmt;

use crate::error::ConfigError;
use crate::layer::Layer;
use crate::origin::{Origin, parse};
use crate::quantity::Span;

/// The longest timeout of a run, unless something sets another. S1.34
pub(crate) const TIMEOUT_CEILING: Span = Span::from_secs(1800);

/// The variable and the file that set another.
const VARIABLE: &str = "PLATFORM_RUN_LIMITS";
const FILE: &str = "/etc/lockgate/policy.toml";

/// What sets the longest timeout of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeoutCeiling {
    /// The managed policy at this path.
    Managed(String),
    /// The variable of this name.
    Variable(String),
    /// Nothing but this program.
    Default,
}

/// Says that it allows no more.
impl fmt::Display for TimeoutCeiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed(path) => write!(f, "`timeout` in {path} allows no more"),
            Self::Variable(name) => write!(f, "{name} allows no more"),
            Self::Default => {
                write!(f, "no run takes longer, unless {VARIABLE} or `timeout` in {FILE} allows it")
            }
        }
    }
}

impl TimeoutCeiling {
    fn of(origin: &Origin) -> Option<Self> {
        match origin {
            Origin::Managed(path) => Some(Self::Managed(path.clone())),
            Origin::Bound(name) => Some(Self::Variable(name.clone())),
            _ => None,
        }
    }

    /// Says how a longer timeout is had.
    fn raise(&self, wish: Span) -> String {
        let seconds = wish.duration().as_secs();
        let bound = format!("{VARIABLE}='{{\"timeout_ceiling_seconds\": {seconds}}}'");
        match self {
            Self::Managed(path) => format!("the ceiling is `timeout` in {path}"),
            Self::Variable(name) => format!("{name} sets the ceiling; to raise it, set {bound}"),
            Self::Default => {
                format!("to raise it, set {bound} before the command, or `timeout = \"{wish}\"` in {FILE}")
            }
        }
    }
}

/// A timeout as a run has it.
pub(crate) struct Clamped {
    pub(crate) timeout: Span,
    /// What allows no more, if it is all that the run may have.
    pub(crate) ceiling: Option<TimeoutCeiling>,
    /// What the user is told of a wish that was cut.
    pub(crate) notice: Option<String>,
}

/// Cuts a timeout to the longest one allowed.
///
/// # Errors
/// When that is no time.
pub(crate) fn clamp(layers: &[Layer], wish: Span) -> Result<Clamped, ConfigError> {
    let (longest, ceiling) = longest(layers)?;
    let notice = (wish > longest).then(|| {
        let raise = ceiling.raise(wish);
        format!("timeout {wish} is longer than the ceiling; the run ends after {longest} ({raise})")
    });
    Ok(Clamped { timeout: wish.min(longest), ceiling: (wish >= longest).then_some(ceiling), notice })
}

/// Returns the longest allowed timeout: the managed policy's, the environment's, or the product's own.
fn longest(layers: &[Layer]) -> Result<(Span, TimeoutCeiling), ConfigError> {
    let set = layers.iter().filter_map(|layer| {
        Some((TimeoutCeiling::of(&layer.origin)?, &layer.origin, layer.config.timeout.as_ref()?))
    });
    match set.min_by_key(|(ceiling, ..)| matches!(ceiling, TimeoutCeiling::Variable(_))) {
        Some((ceiling, origin, text)) => Ok((parse(origin, "timeout", text)?, ceiling)),
        None => Ok((TIMEOUT_CEILING, TimeoutCeiling::Default)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layers;
    use crate::spec::RunSpec;

    fn compiled(layers: &[(Origin, &str)], bound: Option<u32>) -> RunSpec {
        let mut all = Layers::default();
        for (origin, text) in layers {
            all.push(origin.clone(), toml::from_str(text).unwrap());
        }
        if let Some(seconds) = bound {
            all.bound(VARIABLE, seconds);
        }
        all.compile().unwrap()
    }

    #[test]
    fn a_longer_wish_is_cut_and_told_with_the_line_that_raises_the_ceiling() {
        let notice = |layers: &[(Origin, &str)], bound: Option<u32>| {
            let spec = compiled(layers, bound);
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

    #[test]
    fn what_allows_no_more_is_named_where_a_run_has_all_that_it_may_have() {
        let managed = (Origin::Managed("/etc/policy".into()), "timeout = \"5m\"");
        let wish = |text| (Origin::Flags, text);
        let long = wish("timeout = \"2h\"");
        let variable = || Some(TimeoutCeiling::Variable(VARIABLE.into()));
        for (wishes, bound, ceiling) in [
            (vec![], None, Some(TimeoutCeiling::Default)),
            (vec![], Some(2), variable()),
            (vec![long.clone()], None, Some(TimeoutCeiling::Default)),
            (vec![long.clone()], Some(2), variable()),
            (vec![long.clone()], Some(7200), variable()),
            (vec![managed, long.clone()], Some(2), Some(TimeoutCeiling::Managed("/etc/policy".into()))),
            // A longer one would be had.
            (vec![wish("timeout = \"1m\"")], None, None),
            (vec![long], Some(7201), None),
        ] {
            assert_eq!(compiled(&wishes, bound).timeout_ceiling, ceiling, "{wishes:?} {bound:?}");
        }
    }
}
