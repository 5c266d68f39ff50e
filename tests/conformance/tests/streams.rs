//! Promise: of the caller's streams nothing enters but their one direction. A pipe is not opened the other way, a file not changed, and no
//! more is taken of what comes in than the command has read. DESIGN §4.

use std::process::{Command, Stdio};
use std::time::Duration;

use lockgate_conformance::{Backend, Bench, Live, Needs, promised, ready};

/// Returns the backends without an engine, which has pipes of its own.
fn benches() -> Option<(Bench, Vec<Backend>)> {
    (promised("streams") && ready(&[Needs::Linux])).then(|| (Bench::new(), Backend::all()))
}

#[test]
fn what_the_caller_reads_on_is_not_written_by_the_command() {
    let Some((bench, backends)) = benches() else { return };
    let command = "(echo OWNED >/proc/self/fd/0) 2>/dev/null & sleep 0.3; read x; echo \"got $x\"";
    for backend in backends {
        for line in [
            "printf 'one\\ntwo\\n' | { \"$@\"; cat; }",
            "printf 'one\\ntwo\\n' >in; { \"$@\"; cat; } <in; cat in",
        ] {
            let ended = bench.run(backend).around(line, command);
            let again = if line.ends_with(" in") { "one\ntwo\n" } else { "" };
            assert_eq!(ended.stdout, format!("got one\ntwo\n{again}"), "{} {ended}", backend.name());
        }
    }
}

#[test]
fn what_others_write_beside_the_command_is_not_read_by_it() {
    let Some((bench, backends)) = benches() else { return };
    let line =
        "{ echo secret; \"$@\"; : >over; } | { while [ ! -e over ]; do sleep 0.1; done; cat; }; rm over";
    let command = "{ read x </proc/self/fd/1; echo \"saw $x\" >&2; } & sleep 0.3; echo mine; sleep 0.1";
    for backend in backends {
        let ended = bench.run(backend).around(line, command);
        assert!(
            ended.stdout.starts_with("secret\n") && !ended.stderr.contains("secret"),
            "{} {ended}",
            backend.name()
        );
    }
}

#[test]
fn a_file_that_is_written_to_is_neither_cut_nor_opened_to_others() {
    let Some((bench, backends)) = benches() else { return };
    let line = "echo kept >log; chmod 600 log; \"$@\" >>log; stat -c %a log; cat log";
    // Changes what `/proc/self/fd/1` leads to: a pipe, through which the file's permissions cannot be reached.
    let command = "chmod 777 /proc/self/fd/1; : >/proc/self/fd/1; echo more";
    for backend in backends {
        let ended = bench.run(backend).around(line, command);
        assert_eq!(ended.stdout, "600\nkept\nmore\n", "{} {ended}", backend.name());
    }
}

#[test]
fn no_more_is_taken_than_was_read() {
    let Some((bench, backends)) = benches() else { return };
    for backend in backends {
        for line in [
            "printf 'a\\nb\\nc\\nd\\n' | while read x; do echo \"have $x\"; \"$@\"; done",
            "printf 'a\\nb\\nc\\nd\\n' >in; while read x; do echo \"have $x\"; \"$@\"; done <in",
        ] {
            let ended = bench.run(backend).around(line, "read y; echo \"run $y\"");
            assert_eq!(ended.stdout, "have a\nrun b\nhave c\nrun d\n", "{} {ended}", backend.name());
        }
        // More than any pipe holds, some of it read.
        let rest = "yes 0123456 | head -c 2000000 | { \"$@\"; wc -c; }";
        let ended =
            bench.run(backend).around(rest, "dd bs=1000 count=1000 iflag=fullblock 2>/dev/null | wc -c");
        assert_eq!(ended.stdout, "1000000\n1000000\n", "{} {ended}", backend.name());
    }
}

