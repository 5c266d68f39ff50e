//! Promise: keystrokes cannot be pushed into the caller's terminal, and an interactive run still has one.
//! THREATS X; issue "Interactive programs work".

use lockgate_conformance::{Backend, Bench, Live, Needs, is_root, ready};

/// Runs the command behind `script`, which calls it from a pseudo-terminal.
fn terminal(bench: &Bench, words: &[std::ffi::OsString]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &quoted.join(" "), "/dev/null"]);
    script.envs(bench.environment()).current_dir(bench.workspace());
    let ended = Live::start(script.stdin(std::process::Stdio::null())).wait();
    assert!(ended.code == 0, "{ended}");
    ended.stdout
}

#[test]
fn keystrokes_cannot_be_pushed() {
    if !ready(&[Needs::Linux, Needs::Terminal]) {
        return;
    }
    let bench = Bench::new();
    let probe = bench.probe();
    for attempt in ["push-input", "push-input-high", "console-paste"] {
        // Outside, the kernel's own code answers. It obeys root; it tells others EIO if it lets nobody push (dev.tty.legacy_tiocsti),
        // and everybody ENOTTY about a console that is none (ioctl_console(2)). Inside, the filter answers EPERM before it.
        let control = terminal(&bench, &[probe.clone().into(), attempt.into()]);
        let own_answers = match attempt {
            "console-paste" => &["\"errno\":\"ENOTTY\""][..],
            _ if is_root() => &["\"done\""],
            _ => &["\"done\"", "\"errno\":\"EIO\""],
        };
        assert!(
            own_answers.iter().any(|answer| control.contains(answer)),
            "the control {attempt}: {control}"
        );
        for flags in [&[][..], &["-t"][..]] {
            let run = bench.run(Backend::isolated()).flags(flags);
            let inside = terminal(&bench, &run.words([probe.to_str().unwrap(), attempt]));
            assert!(
                inside.contains("\"outcome\":\"refused\"") && inside.contains("\"errno\":\"EPERM\""),
                "{attempt} {flags:?}: {inside}"
            );
        }
    }
}

#[test]
fn an_interactive_run_has_a_terminal_of_its_own() {
    if !ready(&[Needs::Linux, Needs::Terminal]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).flags(["-t"]);
    let seen = terminal(&bench, &run.words([bench.probe().to_str().unwrap(), "terminal"]));
    for stream in ["stdin", "stdout", "stderr"] {
        assert!(seen.contains(&format!("\"{stream}\":true")), "{seen}");
    }
    assert!(seen.contains("\"foreground\":true"), "{seen}");
    let plain = bench.run(Backend::isolated()).probe(&["identity"]);
    assert!(plain.detail()["terminal"] == false, "a run without a terminal has one: {plain}");
}

#[test]
fn what_a_terminal_carries_and_cannot_be_written_or_read_ends_as_through_a_pipe() {
    if !ready(&[Needs::Linux, Needs::Terminal]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).flags(["-t", "--timeout", "60s"]);
    for (line, command, code) in [
        ("\"$@\" >/dev/full", "echo lost", 125),
        (": >in; \"$@\" 1<in", "echo lost", 125),
        // Neither waits for the time limit.
        ("\"$@\" 0>in", "cat", 0),
        ("{ \"$@\"; echo $? >code; } | head -n 1 >/dev/null; exit $(cat code)", "yes", 129),
    ] {
        let ended = run.around(line, command);
        assert_eq!(ended.code, code, "{line}: {ended}");
    }
    let refused = run.around("\"$@\" <.", "cat");
    assert!(refused.code == 125 && refused.stderr.contains("directory"), "{refused}");
}

#[test]
fn a_prompt_that_is_ended_leaves_the_terminal_as_it_was() {
    if !ready(&[Needs::Linux, Needs::Terminal]) {
        return;
    }
    let bench = Bench::new();
    let lockgate = lockgate_needs::program("lockgate").expect("`ready` was asked first");
    // Without the flag it is in the background, and stands there.
    for flag in ["--foreground", ""] {
        // The prompt ends no line.
        let asks = format!("timeout {flag} 1 \"$LOCKGATE\" creds set anthropic");
        let line = format!("stty -g; {asks}; code=$?; echo; echo \"code=$code\"; stty -g");
        let mut script = std::process::Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        script.envs(bench.environment()).env("LOCKGATE", &lockgate).current_dir(bench.workspace());
        // Nothing is typed, and the input does not end.
        let ended = Live::start(script.stdin(std::process::Stdio::piped())).wait();
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert!(lines.contains(&"code=124"), "{flag}: {ended}");
        assert!(lines.len() > 2 && lines.first() == lines.last(), "{flag}: {ended}");
    }
}
