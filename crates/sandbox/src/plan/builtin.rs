//! What built-in tools bring into a plan: files that were prepared outside, and caches under a private layer. What the policy
//! itself puts at such a place stays, and the file or cache is left out.

use std::path::{Path, PathBuf};

use policy::{Backend, ByteSize, RunSpec};

use super::additions::Additions;
use super::engine;
use crate::host::Host;
use crate::step::{Cache, PrivateFile, Source, Step, Visible};

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
            let written = on_disk(spec, additions, brought.len());
            brought.push(Step::ShowUnder { source: cache.source.clone(), target, size: room(spec), written });
        }
    }
    for file in &additions.files {
        let path = home.join(&file.path);
        if is_free(&path) {
            brought.push(Step::WriteFile(PrivateFile { path, ..file.clone() }));
        }
    }
    if brought.iter().any(is_cache) {
        match hindrance(spec, host, additions) {
            Some(why) => {
                brought.retain(|step| !is_cache(step));
                notices.push(format!("no cache is brought in: {why}"));
            }
            None if spec.backend == Backend::Docker => notices.push(
                "what is written over a cache goes to disk until the run ends, where `limits.disk` does not bound it".into(),
            ),
            None => {}
        }
    }
    let at = steps.iter().position(|step| target(step).is_some()).unwrap_or(steps.len());
    steps.splice(at..at, brought);
}

/// Why no cache can be written over.
fn hindrance(spec: &RunSpec, host: &Host, additions: &Additions) -> Option<String> {
    if spec.backend != Backend::Docker {
        let missing = "to write over one in memory takes Linux 6.6";
        return (!host.memory_attributes).then(|| missing.to_owned());
    }
    let written = additions.written.as_deref().unwrap_or(Path::new(""));
    let refusal = |cache: &Cache| engine::refusal([&cache.source, written]);
    additions.caches.iter().find_map(refusal).map(|(why, _)| why)
}

/// An engine gives no memory to put over a folder: then the directory of a cache, by its number beside the run's.
fn on_disk(spec: &RunSpec, additions: &Additions, number: usize) -> Option<PathBuf> {
    let written = additions.written.as_ref().filter(|_| spec.backend == Backend::Docker)?;
    let name = written.file_name().unwrap_or_default().display();
    Some(written.with_file_name(format!("{name}-{number}")))
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