#[test]
fn another_reader_of_the_same_pipe_loses_nothing() {
    let Some((bench, backends)) = benches() else { return };
    let each = "perl -e 'while (sysread STDIN, $line, 8) { select undef, undef, undef, 0.0001; syswrite STDOUT, $line }'";
    let line = format!(
        "seq -f %07g 4000 | {{ exec 3<&0; {each} <&3 >b & \"$@\" <&3 >a; wait; }}; sort -u a b | wc -l; sort a b | wc -l"
    );
    // At an engine input is read ahead.
    for backend in backends.into_iter().filter(|backend| !backend.has_own_image()) {
        let ended = bench.run(backend).around(&line, each);
        let counts: Vec<u32> = ended.stdout.lines().filter_map(|count| count.parse().ok()).collect();
        assert!(counts.len() == 2 && counts[0] == 4000, "{} {ended}", backend.name());
        // A page is 512 of them.
        assert!(counts[1] <= 4512, "{} {ended}", backend.name());
        // A run ends with its command, although the other reader takes all that comes and the writer stays.
        let line = format!(
            "{{ seq -f %07g 4000; sleep 9; }} | {{ exec 3<&0; {each} <&3 >b & now=$(date +%s); \"$@\" <&3 >a; echo $(($(date +%s) - now)); }}"
        );
        let command = format!("{each} | head -c 8000 >/dev/null");
        let ended = bench.run(backend).around(&line, &command);
        assert!(
            ended.stdout.trim().parse().is_ok_and(|seconds: u32| seconds < 7),
            "{} {ended}",
            backend.name()
        );
    }
}

#[test]
fn input_comes_once_into_a_pipe_that_the_command_made_larger() {
    let Some((bench, backends)) = benches() else { return };
    let command =
        "perl -e 'fcntl(STDIN, 1031, 1 << 18) or die $!; select undef, undef, undef, 0.3; exec \"cat\"'";
    for backend in backends.into_iter().filter(|backend| !backend.has_own_image()) {
        let ended = bench.run(backend).around("seq 20000 | \"$@\" | cksum; seq 20000 | cksum", command);
        let sums: Vec<&str> = ended.stdout.lines().collect();
        assert!(sums.len() == 2 && sums[0] == sums[1], "{} {ended}", backend.name());
    }
}

#[test]
fn what_goes_to_one_place_stays_in_its_order() {
    let Some((bench, backends)) = benches() else { return };
    let command = "for n in 1 2 3 4 5; do echo $n; echo \"error $n\" >&2; done";
    let all: String = (1..=5).map(|n| format!("{n}\nerror {n}\n")).collect();
    for backend in backends {
        for line in ["\"$@\" 2>&1 | grep -v lockgate:", "\"$@\" >out 2>&1; grep -v lockgate: out"] {
            let ended = bench.run(backend).around(line, command);
            assert_eq!(ended.stdout, all, "{} {ended}", backend.name());
        }
    }
}

#[test]
fn a_reader_that_is_gone_is_the_commands_to_hear_of() {
    let Some((bench, backends)) = benches() else { return };
    for backend in backends {
        let ended = bench.run(backend).around("{ \"$@\"; echo \"code $?\" >&2; } | head -n 1", "exec yes");
        assert!(ended.stdout == "y\n" && ended.stderr.contains("code 141"), "{} {ended}", backend.name());
    }
}

#[test]
fn a_reader_who_takes_nothing_does_not_keep_a_run_past_its_time() {
    let Some((bench, backends)) = benches() else { return };
    for backend in backends {
        let mut shell = Command::new("sh");
        let line = "{ \"$@\"; echo \"code $?\" >&2; : >over; } | { while [ ! -e over ]; do sleep 0.1; done; }; rm over";
        let run = bench.run(backend).flags(["--timeout", "1s"]);
        shell.args(["-c", line, "sh"]).args(run.words(["/bin/sh", "-c", "exec yes"]));
        shell.envs(bench.environment()).current_dir(bench.workspace()).stdin(Stdio::null());
        let ended = Live::start(&mut shell).wait();
        assert!(ended.stderr.contains("code 124"), "{} {ended}", backend.name());
        assert!(ended.took < Duration::from_secs(20), "{} {ended}", backend.name());
    }
}
