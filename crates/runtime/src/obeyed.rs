//! Mounts for writing of what programs of the caller's obey: their settings in the home, by the list of protected paths and by
//! one of what only a home has.

use std::path::Path;

use sandbox::{Caller, Plan};

/// What programs obey in a home and in no workspace: it is executed, or names what is (`core.hooksPath`, `credential_process`, `exec`).
const OF_HOMES: [&str; 14] = [
    ".aws/config",
    ".cargo/bin",
    ".cargo/config.toml",
    ".claude.json",
    ".config/autostart",
    ".config/fish",
    ".config/git",
    ".config/systemd",
    ".docker/cli-plugins",
    ".docker/config.json",
    ".kube/config",
    ".local/bin",
    ".npmrc",
    "bin",
];

/// Returns what to say of each such mount. The workspace is protected by the list itself.
pub(crate) fn written_inside(plan: &Plan, caller: &Caller) -> Vec<String> {
    let home = caller.home.as_deref();
    let mounts = plan.writable().filter(|shown| *shown != plan.workspace);
    mounts.filter_map(|shown| Some(told(shown.strip_prefix(home?).ok()?))).flatten().collect()
}

fn told(within: &Path) -> Option<String> {
    let holds_or_is_in = |own: &&str| Path::new(own).starts_with(within) || within.starts_with(own);
    let is_obeyed = sandbox::is_protected(within)
        || sandbox::leads_to_listed(within)
        || OF_HOMES.iter().any(holds_or_is_in);
    is_obeyed.then(|| {
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
        for named in [
            ".claude",
            ".claude/settings.json",
            ".claude.json",
            ".codex",
            ".ssh",
            ".bashrc",
            ".gemini",
            ".config",
            ".config/mise",
            ".config/git",
            ".config/fish/functions",
            ".local",
            ".local/bin",
            "bin",
            ".cargo",
            ".kube/config",
            ".npmrc",
        ] {
            let told = told(Path::new(named));
            assert!(told.is_some_and(|told| told.contains(&format!("`~/{named}`"))), "{named}");
        }
        for other in [
            "lockgate-codex",
            ".npm",
            ".cache/uv",
            "src/project",
            ".claude/worktrees/one",
            ".config/htop",
            ".cargo/registry",
            ".kube/cache",
            ".local/share",
            "binaries",
        ] {
            assert_eq!(told(Path::new(other)), None, "{other}");
        }
    }
}
