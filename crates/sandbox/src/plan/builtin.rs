//! Adds the files and caches of built-in tools to a plan. Files were prepared outside; caches get a private layer for writes. If the
//! policy itself shows something at such a place, the file or cache is left out.

use std::path::{Path, PathBuf};

use policy::{Backend, ByteSize, RunSpec};

use super::additions::Additions;
use super::engine;
use crate::host::Host;
use crate::step::{Cache, PrivateFile, Step};

/// Adds the steps, before those that show the policy's own mounts, so that no file is written through a mount.
pub(super) fn bring(
    steps: &mut Vec<Step>,
    spec: &RunSpec,
    home: &Path,
    host: &Host,
    additions: &Additions,
    notices: &mut Vec<String>,
) {
    let taken: Vec<PathBuf> = steps.iter().filter_map(Step::named_place).map(Path::to_path_buf).collect();
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
            brought.push(Step::ShowUnder {
                source: cache.source.clone(),
                target,
                size: room(spec, host),
                written,
            });
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
    let at = steps.iter().position(|step| step.named_place().is_some()).unwrap_or(steps.len());
    steps.splice(at..at, brought);
}

/// Returns the reason why caches cannot get a private layer, if there is one.
fn hindrance(spec: &RunSpec, host: &Host, additions: &Additions) -> Option<String> {
    if spec.backend != Backend::Docker {
        let missing = "to write over one in memory takes Linux 6.6";
        return (!host.memory_attributes).then(|| missing.to_owned());
    }
    let written = additions.written.as_deref().unwrap_or(Path::new(""));
    let refusal = |cache: &Cache| engine::refusal([&cache.source, written]);
    additions.caches.iter().find_map(refusal).map(|(why, _)| why)
}

/// Returns the directory on disk for writes over the cache of this number, at an engine: it offers no tmpfs layer over a folder.
fn on_disk(spec: &RunSpec, additions: &Additions, number: usize) -> Option<PathBuf> {
    let written = additions.written.as_ref().filter(|_| spec.backend == Backend::Docker)?;
    let name = written.file_name().unwrap_or_default().display();
    Some(written.with_file_name(format!("{name}-{number}")))
}

fn is_cache(step: &Step) -> bool {
    matches!(step, Step::ShowUnder { .. })
}

/// Returns the room for writes over a cache: as large as the disk limit, and a quarter of the memory limit at most, since they live in
/// memory. Unless a size was asked for, it is a quarter of the machine's memory at most.
fn room(spec: &RunSpec, host: &Host) -> ByteSize {
    let quarter = |memory: ByteSize| ByteSize::from_bytes(memory.bytes() / 4);
    let room = spec.limits.disk.min(quarter(spec.limits.memory));
    if spec.disk_asked { room } else { room.min(quarter(host.memory)) }
}
