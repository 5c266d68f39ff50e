//! What built-in tools bring into a plan: files that were prepared outside, and caches under a private layer. What the policy
//! itself puts at such a place stays, and the file or cache is left out.

use std::path::{Path, PathBuf};

use policy::{ByteSize, RunSpec};

use crate::host::Host;
use crate::plan::Additions;
use crate::step::{PrivateFile, Source, Step, Visible};

/// Adds the steps, before anything of the policy's own is shown: nothing is written through a mount.
pub(super) fn bring(
    steps: &mut Vec<Step>,
    spec: &RunSpec,
    home: &Path,
    host: &Host,
    additions: &Additions,
    notices: &mut Vec<String>,
) {
    let taken: Vec<PathBuf> = steps.iter().filter_map(target).map(Path::to_path_buf).collect();
    let mut is_free = |path: &Path| {
        let free = !taken.iter().any(|taken| path.starts_with(taken) || taken.starts_with(path));
        if !free {
            notices.push(format!("`{}` is not brought in: the policy shows something there", path.display()));
        }
        free
    };
    let mut brought = Vec::new();
    for cache in &additions.caches {
        let target = home.join(&cache.target);
        if is_free(&target) {
            brought.push(Step::ShowUnder { source: cache.source.clone(), target, size: room(spec) });
        }
    }
    for file in &additions.files {
        let path = home.join(&file.path);
        if is_free(&path) {
            brought.push(Step::WriteFile(PrivateFile { path, ..file.clone() }));
        }
    }
    if !host.memory_attributes && brought.iter().any(is_cache) {
        brought.retain(|step| !is_cache(step));
        notices.push("no cache is brought in: to write over one in memory takes Linux 6.6".into());
    }
    let at = steps.iter().position(|step| target(step).is_some()).unwrap_or(steps.len());
    steps.splice(at..at, brought);
}

fn is_cache(step: &Step) -> bool {
    matches!(step, Step::ShowUnder { .. })
}

/// What is written over a cache lives in memory: a quarter of it at most, as large as the disk otherwise.
fn room(spec: &RunSpec) -> ByteSize {
    spec.limits.disk.min(ByteSize::from_bytes(spec.limits.memory.bytes() / 4))
}

/// Where a step shows something of the host's by the policy's own words.
fn target(step: &Step) -> Option<&Path> {
    match step {
        Step::ShowWorkspace(path, _)
        | Step::OverlayWorkspace { workspace: path, .. }
        | Step::Copy(_, path)
        | Step::Show(Visible { source: Source::Host(_), target: path, .. }) => Some(path),
        _ => None,
    }
}
