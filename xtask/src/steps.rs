//! The steps of a command: each is announced, timed, and listed in a table at the end.
//!
//! A step that fails ends the command; nothing here may continue after an error.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// The steps done so far, and how long each took.
#[derive(Default)]
pub(crate) struct Steps(Vec<Step>);

struct Step {
    name: &'static str,
    took: Duration,
    ok: bool,
}

impl Steps {
    /// Runs one step and notes its time, whether it succeeds or not.
    pub(crate) fn run<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("==> {name}");
        let begun = Instant::now();
        let result = work();
        let step = Step { name, took: begun.elapsed(), ok: result.is_ok() };
        eprintln!("    {}", step.line(0));
        self.0.push(step);
        result.with_context(|| format!("step `{name}` failed"))
    }

    /// Formats one line for each step: name, verdict, seconds.
    pub(crate) fn table(&self) -> String {
        let width = self.0.iter().map(|step| step.name.len()).max().unwrap_or(0);
        self.0.iter().map(|step| format!("  {}\n", step.line(width))).collect()
    }
}

impl Step {
    fn line(&self, width: usize) -> String {
        let verdict = if self.ok { "ok" } else { "FAILED" };
        format!("{:width$}  {verdict:<6} {:>7.1} s", self.name, self.took.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_failed_steps_too() {
        let mut steps = Steps::default();
        steps.run("good", || Ok(())).unwrap();
        let error = steps.run::<()>("a bad one", || anyhow::bail!("no luck")).unwrap_err();
        assert_eq!(format!("{error:#}"), "step `a bad one` failed: no luck");
        assert_eq!(steps.table(), "  good       ok         0.0 s\n  a bad one  FAILED     0.0 s\n");
    }
}
