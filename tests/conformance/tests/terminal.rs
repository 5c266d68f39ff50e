//! Promise: keystrokes cannot be pushed into the caller's terminal, and an interactive run still has one.
//! THREATS X; issue "Interactive programs work".

use lockgate_conformance::{Backend, Bench, Live, Needs, ready};

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
        // Where the kernel itself refuses this (dev.tty.legacy_tiocsti), the control proves nothing.
        let control = terminal(&bench, &[probe.clone().into(), attempt.into()]);
        if !control.contains("\"done\"") {
            eprintln!("{attempt} has no working control on this kernel: {control}");
        }
        for flags in [&[][..], &["-t"][..]] {
            let run = bench.run(Backend::isolated()).flags(flags);
            let inside = terminal(&bench, &run.words([probe.to_str().unwrap(), attempt]));
            assert!(
                inside.contains("\"probe\"") && !inside.contains("\"done\""),
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
