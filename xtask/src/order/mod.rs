//! `cargo xtask order`: lists the functions that a start runs, and those of a request behind them, for the linker.
//!
//! The functions of a start are scattered over the whole binary, and each of its processes pays a page fault for each page it
//! touches. Those of a request are scattered too, and the processor looks for each anew. So the command follows a few starts, with
//! and without requests, and writes the functions they run, in that order, to a linker script, which puts those functions side by
//! side. The script orders; it must never change what is linked: a name that no longer exists is skipped, and a function it does not
//! name stays where it was.

mod map;
mod requests;
mod script;
mod trace;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::bounded::Bounded;
use crate::workspace::Workspace;
use map::{Map, Section};
use requests::Requests;
use trace::Start;

/// The linker script, which `crates/cli/build.rs` passes to the linker.
const SCRIPT: &str = "crates/cli/start.ld";
/// The starts that are traced first, the commonest before the other: a plain start, and one with a credential. Those with requests come
/// behind them.
const STARTS: [&[&str]; 2] =
    [&["run", "--", "/bin/true"], &["run", "--provider", "anthropic", "--", "/bin/true"]];
/// Variables that could lead to a user's own settings. Traced starts have their own home.
const VARIABLES: [&str; 3] = ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"];
/// The fewest functions a trace may name: a start runs more than a thousand, so with fewer the trace or the map is wrong.
const FEWEST: usize = 500;

/// Runs `cargo xtask order`.
pub(crate) fn run() -> Result<()> {
    let workspace = Workspace::locate()?;
    let map = workspace.target.join("start.map");
    let lockgate = linked_with_map(&workspace, &map)?;
    let load = workspace.build("lockgate-load", &["--release", "-p", "lockgate-load"])?;
    let text = fs::read_to_string(&map).with_context(|| format!("failed to read {}", map.display()))?;
    let map = Map::of(&text)?;
    let home = workspace.target.join("start");
    // What an earlier order left in its workspace would be looked at by these starts.
    let _ = fs::remove_dir_all(&home);
    let sections = followed(&lockgate, &load, &map, &home)?;
    ensure!(sections.len() >= FEWEST, "a start ran {} functions only; nothing is written", sections.len());
    fs::write(workspace.root.join(SCRIPT), script::of(&sections))
        .with_context(|| format!("failed to write {SCRIPT}"))?;
    eprintln!("{SCRIPT}: {} functions", sections.len());
    Ok(())
}

/// Checks that the linker found in `lockgate` what the script names. The linker would not complain, and the start would be slower.
pub(crate) fn check(workspace: &Workspace, lockgate: &Path) -> Result<()> {
    let path = workspace.root.join(SCRIPT);
    let script = fs::read_to_string(&path).with_context(|| format!("failed to read {SCRIPT}"))?;
    let args = ["--sections", "--wide", &lockgate.to_string_lossy()];
    let sections = Bounded::new("readelf", &args, Duration::from_secs(30)).env("LC_ALL", "C").stdout()?;
    let (named, found) = (script::bytes(&script).unwrap_or(u64::MAX), placed(&sections));
    ensure!(
        found >= named / 4 * 3,
        "{SCRIPT} names {named} octets of functions, and {found} of the program are those: `cargo xtask order` names \
         them anew"
    );
    Ok(())
}

/// Returns the size of the script's section in the output of `readelf --sections --wide`: name, type, address, offset, size.
fn placed(sections: &str) -> u64 {
    let words =
        sections.lines().map(|line| line.split_whitespace().skip_while(|word| *word != script::SECTION));
    words.filter_map(|mut words| u64::from_str_radix(words.nth(4)?, 16).ok()).sum()
}

/// Makes the release build, with a map of where the linker put each section.
fn linked_with_map(workspace: &Workspace, map: &Path) -> Result<PathBuf> {
    let arg = format!("-Clink-arg=-Wl,-Map={}", map.display());
    let lockgate =
        workspace.build_by("rustc", "lockgate", &["--release", "-p", "lockgate-cli", "--", &arg])?;
    ensure!(map.is_file(), "the linker wrote no map at {}: touch crates/cli/src/main.rs", map.display());
    Ok(lockgate)
}

/// Returns the functions that any of the starts ran, each once, in the order they were first run.
fn followed<'a>(lockgate: &Path, load: &Path, map: &'a Map, home: &Path) -> Result<Vec<&'a Section>> {
    let work = home.join("work");
    fs::create_dir_all(&work).with_context(|| format!("failed to make {}", work.display()))?;
    give_a_key(lockgate, home, "anthropic")?;
    give_a_key(lockgate, home, requests::PROVIDER)?;
    let (mut named, mut sections) = (HashSet::new(), Vec::new());
    let mut follow = |start: &Start| -> Result<()> {
        eprintln!("==> lockgate {}", start.args.join(" "));
        let addresses = trace::follow(lockgate, start, home, &work, map.entries())?;
        let ran = addresses.into_iter().filter_map(|address| map.at(address));
        sections.extend(ran.filter(|section| named.insert(section.begin)));
        Ok(())
    };
    for args in STARTS {
        follow(&Start { args: args.iter().map(|word| (*word).to_owned()).collect(), authorities: None })?;
    }
    // Behind the others: its files make the workspace another one.
    let requests = Requests::prepare(load, home, &work)?;
    requests.starts().iter().try_for_each(follow)?;
    Ok(sections)
}

/// Stores a credential for a start. It is not a real one: no service outside is asked with it.
fn give_a_key(lockgate: &Path, home: &Path, provider: &str) -> Result<()> {
    let key = home.join("key");
    fs::write(&key, "sk-ant-api03-nobodys").with_context(|| format!("failed to write {}", key.display()))?;
    let args = ["creds", "set", provider, "--from-file", &key.to_string_lossy()];
    let command = Bounded::new(&lockgate.to_string_lossy(), &args, Duration::from_secs(30));
    VARIABLES.iter().fold(command, |command, name| command.without_env(name)).env("HOME", home).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_the_section_is_read() {
        let printed = "  [ 8] .text.start PROGBITS 0000000000590cc0 38fcc0 1c7da0 00  AX  0   0 64\n\
                       \x20 [ 9] .text       PROGBITS 0000000000758a80 557a80 d533d8 00  AX  0   0 64\n";
        assert_eq!(placed(printed), 0x1c_7da0);
        assert_eq!(placed("There are no sections in this file.\n"), 0);
    }
}
