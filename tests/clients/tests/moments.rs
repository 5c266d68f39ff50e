//! A run that is killed, or finds no room, at any moment of its process: after the next run nothing of it is left, and git works in the
//! workspace as before. One that a signal interrupts goes on. L01, L10.
//!
//! The calls by which one start changes something are listed, and each is the moment of a run of its own. Of those that have nothing to do
//! with placeholders or kept changes, every third is tried, drawn anew each time; `LOCKGATE_TEST_SEED` repeats a draw.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use lockgate_clients::{Need, Site};

const NEEDS: &[Need] = &[Need::Program("strace"), Need::Program("git"), Need::Program("pgrep")];
const LIMIT: Duration = Duration::from_secs(120);

/// The calls that open a file, and so change something only where they make it.
const OPENING: [&str; 2] = ["open", "openat"];
/// The other calls that a full disk refuses.
const FILLING: [&str; 9] =
    ["write", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat", "fsync"];
/// The other calls after which something is not as it was.
const CHANGING: [&str; 10] =
    ["unlink", "unlinkat", "rmdir", "fchmod", "fchown", "chmod", "flock", "clone", "clone3", "sendmsg"];

/// What the calls are told by that make or remove a placeholder with a content, or a directory of changes.
const ALWAYS: [&str; 7] =
    ["commondir", r"./.\n", "/proc/self/fd/", "/changes/", r#""written""#, r#""work""#, r#""since""#];
/// Of all other calls one in so many is tried.
const ONE_IN: u64 = 3;

/// Makes a repository, and the things that stay after a first run; traces the next one.
const BEGIN: &str = r#"
git init -q . && git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m first || exit 8
lockgate run $FLAGS -- true || exit 8
strace -o "$OUTSIDE/trace" -e trace=$CALLS "$PRODUCT" run $FLAGS -- true || exit 8
"#;

/// Reads calls with their numbers, and tries each. `$HOW` is what happens at the call, and `$ENDS` the status that the run then ends with,
/// or `any`.
const TRY: &str = r#"
inventory() {
    find . -printf '%P %y %m %U\n' | sort
    for part in live changes trusted; do find "$XDG_STATE_HOME/lockgate/$part" -mindepth 1 2>/dev/null; done
    find /sys/fs/cgroup -type d -name 'lockgate-*' 2>/dev/null | while read -r group; do
        [ ! -e "$XDG_STATE_HOME/lockgate/runs/${group##*/lockgate-}.jsonl" ] || echo "$group"
    done
}
inventory > "$OUTSIDE/before"; left=0
while read -r call number; do
    strace -o /dev/null -e trace=$call -e inject=$call:$HOW:when=$number "$PRODUCT" run $FLAGS -- true \
        > /dev/null 2> "$OUTSIDE/said" < /dev/null; ended=$?; [ "$ENDS" != any ] || ended=any
    await '! pgrep -x lockgate > /dev/null'
    lockgate run $FLAGS -- true > /dev/null 2> "$OUTSIDE/next" < /dev/null; next=$?
    await '! pgrep -x lockgate > /dev/null'
    inventory > "$OUTSIDE/after"; git status --porcelain > "$OUTSIDE/status" 2>&1
    [ $ended = "$ENDS" ] && [ $next -eq 0 ] && [ ! -s "$OUTSIDE/status" ] && cmp -s "$OUTSIDE/before" "$OUTSIDE/after" && continue
    echo "at $call $number the run ended with $ended, and the next with $next:"
    diff "$OUTSIDE/before" "$OUTSIDE/after"; cat "$OUTSIDE/status" "$OUTSIDE/said" "$OUTSIDE/next"
    left=$((left+1)); [ $left -lt 3 ] || break
done < "$OUTSIDE/moments"
echo "left=$left"
"#;

#[test]
fn killed_at_any_moment_it_leaves_nothing() {
    let calls = [&OPENING[..], &FILLING, &CHANGING].concat();
    nothing_is_left(&calls, "signal=KILL", "any", &mut Draw::of(ONE_IN));
}

#[test]
fn out_of_room_at_any_moment() {
    nothing_is_left(&[&OPENING[..], &FILLING].concat(), "error=ENOSPC", "any", &mut Draw::of(ONE_IN));
}

#[test]
fn a_signal_while_it_writes_fails_nothing() {
    nothing_is_left(&["write"], "error=EINTR", "0", &mut Draw::of(1));
}

fn nothing_is_left(calls: &[&str], how: &str, ends: &str, draw: &mut Draw) {
    for flags in ["", "--workspace-mode overlay"] {
        for site in Site::for_everyone(NEEDS) {
            let shell = site.shell().within(LIMIT).with("FLAGS", flags).with("HOW", how);
            let shell = shell.with("CALLS", calls.join(",")).with("ENDS", ends);
            let begun = shell.run(BEGIN);
            assert!(begun.code == 0, "{begun}");
            let trace = fs::read_to_string(site.outside().join("trace")).expect("a trace");
            let moments = moments(&trace, draw);
            assert!(moments.len() > 5, "too few moments: {trace}");
            let lines: String = moments.iter().map(|(call, number)| format!("{call} {number}\n")).collect();
            site.file("moments", lines);
            let ended = shell.run(TRY);
            assert!(ended.code == 0 && ended.stdout == "left=0\n", "{flags}: {ended}");
        }
    }
}

/// Returns the calls of a trace that change something, each with its number among those of its name, as far as they are drawn.
fn moments(trace: &str, draw: &mut Draw) -> Vec<(String, usize)> {
    let mut counts = BTreeMap::new();
    let mut found = Vec::new();
    for line in trace.lines() {
        // Signals and the end are no calls.
        let Some((call, rest)) = line.split_once('(').filter(|_| line.starts_with(char::is_alphabetic))
        else {
            continue;
        };
        let number = counts.entry(call).or_insert(0);
        *number += 1;
        let is_change = !OPENING.contains(&call) || rest.contains("O_CREAT") || rest.contains("O_TMPFILE");
        if is_change && (ALWAYS.iter().any(|it| rest.contains(it)) || draw.is_drawn()) {
            found.push((call.to_owned(), *number));
        }
    }
    found
}

/// A draw of one in so many, by the generator xorshift64 (Marsaglia, 2003).
struct Draw {
    state: u64,
    one_in: u64,
}

impl Draw {
    fn of(one_in: u64) -> Self {
        let named = std::env::var("LOCKGATE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        // One and the same for the second try of a test that failed: it would else pass at other moments.
        let of_run = || u64::from_str_radix(std::env::var("NEXTEST_RUN_ID").ok()?.get(..8)?, 16).ok();
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let by_time = || now().map_or(1, |since| u64::from(since.subsec_nanos()));
        let seed = named.or_else(of_run).unwrap_or_else(by_time);
        println!("LOCKGATE_TEST_SEED={seed}");
        Self { state: seed | 1 << 40, one_in }
    }

    fn is_drawn(&mut self) -> bool {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.is_multiple_of(self.one_in)
    }
}
