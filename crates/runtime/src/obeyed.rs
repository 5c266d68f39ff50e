//! Mounts for writing of what programs of the caller's obey: their settings in the home, by the list of protected paths.

use std::path::Path;

use sandbox::{Caller, Plan};

/// Returns what to say of each such mount. The workspace is protected by the list itself.
pub(crate) fn written_inside(plan: &Plan, caller: &Caller) -> Vec<String> {
    let home = caller.home.as_deref();
    let mounts = plan.writable().filter(|shown| *shown != plan.workspace);
    mounts.filter_map(|shown| Some(told(shown.strip_prefix(home?).ok()?))).flatten().collect()
}

fn told(within: &Path) -> Option<String> {
    sandbox::is_protected(within).then(|| {
        let within = within.to_string_lossy();
        format!(
            "`~/{}` is shown for writing: programs of this machine do later what the command writes there, as in hooks. If it is to keep \
             something between runs, mount a folder of its own in that place",
            within.escape_debug()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_programs_obey_are_named_and_no_other_folder() {
        for named in [".claude", ".claude/settings.json", ".codex", ".ssh", ".bashrc", ".gemini"] {
            let told = told(Path::new(named));
            assert!(told.is_some_and(|told| told.contains(&format!("`~/{named}`"))), "{named}");
        }
        for other in ["lockgate-codex", ".npm", ".cache/uv", "src/project", ".claude/worktrees/one"] {
            assert_eq!(told(Path::new(other)), None, "{other}");
        }
    }
}
