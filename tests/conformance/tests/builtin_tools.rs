//! Promise: a tool's configuration enters as a copy without its credentials, its cache is not written, and no link is followed
//! to either, however fast it comes and goes.
//! S3.11, S3.12; C13.

use std::fs;
use std::os::unix::fs::symlink;

use lockgate_conformance::{Backend, Bench, Came, Needs, Run, promised, ready, while_flipping};

/// Returns a run with its own home, in which npm is set up.
fn with_home(bench: &Bench, tool: &str) -> Run {
    bench.file("outside/home/.npmrc", "color=false\n//registry.example.org/:_authToken=hush-hush\nca=x\n");
    bench.file("outside/home/.npm/_cacache/old", "old");
    let home = bench.outside().join("home");
    bench.run(Backend::isolated()).caller("HOME", home.to_str().unwrap()).flags(["--builtin-tool", tool])
}

#[test]
fn configuration_is_a_copy_without_credentials_and_a_cache_is_not_written() {
    if !promised("builtin_tools") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = with_home(&bench, "npm");
    let ended = run.shell(
        "cat ~/.npmrc; echo more >> ~/.npmrc && echo added; cat ~/.npm/_cacache/old; echo; echo new > ~/.npm/_cacache/new &&
         rm ~/.npm/_cacache/old && mkdir ~/.npm/_cacache/d && ls ~/.npm/_cacache; ls -A ~",
    );
    for line in ["color=false", "added", "old", "new", "d"] {
        assert!(ended.stdout.lines().any(|said| said == line), "{line}: {ended}");
    }
    assert!(
        !format!("{ended}").contains("hush") && ended.stderr.contains("`//registry.example.org/:_authToken`"),
        "{ended}"
    );
    let home = bench.outside().join("home");
    assert!(fs::read_to_string(home.join(".npmrc")).unwrap().ends_with("ca=x\n"));
    let cache: Vec<_> = fs::read_dir(home.join(".npm/_cacache")).unwrap().collect();
    assert!(cache.len() == 1 && fs::read_to_string(home.join(".npm/_cacache/old")).unwrap() == "old");
}

#[test]
fn what_the_policy_shows_counts_and_is_not_written_through() {
    if !promised("builtin_tools") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let own = bench.file("outside/own/kept", "own").parent().unwrap().to_path_buf();
    let home = bench.run(Backend::isolated()).shell("printf %s ~").stdout;
    let run = with_home(&bench, "npm").flags(["--mount", &format!("{}:{home}/.npm:rw", own.display())]);
    let ended = run.shell("cat ~/.npm/kept; ls -A ~/.npm; cat ~/.npmrc");
    assert!(ended.stdout.contains("own") && ended.stdout.contains("color=false"), "{ended}");
    assert_eq!(fs::read_dir(&own).unwrap().count(), 1, "something was written through the mount");
}

#[test]
fn links_are_not_followed() {
    if !promised("builtin_tools") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = with_home(&bench, "npm");
    let (home, other) = (bench.outside().join("home"), bench.file("outside/other/.npmrc", "color=always\n"));
    for (at, to) in [(".npmrc", other.clone()), (".npm/_cacache", other.parent().unwrap().to_path_buf())] {
        let (at, aside) = (home.join(at), home.join("aside"));
        fs::rename(&at, &aside).unwrap();
        symlink(&to, &at).unwrap();
        let ended = run.shell("cat ~/.npmrc ~/.npm/_cacache/.npmrc; ls ~/.npm/_cacache; true");
        assert!(!ended.stdout.contains("always") && ended.stderr.contains("symbolic link"), "{ended}");
        fs::remove_file(&at).unwrap();
        fs::rename(&aside, &at).unwrap();
    }
}

/// Unit tests try the function that opens a source a hundred thousand times.
#[test]
fn a_source_that_flips_brings_nothing_from_elsewhere() {
    if !promised("builtin_tools") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = with_home(&bench, "npm");
    let (home, other) = (bench.outside().join("home"), bench.file("outside/other/.npmrc", "color=always\n"));
    bench.file("outside/other/old", "other");
    let (link, cache) = (home.join("link"), home.join("cache"));
    symlink(&other, &link).unwrap();
    symlink(other.parent().unwrap(), &cache).unwrap();
    while_flipping(&[[&home.join(".npmrc"), &link], [&home.join(".npm/_cacache"), &cache]], || {
        let ended = run.shell("cat ~/.npmrc ~/.npm/_cacache/old; true");
        assert!(!ended.stdout.contains("always") && !ended.stdout.contains("other"), "{ended}");
        match (ended.stdout.contains("false"), format!("{ended}").contains("symbolic link")) {
            (true, false) => Came::In,
            (_, true) => Came::Refused,
            (false, false) => Came::Neither,
        }
    });
}

#[test]
fn much_configuration_enters_whole() {
    if !promised("builtin_tools") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let run = with_home(&bench, "claude");
    // Longer, both in all and when escaped, than what is sent to an engine's container at once.
    let text = "a \"word\" and another\\\n".repeat(40_000);
    for number in 1..=4 {
        bench.file(format!("outside/home/.claude/commands/{number}.md"), &text);
    }
    let ended = run.shell("cat ~/.claude/commands/*.md | wc -c; tail -n 1 ~/.claude/commands/4.md");
    assert_eq!(ended.stdout, format!("{}\na \"word\" and another\\\n", 4 * text.len()), "{ended}");
}
