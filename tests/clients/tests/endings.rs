//! Unplanned ends: the sidecar dies, the command line is killed, and nothing of the run goes on.
//! DESIGN §4; E19, L01, L02.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockgate_clients::{Need, Site, run_to_end};

/// Defines `depth PID`: how many PID namespaces, seen from here, contain a process.
const DEPTH: &str = r#"depth() { grep '^NSpid:' "/proc/$1/status" | wc -w; }
"#;

#[test]
fn a_dead_sidecar_is_no_way_out() {
    // S0.2, S0.3, S1.8, E19: the run's traffic goes through a process of its own, and nothing else leads out.
    for site in Site::for_everyone(&[Need::Program("curl"), Need::Program("pgrep")]) {
        let script = format!(
            "{DEPTH}{}",
            r#"
            "$PRODUCT" run --allow api.example.com -- sh -c \
                'while :; do curl -s -o /dev/null --max-time 2 --noproxy "*" http://api.example.com/tick; sleep 0.02; done' & run=$!
            await 'grep -q /tick "$WORLD_RECORDS"'
            for child in $(pgrep -P $run); do
                [ "$(depth $child)" -eq "$(depth $$)" ] && sidecar=$child
            done
            kill -9 $sidecar; begun=$(date +%s%N)
            wait $run; echo "code=$?"
            echo "ms=$(( ($(date +%s%N) - begun) / 1000000 ))"
            sleep 2; before=$(grep -c '"event":"connect"' "$WORLD_RECORDS")
            sleep 1; after=$(grep -c '"event":"connect"' "$WORLD_RECORDS")
            echo "more=$((after - before))"; pgrep -c curl; echo end"#
        );
        let ended = site.shell().run(&script);
        assert!(ended.stdout.contains("code=") && !ended.stdout.contains("code=0\n"), "{ended}");
        assert!(ended.stdout.contains("more=0\n0\nend"), "something goes on: {ended}");
        let ms = ended
            .stdout
            .split("ms=")
            .nth(1)
            .and_then(|rest| rest.lines().next())
            .and_then(|n| n.parse::<u64>().ok());
        assert!(ms.is_some_and(|ms| ms < 4000), "{ended}");
        assert!(ended.stderr.contains("sidecar"), "the person was not told: {ended}");
    }
}

#[test]
fn a_killed_command_line_takes_everything_with_it() {
    // L02, L04
    for site in Site::for_everyone(&[Need::Program("pgrep")]) {
        let script = r#"
            "$PRODUCT" run -- sh -c 'setsid sleep 61.5 & (setsid sleep 62.5 &) ; touch started; sleep 63.5' & run=$!
            await '[ -e started ]'; rm started
            kill -9 $run; wait $run 2>/dev/null
            await '! pgrep -x sleep >/dev/null'
            await '! pgrep -x lockgate >/dev/null'
            echo "live=$(ls "$XDG_STATE_HOME/lockgate/live")"
            "$PRODUCT" run -- true; echo "next=$?"
            echo "live-after=$(ls "$XDG_STATE_HOME/lockgate/live")"
            for id in $(ls "$XDG_STATE_HOME/lockgate/runs"); do find /sys/fs/cgroup -name "lockgate-$id" 2>/dev/null; done
            ls -A; "$PRODUCT" runs ls --json | grep -c '"state":"lost"'; echo end"#;
        let ended = site.shell().run(script);
        assert!(ended.code == 0 && ended.stdout.contains("next=0\nlive-after=\n1\nend"), "{ended}");
    }
}

#[test]
fn names_are_not_given_back_while_a_killed_runs_command_may_still_take_them() {
    // Without a control group as well, which on some machines only root has.
    for site in Site::for_everyone(&[]) {
        let script = r#"
            for try in 1 2 3; do
                "$PRODUCT" run -- sh -c 'for i in $(seq 150); do (while :; do mkdir .git && : > .git/config; done 2>/dev/null) & done; : > started; wait' & run=$!
                await '[ -e started ]'; rm started; sleep 0.2
                kill -9 $run; wait $run 2>/dev/null
                for next in 1 2; do "$PRODUCT" run -- true 2>/dev/null; ls -A; done
            done; await '[ -z "$(ls "$XDG_STATE_HOME/lockgate/live")" ] || { "$PRODUCT" run -- true; false; }'; ls -A; echo end"#;
        let ended = site.shell().run(script);
        assert!(ended.code == 0 && ended.stdout == "end\n", "{ended}");
    }
}

#[test]
fn whoever_follows_a_run_that_is_killed_comes_to_an_end() {
    for site in Site::for_everyone(&[Need::Program("curl"), Need::Program("pgrep")]) {
        let script = r#"
            "$PRODUCT" run --allow api.example.com -- sh -c 'curl -s -o /dev/null http://api.example.com/one; touch asked; sleep 60' & run=$!
            await '[ -e asked ]'
            "$PRODUCT" audit follow > followed 2>&1 & follows=$!
            sleep 0.5; kill -0 $follows && all="$run $(pgrep -P $run)" && kill -STOP $all && kill -9 $all
            await '! kill -0 $follows 2>/dev/null'; wait $follows; echo "code=$?"; cat followed"#;
        let ended = site.shell().run(script);
        assert!(ended.stdout.contains("code=0\n") && ended.stdout.contains("/one"), "{ended}");
        // Neither its parent nor the sidecar could write a last record.
        assert!(ended.stdout.contains("was lost"), "{ended}");
    }
}

