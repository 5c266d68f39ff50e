//! `lockgate doctor`: what this machine can do, and how to mend what is missing.

use sandbox::{Check, Verdict};

use crate::exit::Done;
use crate::output::{self, Form};

/// The exit code if a default run would fail.
const WOULD_NOT_WORK: u8 = 1;

pub(crate) fn doctor(form: Form) -> Done {
    let checks = runtime::doctor(&super::caller()?);
    let works = checks.iter().all(|check| check.verdict != Verdict::Missing || check.group == "backends");
    match form {
        Form::Json => print_json(&checks, works)?,
        Form::Text => print_text(&checks, works)?,
    }
    Ok(if works { 0 } else { WOULD_NOT_WORK })
}

fn print_text(checks: &[Check], works: bool) -> Result<(), anyhow::Error> {
    let mut groups: Vec<&str> = Vec::new();
    for check in checks {
        if !groups.contains(&check.group) {
            groups.push(check.group);
        }
    }
    let width = checks.iter().map(|check| check.what.chars().count()).max().unwrap_or_default();
    for group in groups {
        output::data(group)?;
        for check in checks.iter().filter(|c| c.group == group) {
            let mark = match check.verdict {
                Verdict::Works => '✓',
                Verdict::Weaker => '!',
                Verdict::Missing => '✗',
            };
            // The error of a project's file may quote lines of it.
            let below = |text: &str| text.replace('\n', "\n      ");
            output::data(&format!("  {mark} {:<width$}  {}", check.what, below(&check.detail)))?;
            if let Some(remedy) = &check.remedy {
                output::data(&format!("      {}", below(remedy)))?;
            }
        }
    }
    let verdict = if works {
        "A default run works here: backend linux."
    } else {
        "A default run does not work here yet."
    };
    output::data(&format!("\n{verdict}"))?;
    Ok(())
}

fn print_json(checks: &[Check], works: bool) -> Result<(), anyhow::Error> {
    let rows: Vec<_> = checks
        .iter()
        .map(|check| {
            let verdict = match check.verdict {
                Verdict::Works => "works",
                Verdict::Weaker => "weaker",
                Verdict::Missing => "missing",
            };
            serde_json::json!({
                "group": check.group, "check": check.what, "verdict": verdict,
                "detail": check.detail, "remedy": check.remedy,
            })
        })
        .collect();
    output::data(&serde_json::json!({"default_run_works": works, "checks": rows}).to_string())?;
    Ok(())
}
