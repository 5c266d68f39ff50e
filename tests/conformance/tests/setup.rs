//! Promise: set-up commands run before the command, as the same user behind the same walls and rules; nothing of them is beside it,
//! and only a required one that fails keeps it from running.
//! S4.50, S4.54, S4.64, S4.72.

use std::path::PathBuf;
use std::time::Duration;

use lockgate_conformance::{
    Backend, Bench, Canary, Live, Needs, World, processes_named, ready, vanishes, within,
};
use serde_json::{Value, json};

/// Returns what the latest recorded run says of its set-up commands, without their durations.
fn recorded(bench: &Bench) -> Vec<(bool, String)> {
    let record = bench.records(&["runs", "show", "latest", "--json"]).remove(0);
    let of = |it: &Value| {
        assert!(it["milliseconds"].is_u64() && it["command"].is_string(), "{it}");
        (it["succeeded"] == true, it["status"].as_str().unwrap().to_owned())
    };
    record["setup"].as_array().unwrap().iter().map(of).collect()
}

/// Writes a policy file beside the workspace, and returns its path.
fn policy(bench: &Bench, text: &str) -> String {
    bench.file("outside/policy.toml", text).to_str().unwrap().to_owned()
}

#[test]
fn they_run_in_order_where_the_command_runs_and_as_who_it_is() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let walls = "while read k v; do case $k in Uid:|Gid:|Cap*|NoNewPrivs:|Seccomp:) echo $k $v;; esac; done \
                 < /proc/self/status";
    for backend in Backend::all() {
        let (bench, named) = (Bench::new(), backend.name());
        let first =
            format!("echo one > order; echo \"$LOCKGATE_RUN_ID $HOME $PWD\" > place; ({walls}) > walls");
        let flags = ["--setup", &first, "--setup", "echo two >> order; echo of-set-up; cat; exit 3"];
        let line = format!(
            "cat order; echo \"$LOCKGATE_RUN_ID $HOME $PWD\" > p; ({walls}) > w; cmp p place && cmp w walls && cat"
        );
        // The input is for the command: a set-up command that reads gets nothing.
        let run = bench.run(backend).flags(flags).behind(["/bin/sh", "-c", "echo typed | \"$@\"", "sh"]);
        let ended = run.shell(&line);
        assert!(ended.code == 0 && ended.stdout == "one\ntwo\ntyped\n", "{named}: {ended}");
        assert!(ended.stderr.contains("of-set-up\n"), "{named}: {ended}");
        assert!(
            ended.stderr.contains("failed with exit code 3; the run continues"),
            "the failure is not told: {named}: {ended}"
        );
        let walls = std::fs::read_to_string(bench.workspace().join("walls")).unwrap();
        assert!(walls.contains("NoNewPrivs"), "{named}: {walls}");
        let expected = [(true, "exited 0".into()), (false, "exited 3".into())];
        assert_eq!(recorded(&bench), expected, "{named}");
        let shown = bench.lockgate(&["runs", "show", "latest"]).stdout;
        assert!(shown.contains("set-up     `/bin/sh -c echo two"), "{named}: {shown}");
    }
}

#[test]
fn only_a_required_one_that_fails_keeps_the_command_from_running() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let (bench, named) = (Bench::new(), backend.name());
        let wanted = "[[setup]]\ncommand = [\"/no/such/program\"]\n\
                      [[setup]]\ncommand = [\"sleep\", \"30\"]\ntimeout = \"1s\"\n";
        let ended = bench.run(backend).flags(["--policy", &policy(&bench, wanted)]).command(["echo", "ran"]);
        assert!(ended.code == 0 && ended.stdout == "ran\n", "{named}: {ended}");
        assert!(ended.took < Backend::patience(20), "{named}: {ended}");
        for told in ["/no/such/program` could not be executed", "sleep 30` timed out"] {
            assert!(ended.stderr.contains(told), "{named}: {ended}");
        }
        assert_eq!(recorded(&bench)[1], (false, "timed out".into()), "{named}");

        let required = "[[setup]]\ncommand = [\"true\"]\nrequired = true\n\
                        [[setup]]\ncommand = [\"/bin/sh\", \"-c\", \"exit 4\"]\nrequired = true\n\
                        [[setup]]\ncommand = [\"touch\", \"third\"]\n";
        let ended =
            bench.run(backend).flags(["--policy", &policy(&bench, required)]).command(["touch", "ran"]);
        assert!(ended.code == 125 && ended.stdout.is_empty(), "{named}: {ended}");
        assert!(ended.stderr.contains("exited 4, and the run requires it"), "{named}: {ended}");
        assert_eq!(recorded(&bench), [(true, "exited 0".into()), (false, "exited 4".into())], "{named}");
        for name in ["ran", "third"] {
            assert!(!bench.workspace().join(name).exists(), "{named}: `{name}` is there");
        }
    }
}

