//! `lockgate doctor`: what this machine can do, and how to mend what is missing.

use sandbox::{Check, Verdict};

use crate::exit::Done;
use crate::output::{self, Form};

/// The exit code if a default run would fail.
const WOULD_NOT_WORK: u8 = 1;
/// The backend of a default run.
const BACKEND: &str = "linux";

pub(crate) fn doctor(form: Form) -> Done {
    let checks = runtime::doctor(&super::caller()?);
    let works = !checks.iter().any(Check::prevents_a_run);
    match form {
        Form::Json => print_json(&checks, works)?,
        Form::Text => print_text(&checks)?,
    }
    Ok(if works { 0 } else { WOULD_NOT_WORK })
}

fn print_text(checks: &[Check]) -> Result<(), anyhow::Error> {
    let mut groups: Vec<&str> = Vec::new();
    for check in checks {
        if !groups.contains(&check.group) {
            groups.push(check.group);
        }
    }
    let width = checks.iter().map(|check| check.what.chars().count()).max().unwrap_or_default();
    for group in groups {
        output::answer(group)?;
        for check in checks.iter().filter(|c| c.group == group) {
            let mark = match check.verdict {
                Verdict::Works => '✓',
                Verdict::Weaker => '!',
                Verdict::Missing => '✗',
            };
            // The error of a project's file may quote lines of it.
            let below = |text: &str| text.replace('\n', "\n      ");
            output::answer(&format!("  {mark} {:<width$}  {}", check.what, below(&check.detail)))?;
            if let Some(remedy) = &check.remedy {
                output::answer(&format!("      {}", below(remedy)))?;
            }
        }
    }
    output::answer(&format!("\n{}", verdict(checks)))?;
    Ok(())
}

fn verdict(checks: &[Check]) -> String {
    let mut preventing =
        checks.iter().filter(|check| check.prevents_a_run()).map(|check| check.what.as_str());
    match (preventing.next(), preventing.next()) {
        (None, _) => format!("A default run works here: backend {BACKEND}."),
        (Some(runtime::FOLDER_CHECK), None) => {
            "No other check failed; say it again in the folder of a project.".to_owned()
        }
        _ => "A default run does not work here yet.".to_owned(),
    }
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
    output::answer(
        &serde_json::json!({"default_run_works": works, "backend": BACKEND, "checks": rows}).to_string(),
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_no_run_may_have_is_not_blamed_on_the_machine() {
        let missing = |group, what| Check::lacks(group, what, Verdict::Missing, String::new(), None);
        let folder = || missing("settings", runtime::FOLDER_CHECK);
        for (checks, told) in [
            (vec![Check::works("settings", runtime::FOLDER_CHECK, "/x")], "A default run works here"),
            (vec![folder()], "No other check failed"),
            (vec![folder(), missing("kernel", "namespaces")], "does not work here yet"),
            (vec![missing("kernel", "namespaces")], "does not work here yet"),
        ] {
            assert!(verdict(&checks).contains(told), "{told}: {}", verdict(&checks));
        }
    }
}