#[test]
fn another_signal_takes_no_time_from_the_one_before() {
    // As a terminal that closes and a supervisor that ends the rest send them, or `timeout`, which signals its child and then the group.
    // Only Ctrl-C again means at once.
    let Some(site) = Site::for_test(&[]) else { return };
    let script = r#"for second in TERM HUP; do rm -f begun
            "$PRODUCT" run -- sh -c 'trap "" TERM; trap "sleep 1; echo in order; exit 7" HUP; : > begun; while :; do sleep 0.02; done' & run=$!
            await '[ -e begun ]'; kill -HUP $run; sleep 0.2; kill -$second $run; wait $run; echo "$second=$?"
        done"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "in order\nTERM=7\nin order\nHUP=7\n", "{ended}");
}

#[test]
fn a_signal_that_comes_as_the_run_ends_is_not_its_failure() {
    // The second signal means at once, and meets init at any moment of its end. What init left unread is not reported to the caller.
    // A shell holds a second signal back until the child it is about to start has ended, so the command is a program without children.
    let Some(site) = Site::for_test(&[]) else { return };
    let script = r#"for try in $(seq 60); do rm -f begun
            env --default-signal=INT "$PRODUCT" run -- perl -e 'open F, ">", "begun"; sleep 60' & run=$!
            await '[ -e begun ]'; kill -INT $run; kill -INT $run; wait $run; echo "$?"
        done | sort | uniq -c"#;
    // A shell without job control makes background children ignore the signal, so its default is restored.
    let ended = site.shell().within(Duration::from_secs(150)).run(script);
    assert_eq!(ended.stdout.split_whitespace().collect::<Vec<_>>(), ["60", "130"], "{ended}");
    let failed = r#""$PRODUCT" runs ls --json | grep -c '"state":"failed"'"#;
    assert_eq!(site.shell().run(failed).stdout, "0\n");
}

#[test]
fn a_run_that_had_all_the_time_there_is_is_told_what_allows_no_more() {
    // S1.34, S1.36: to ask for more by --timeout or in the policy would change nothing.
    let Some(site) = Site::for_test(&[]) else { return };
    let script = r#"PLATFORM_RUN_LIMITS='{"timeout_ceiling_seconds":1}' "$PRODUCT" run $0 -- sleep 9"#;
    for wish in ["", "--timeout 5s"] {
        let ended = site.shell().run(&script.replace("$0", wish));
        assert_eq!(ended.code, 124, "{ended}");
        assert!(ended.stderr.contains("timed out after 1s; PLATFORM_RUN_LIMITS allows no more"), "{ended}");
    }
}

#[test]
fn an_output_that_nobody_reads_stops_no_clock() {
    // S0.24, L07. The pipe is full at once, and stays full for ten seconds.
    let Some(site) = Site::for_test(&[]) else { return };
    let script = r#"{ "$PRODUCT" run --terminal --timeout 1s -- yes; echo "code=$?" > ended; } | {
            i=0; while [ ! -e ended ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
            [ $i -lt 80 ] && echo "in time"; }
        cat ended"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "in time\ncode=124\n", "{ended}");
    assert!(ended.stderr.contains("timed out after 1s; --timeout, or `timeout` in the policy"), "{ended}");
}

#[test]
fn a_terminal_that_nobody_reads_stops_no_clock_however_much_there_is_to_tell() {
    // S0.24, L07. Each of forty denials would print a line.
    let Some(site) = Site::for_test(&[Need::Program("python3"), Need::Program("curl")]) else { return };
    let script = r#"python3 -c '
import os, pty, subprocess, time
_, side = pty.openpty()
inside = "(yes &); for i in $(seq 40); do curl -s -o /dev/null http://h$i.example.org/; done; sleep 20"
command = [os.environ["PRODUCT"], "run", "--terminal", "--timeout", "3s", "--", "sh", "-c", inside]
begun = time.monotonic()
run = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, start_new_session=True)
code = run.wait(50)
print("code=%d" % code, "in time" if time.monotonic() - begun < 15 else "late")'"#;
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "code=124 in time\n", "{ended}");
}