#[test]
fn nothing_of_one_is_beside_the_command() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let (bench, named, mark) = (Bench::new(), backend.name(), Canary::draw());
        let probe = bench.probe();
        let hold = format!("trap \"\" HUP TERM; exec \"{}\" hold 60 {}", probe.display(), mark.text());
        let setup = format!("(setsid sh -c '{hold}' &); while ! test -e go; do sleep 0.1; done");
        let live = bench.run(backend).flags(["--setup", &setup]).start(["sh", "-c", "touch began; sleep 3"]);
        let is_there = || !processes_named(mark.text()).is_empty();
        let holds = |(_, line): &(u32, String)| line.starts_with(&format!("{} hold", probe.display()));
        let held = || processes_named(mark.text()).iter().any(holds);
        assert!(within(Backend::patience(10), held), "{named}: it did not start: {}", live.wait());
        bench.file("workspace/go", "");
        let began = bench.workspace().join("began");
        assert!(within(Backend::patience(5), || began.exists()), "{named}: {}", live.wait());
        // The arguments of the process that makes the sandbox contain the mark as well.
        assert!(!held(), "{named}: {:?}", processes_named(mark.text()));
        assert!(live.wait().code == 0 && within(Backend::patience(2), || !is_there()), "{named}");
    }
}

#[test]
fn their_time_is_the_runs_and_whoever_ends_one_ends_the_run() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    for backend in Backend::all() {
        let (bench, named, mark) = (Bench::new(), backend.name(), Canary::draw());
        let setup = format!("touch begun; '{}' hold 60 {}", bench.probe().display(), mark.text());
        let run = bench.run(backend).flags(["--setup", &setup]);
        let ended = run.clone().flags(["--timeout", "2s"]).command(["touch", "ran"]);
        assert!(ended.code == 124 && ended.took < Backend::patience(20), "{named}: {ended}");
        let begun = bench.workspace().join("begun");
        assert!(begun.exists(), "{named}: it did not begin");
        for (signal, code) in [("TERM", 143), ("INT", 130)] {
            std::fs::remove_file(&begun).unwrap();
            let live = run.start(["touch", "ran"]);
            assert!(within(Backend::patience(10), || begun.exists()), "{named}: {}", live.wait());
            std::thread::sleep(Duration::from_millis(200));
            live.signal(signal);
            let ended = live.wait();
            assert!(ended.code == code, "{named}, {signal}: {ended}");
        }
        assert!(!bench.workspace().join("ran").exists(), "{named}: the command ran all the same");
        assert!(vanishes(mark.text(), Backend::patience(2)), "{named}: {:?}", processes_named(mark.text()));
    }
}

#[test]
fn one_reaches_what_the_command_may_reach_and_no_more() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    world.controls(&[&["http", "www.example.org", "80", "/"]]);
    let get = |host: &str| format!("exec '{}' http {host} 80 /{host} > {host}.seen", bench.probe().display());
    let run = bench.run(Backend::isolated()).allow("api.example.com").within(&world);
    let flags = ["--setup", &get("api.example.com"), "--setup", &get("www.example.org")];
    let ended = run.flags(flags).command(["true"]);
    assert!(ended.code == 0, "{ended}");
    let seen = |host: &str| {
        let text = std::fs::read_to_string(bench.workspace().join(format!("{host}.seen"))).unwrap();
        serde_json::from_str::<Value>(text.trim()).unwrap()
    };
    assert_eq!(seen("api.example.com")["outcome"], json!("done"), "{}", seen("api.example.com"));
    assert_ne!(seen("www.example.org")["outcome"], json!("done"), "{}", seen("www.example.org"));
    assert!(!world.reached("/api.example.com").is_empty(), "the server saw no request");
    assert!(world.reached("/www.example.org").is_empty(), "{:?}", world.records());
}

