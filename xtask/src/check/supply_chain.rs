//! Checks what we link: bans, licences and sources always, advisories when their database can be reached.
//!
//! The rules themselves are data, in `deny.toml`.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::workspace::Workspace;

const CHECK_LIMIT: Duration = Duration::from_secs(180);

/// How long the download of the advisories may take. After that the check is skipped, and says so.
const FETCH_LIMIT: Duration = Duration::from_secs(30);

/// Runs cargo-deny.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo(&["deny", "--log-level=error", "check", "bans", "licenses", "sources"], CHECK_LIMIT)
        .run()?;
    match fetch(workspace)? {
        Fetched::Database => {
            let args = ["deny", "--log-level=error", "check", "--disable-fetch", "advisories"];
            workspace.cargo(&args, CHECK_LIMIT).run()
        }
        Fetched::Nothing { reason } => {
            eprintln!("    advisories: skipped, their database cannot be reached: {reason}");
            Ok(())
        }
    }
}

enum Fetched {
    Database,
    Nothing { reason: String },
}

fn fetch(workspace: &Workspace) -> Result<Fetched> {
    let output = workspace
        .cargo(&["deny", "--color=never", "fetch", "db"], FETCH_LIMIT)
        .env("GIT_TERMINAL_PROMPT", "0")
        .output()?;
    if output.status.success() {
        return Ok(Fetched::Database);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(124) => Ok(Fetched::Nothing { reason: format!("no answer in {} s", FETCH_LIMIT.as_secs()) }),
        // A database that cannot be read, or a broken deny.toml, must not pass for a missing network.
        Some(_) if stderr.contains("failed to fetch") => Ok(Fetched::Nothing { reason: brief(&stderr) }),
        _ => bail!("`cargo deny fetch db` ended with {}: {stderr}", output.status),
    }
}

/// Returns the last line that is not empty: cargo-deny prints the root cause there.
fn brief(stderr: &str) -> String {
    let line = stderr.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it gave no reason");
    line.chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_last_line_that_says_something() {
        assert_eq!(brief("fetching\n\n  caused by: no route  \n\n"), "caused by: no route");
        assert_eq!(brief(""), "it gave no reason");
    }
}