/// Limits and ignored signals that the caller has set stay, and nothing fails because of them; errors outside are reported.
#[test]
fn a_run_begins_as_its_caller_is() {
    for site in Site::for_everyone(&[Need::Program("python3")]) {
        let script = r#"
            (ulimit -c 0; "$PRODUCT" run -- sh -c 'ulimit -c'); echo "core=$?"
            # A background command of a script's ignores some signals; this one has none but the hangup ignored.
            python3 -c 'import os, signal, sys
for number in (signal.SIGINT, signal.SIGQUIT): signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])' "$PRODUCT" run -- sh -c 'touch started; sleep 1; echo went-on' & run=$!
            await '[ -e started ]'; kill -HUP $run; wait $run; echo "hangup=$?"
            TERM=xterm-256color "$PRODUCT" run -- sh -c 'echo "term=$TERM"'
            mkdir gone; cd gone; rmdir ../gone
            "$PRODUCT" run --workspace "$XDG_STATE_HOME" -- true; echo "gone=$?"
            "$PRODUCT" doctor > /dev/null; echo "doctor=$?""#;
        let ended = site.shell().run(script);
        let said = ["core=0", "went-on\nhangup=0", "term=xterm-256color", "gone=2", "doctor=2"];
        assert!(said.iter().all(|said| ended.stdout.contains(said)), "{ended}");
        assert!(ended.stderr.matches("the current folder cannot be used").count() == 2, "{ended}");
    }
}

/// Replacing a protected file from here removes its protection, so the run ends rather than expose the new file.
#[test]
fn a_run_ends_when_what_it_has_protected_is_replaced() {
    for site in Site::for_everyone(&[]) {
        let git = site.workspace().join(".git");
        std::fs::create_dir_all(&git).unwrap();
        std::fs::write(git.join("config"), "[core]\n").unwrap();
        let script = "echo begun > begun; i=0; while [ $i -lt 2000 ]; do i=$((i+1)); sleep .01; done; echo over > over";
        let run = site.run();
        let mut started = run.command(&["sh", "-c", script]).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        while !site.workspace().join("begun").exists() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        // A file that is written to stays protected.
        std::fs::write(git.join("config"), "[core]\n\tbare = false\n").unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(started.try_wait().unwrap().is_none(), "it ended too early");
        std::fs::write(git.join("config.lock"), "[core]\n").unwrap();
        std::fs::rename(git.join("config.lock"), git.join("config")).unwrap();
        let ended = started.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{said}");
        assert!(said.contains("`.git/config`") && said.contains("replaced on this machine"), "{said}");
        assert!(!site.workspace().join("over").exists());
        assert!(!site.workspace().join(".vscode").exists(), "the names that were held are given back");
    }
}

/// The kernel takes the protection off a file that is replaced, and does not put it back on one that comes back by another name of its own.
#[test]
fn a_run_ends_when_what_it_has_protected_was_replaced_and_is_back() {
    for site in Site::for_everyone(&[]) {
        let at = |name: &str| site.workspace().join(name);
        std::fs::write(at(".envrc"), "").unwrap();
        let script = "echo begun > begun; i=0; while [ $i -lt 2000 ]; do i=$((i+1)); sleep .01; done; echo over > over";
        let run = site.run();
        let started = run.command(&["sh", "-c", script]).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        while !at("begun").exists() && begun.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(at("new"), "").unwrap();
        std::fs::hard_link(at(".envrc"), at("keep")).unwrap();
        std::fs::rename(at("new"), at(".envrc")).unwrap();
        std::fs::rename(at("keep"), at(".envrc")).unwrap();
        let ended = started.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(125), "{said}");
        assert!(said.contains("`.envrc`") && said.contains("replaced on this machine"), "{said}");
        assert!(!at("over").exists());
    }
}

/// Operations that would outlast the run, or block the person's own programs.
const SHUT: &str = r#"
import errno, fcntl, os, sys
def named(call):
    try:
        call()
        return "works"
    except OSError as error:
        return errno.errorcode[error.errno]
own = open(sys.argv[1], "w")
shut, stop = (lambda: fcntl.ioctl(own, 0x540c)), (lambda: fcntl.ioctl(own, 0x540a, 0))
lease = lambda: fcntl.fcntl(own, 1024, fcntl.F_WRLCK)
print(named(shut), named(stop), named(lease), named(lambda: fcntl.fcntl(own, fcntl.F_GETFL)), named(lambda: fcntl.flock(own, fcntl.LOCK_EX)))
"#;

#[test]
fn a_command_shuts_nobody_out_of_a_terminal_or_a_file() {
    let Some(site) = Site::for_test(&[Need::Program("python3")]) else { return };
    fs::write(site.workspace().join("shut.py"), SHUT).expect("room for a script");
    let inside = site.lockgate(&["run", "--", "python3", "shut.py", "own"]);
    assert_eq!((inside.code, inside.stdout.as_str()), (0, "EPERM EPERM EINVAL works works\n"), "{inside}");
    // The control: outside, the kernel judges each operation, and grants a lease.
    let mut outside = site.world().command("python3");
    outside.arg(site.workspace().join("shut.py")).arg(site.outside().join("own"));
    let outside = run_to_end(&mut outside, Duration::from_secs(30));
    assert_eq!(outside.stdout, "ENOTTY ENOTTY works works works\n", "{outside}");
}