#[test]
fn with_a_terminal_one_has_it_and_leaves_it_to_the_command() {
    if !ready(&[Needs::Linux, Needs::Terminal]) {
        return;
    }
    let bench = Bench::new();
    let probe = bench.probe();
    let setup = "test -t 0 && test -t 2 && echo of-set-up; stty -echo";
    let run = bench.run(Backend::isolated()).flags(["-t", "--setup", setup, "--setup", "sleep 0.3"]);
    let words = run.words([probe.to_str().unwrap(), "terminal"]);
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &quoted.join(" "), "/dev/null"]);
    script.envs(bench.environment()).current_dir(bench.workspace());
    let ended = Live::start(script.stdin(std::process::Stdio::null())).wait();
    assert!(ended.code == 0 && ended.stdout.contains("of-set-up"), "{ended}");
    assert!(ended.stdout.contains("\"foreground\":true"), "{ended}");
}

#[test]
fn ctrl_c_at_a_terminal_ends_the_run_and_not_one_of_them() {
    if !ready(&[Needs::Linux, Needs::Terminal]) {
        return;
    }
    let bench = Bench::new();
    let run = bench.run(Backend::isolated()).flags(["-t", "--setup", "touch begun; exec sleep 30"]);
    let quoted: Vec<String> =
        run.words(["touch", "ran"]).iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    let keys = "n=0; while ! test -e begun && test $n -lt 300; do sleep 0.1; n=$((n+1)); done; \
                sleep 0.5; printf '\\003'; sleep 5";
    let mut typed = std::process::Command::new("/bin/sh");
    typed.args(["-c", &format!("({keys}) | script --quiet --return --command \"$0\" /dev/null")]);
    typed.arg(quoted.join(" ")).envs(bench.environment()).current_dir(bench.workspace());
    let ended = Live::start(typed.stdin(std::process::Stdio::null())).wait();
    assert!(ended.code == 130, "{ended}");
    assert!(!bench.workspace().join("ran").exists(), "the command ran all the same: {ended}");
    assert_eq!(recorded(&bench), [(false, "ended by signal 2".into())]);
}

// S4.50
#[test]
fn what_an_agent_is_to_know_is_laid_out_by_one() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    for (name, text) in
        [("10-first.md", "first\n"), ("20-second.md", "second\n"), ("30-other.txt", "other\n")]
    {
        bench.file(format!("outside/context/{name}"), text);
    }
    let context = bench.outside().join("context");
    let text = format!(
        "workspace = {{ mode = \"overlay\" }}\n\
         [[mount]]\nsource = \"{}\"\ntarget = \"/home/agent/.context\"\n\
         [[setup]]\ncommand = [\"/bin/sh\", \"-c\", \"cat /home/agent/.context/*.md > AGENTS.md\"]\nrequired = true\n",
        context.display()
    );
    let run = bench.run(Backend::isolated()).flags(["--policy", &policy(&bench, &text)]);
    let ended = run.shell("cat AGENTS.md");
    assert!(ended.code == 0 && ended.stdout == "first\nsecond\n", "{ended}");
    assert!(!bench.workspace().join("AGENTS.md").exists(), "it reached the folder");
    // A link as the source is refused, so nothing runs.
    std::os::unix::fs::symlink(&context, bench.outside().join("linked")).unwrap();
    let linked = text.replace("outside/context", "outside/linked");
    let refused =
        bench.run(Backend::isolated()).flags(["--policy", &policy(&bench, &linked)]).command(["true"]);
    assert!(refused.code == 125 && refused.stderr.contains("symbolic link"), "{refused}");
}

#[test]
fn a_projects_file_has_none_run_unasked() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let file: PathBuf =
        bench.file("workspace/lockgate.toml", "setup = [{ command = [\"touch\", \"made\"] }]\n");
    let made = bench.workspace().join("made");
    let refused = bench.run(Backend::isolated()).command(["true"]);
    assert!(refused.code == 2 && refused.stderr.contains("setup") && !made.exists(), "{refused}");
    assert!(bench.lockgate(&["policy", "approve"]).code == 0);
    let ended = bench.run(Backend::isolated()).command(["true"]);
    assert!(ended.code == 0 && made.exists(), "{}: {ended}", file.display());
}
