//! Resource limits of a run.

use crate::choice::parse_field;
use crate::enforcement::Enforcement;
use crate::error::ConfigError;
use crate::origin::{Origin, parse};
use crate::quantity::{ByteSize, CpuCount};
use crate::written::LimitsConfig;

/// The resource limits of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory, swap included. S1.30.
    pub memory: ByteSize,
    /// Processors. S1.31.
    pub cpus: CpuCount,
    /// Concurrent processes and threads.
    pub pids: u32,
    /// Octets written to the private directories.
    pub disk: ByteSize,
    /// What happens if one cannot be enforced.
    pub enforcement: Enforcement,
}

impl Limits {
    /// The fewest processes that a command starts in.
    pub const FEWEST_PIDS: u32 = 2;
    /// The most processes that a limit can be about: one less than a kernel has, for init.
    pub const MOST_PIDS: u32 = (4 << 20) - 1;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: ByteSize::from_mib(1536),
            cpus: CpuCount::whole(2),
            pids: 512,
            disk: ByteSize::from_mib(4096),
            enforcement: Enforcement::Required,
        }
    }
}

/// Which limits a layer set explicitly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsAsked {
    /// Memory.
    pub memory: bool,
    /// Processors.
    pub cpus: bool,
    /// Processes.
    pub pids: bool,
}

impl LimitsAsked {
    /// Returns whether any limit was set.
    #[must_use]
    pub fn any(self) -> bool {
        self.memory || self.cpus || self.pids
    }

    pub(crate) fn add(&mut self, config: &LimitsConfig) {
        self.memory |= config.memory.is_some();
        self.cpus |= config.cpus.is_some();
        self.pids |= config.pids.is_some();
    }
}

/// Returns the limits of a companion: the defaults, with the values that `config` sets.
pub(crate) fn limits_of(origin: &Origin, field: &str, config: &LimitsConfig) -> Result<Limits, ConfigError> {
    let mut limits = Limits::default();
    set_limits(origin, field, config, &mut limits)?;
    Ok(limits)
}

pub(crate) fn set_limits(
    origin: &Origin,
    field: &str,
    config: &LimitsConfig,
    limits: &mut Limits,
) -> Result<(), ConfigError> {
    let LimitsConfig { memory, cpus, pids, disk, enforce } = config;
    if let Some(text) = memory {
        limits.memory = parse(origin, &format!("{field}.memory"), text)?;
    }
    if let Some(number) = cpus {
        limits.cpus = parse(origin, &format!("{field}.cpus"), &number.text())?;
    }
    if let Some(text) = disk {
        limits.disk = parse(origin, &format!("{field}.disk"), text)?;
    }
    if let Some(pids) = *pids {
        limits.pids = pids;
    }
    if let Some(word) = enforce {
        limits.enforcement = parse_field(&origin.to_string(), format!("{field}.enforce"), word)?;
    }
    refuse_impossible(&origin.to_string(), field, config, limits)
}

/// Refuses limits that no sandbox can have: it needs processes of its own, and no kernel has more of them than `PID_MAX_LIMIT`
/// (linux/threads.h).
fn refuse_impossible(
    origin: &str,
    field: &str,
    written: &LimitsConfig,
    limits: &Limits,
) -> Result<(), ConfigError> {
    const LEAST_MEMORY: u64 = 4 << 20;
    const LEAST_DISK: u64 = 64 << 10;
    // As it was written: in another unit it would be rounded.
    let size = |written: &Option<String>, size: ByteSize| written.clone().unwrap_or_else(|| size.to_string());
    let small = |part: &str, given: String, least: &str| {
        let problem = format!("{given} is too small to start in; give at least {least}");
        Err(ConfigError::new(origin, format!("{field}.{part}"), problem))
    };
    if limits.memory.bytes() < LEAST_MEMORY {
        return small("memory", size(&written.memory, limits.memory), "4MiB");
    }
    if limits.pids < Limits::FEWEST_PIDS {
        return small("pids", limits.pids.to_string(), &Limits::FEWEST_PIDS.to_string());
    }
    if limits.pids > Limits::MOST_PIDS {
        let most = Limits::MOST_PIDS;
        let problem = format!("{} is more than a kernel has; give at most {most}", limits.pids);
        return Err(ConfigError::new(origin, format!("{field}.pids"), problem));
    }
    if limits.disk.bytes() < LEAST_DISK {
        return small("disk", size(&written.disk, limits.disk), "64KiB");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_small_is_told_as_it_was_written() {
        for (part, text, least) in
            [("memory", "3MB", "4MiB"), ("disk", "2KB", "64KiB"), ("disk", "1", "64KiB")]
        {
            let config = toml::from_str(&format!("{part} = \"{text}\"")).unwrap();
            let refused = set_limits(&Origin::Flags, "limits", &config, &mut Limits::default()).unwrap_err();
            let told = format!("{text} is too small to start in; give at least {least}");
            assert!(refused.to_string().contains(&told), "{refused}");
        }
    }
}
