//! `cargo xtask fuzz`: runs every target of `fuzz/`, one after the other, for a number of seconds each.
//!
//! A failing target does not stop the others; the command fails at the end. It must never write into the seeds: new inputs go into
//! `fuzz/corpus`, which is not kept.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::bounded::Bounded;
use crate::workspace::Workspace;

/// How long the build may take: all targets have sanitizers, also in the TLS library's C code.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Extra time for a start on a busy machine, beyond the seconds that were asked for.
const START: Duration = Duration::from_secs(120);
/// An input that takes more seconds than this is a finding.
const SLOWEST: &str = "-timeout=25";

/// Runs `cargo xtask fuzz`.
pub(crate) fn run(seconds: u64) -> Result<()> {
    let folder = Workspace::locate()?.root.join("fuzz");
    cargo_fuzz(&["build"], BUILD_LIMIT, &folder)
        .context("is cargo-fuzz installed, and a nightly toolchain?")?;
    let mut failed = Vec::new();
    for target in targets(&folder)? {
        eprintln!("==> {target}");
        let (corpus, seeds) = (format!("corpus/{target}"), format!("seeds/{target}"));
        fs::create_dir_all(folder.join(&corpus)).with_context(|| format!("failed to make {corpus}"))?;
        let time = format!("-max_total_time={seconds}");
        let dictionary = format!("-dict=dictionaries/{target}.txt");
        let mut args = vec!["run", &target, &corpus, &seeds, "--", &time, SLOWEST, "-print_final_stats=1"];
        if folder.join(&dictionary["-dict=".len()..]).is_file() {
            args.push(&dictionary);
        }
        if let Err(error) = cargo_fuzz(&args, Duration::from_secs(seconds) + START, &folder) {
            eprintln!("    {error:#}");
            failed.push(target);
        }
    }
    ensure!(failed.is_empty(), "found by {}; the inputs are in fuzz/artifacts", failed.join(", "));
    Ok(())
}

fn cargo_fuzz(args: &[&str], limit: Duration, folder: &Path) -> Result<()> {
    let args = [&["+nightly", "fuzz"], args].concat();
    // The cargo that runs us belongs to one toolchain and knows no `+nightly`; rustup's is on the `PATH`.
    Bounded::new("cargo", &args, limit).within(folder).run()
}

/// Returns the names of the targets. Each is a file and must have a folder of seeds.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(folder.join("fuzz_targets")).context("failed to list the fuzz targets")?;
    let mut names: Vec<String> = listed
        .flatten()
        .filter_map(|entry| entry.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()))
        .collect();
    names.sort();
    if let Some(bare) = names.iter().find(|name| !folder.join("seeds").join(name).is_dir()) {
        bail!("the fuzz target `{bare}` has no seeds in fuzz/seeds/{bare}");
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names = targets(&root.join("fuzz")).unwrap();
        assert!(names.contains(&"target".to_owned()), "{names:?}");
    }
}
