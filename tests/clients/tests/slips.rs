//! Mistakes of a person: an unknown name, a full disk, a folder that is no workspace. Each has one message and the exit code that
//! docs/policy.md promises, and nothing is half done. S4.66

use std::fs;
use std::time::Duration;

use lockgate_clients::{Ended, Need, Site};

const NEEDS: &[Need] = &[];

/// Checks a script's exit code, and that it prints one message, with `words` in it and nothing internal.
fn told(site: &Site, script: &str, code: i32, words: &[&str]) {
    let ended = site.shell().run(script);
    assert_eq!(ended.code, code, "`{script}`: {ended}");
    for word in words {
        assert!(ended.stderr.contains(word), "`{script}` does not say {word}: {ended}");
    }
    assert!(!ended.stderr.contains("panicked") && !ended.stderr.contains("Err("), "`{script}`: {ended}");
    let messages = ended.stderr.lines().filter(|line| line.starts_with("lockgate: ")).count();
    assert!(code == 0 || messages <= 1, "`{script}` says several things: {ended}");
}

#[test]
fn a_name_that_nothing_has_is_a_wrong_command_line() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    told(
        &site,
        "lockgate run --tool rustupp -- true",
        2,
        &["there is no tool `rustupp`", "did you mean `rustup`"],
    );
    told(&site, "lockgate run --builtin-tool nope -- true", 2, &["no built-in tool `nope`", "claude"]);
    told(&site, "lockgate run --open nope -- true", 2, &["`nope` is not a protected path", ".envrc"]);
    told(&site, "lockgate run --setup '' -- true", 2, &["--setup names no command"]);
    told(&site, "lockgate runs show ''", 2, &["its identifier is empty"]);
    told(&site, "lockgate audit verify ./none.jsonl", 2, &["`./none.jsonl` is not there"]);
    told(&site, "lockgate audit verify ./", 2, &["`./` is no file"]);
    told(
        &site,
        "lockgate creds import-env GITHUB_TOKENS",
        2,
        &["no built-in provider", "did you mean `GITHUB_TOKEN`"],
    );
    told(&site, "lockgate creds ls --quiet --json", 2, &["--json"]);
    // The control: with the right names, a run.
    told(&site, "lockgate run --open .envrc --setup 'echo set up' -- true", 0, &["set up"]);
}

#[test]
fn a_name_misspelt_in_a_policy_is_told_with_the_nearest_whatever_reads_it() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let written = r#"printf '[[egress.allow]]\nhots = "a.example"\n' > lockgate.toml; lockgate"#;
    for reader in ["policy ls", "policy approve", "policy allow b.example", "run -- true"] {
        told(&site, &format!("{written} {reader}"), 2, &["unknown field `hots`", "did you mean `host`?"]);
    }
}

#[test]
fn where_a_sidecar_cannot_listen_is_told_with_what_to_do() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let sidecar = r#"printf '[[egress.allow]]\nhost = "a.example"\n' > policy.toml; : > taken
        timeout 20 "$PRODUCT" sidecar --policy policy.toml --forward"#;
    let long = format!("127.0.0.1:0 --gateway-socket ./{}", "g".repeat(120));
    for (place, words) in [
        ("192.0.2.77:8081", ["192.0.2.77:8081", "an address of this machine's"]),
        ("127.0.0.1:0 --gateway-socket ./taken", ["./taken", "name another path"]),
        (&long, ["gggg", "107 octets at most"]),
    ] {
        let ended = site.shell().run(&format!("{sidecar} {place}"));
        assert!(ended.code == 125 && words.iter().all(|word| ended.stderr.contains(word)), "{ended}");
    }
}

#[test]
fn a_limit_below_nothing_is_no_other_flag() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for limit in ["--disk -5GiB", "--memory -1", "--pids -1", "--timeout -5m"] {
        let ended = site.shell().run(&format!("lockgate run {limit} -- true"));
        assert!(ended.code == 2 && !ended.stderr.contains("to pass"), "`{limit}`: {ended}");
    }
    told(&site, "lockgate run --disk -5GiB -- true", 2, &["a limit is more than nothing"]);
}

#[test]
fn a_value_on_the_command_line_is_refused_and_not_repeated() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for given in ["github sk-canary", "github=sk-canary"] {
        let ended = site.shell().run(&format!("lockgate creds set {given}"));
        assert!(ended.code == 2 && ended.stderr.contains("--stdin"), "{ended}");
        assert!(!ended.stderr.contains("canary"), "{ended}");
    }
    told(&site, "lockgate creds ls", 0, &[]);
}

#[test]
fn of_a_command_that_was_not_found_it_is_said_why() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = "printf '#!/none/python3\\n' > agent; chmod +x agent; ";
    for (command, why) in [
        ("'make test'", "words of their own"),
        ("cd /", "a shell's own word"),
        ("./agent", "its interpreter `/none/python3` may not be inside"),
        ("nonesuch", "`nonesuch` was not found in the sandbox\n"),
    ] {
        told(&site, &format!("{script}$PRODUCT run -- {command}"), 127, &[why]);
    }
}

#[test]
fn a_policy_that_does_not_fit_stays_as_it_was() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = r#"printf '[[egress.allow]]\nhost = "a.example"\n# %0950d\n' 0 > p.toml; cp p.toml q.toml
        prlimit --fsize=1024 "$PRODUCT" policy allow --policy p.toml b.example.com:8443; code=$?
        cmp p.toml q.toml >&2 || exit 9; exit $code"#;
    told(&site, script, 125, &["p.toml: File too large", "it is as it was"]);
}

#[test]
fn a_rule_that_is_there_is_known_in_any_spelling() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    told(&site, "lockgate policy allow --policy p.toml api.example.com", 0, &["allow api.example.com"]);
    for other in ["API.example.com", "api.example.com."] {
        told(&site, &format!("lockgate policy allow --policy p.toml {other}"), 0, &["is there already"]);
    }
    told(&site, "lockgate policy deny --policy p.toml Api.Example.com", 0, &["deny Api.Example.com"]);
    told(
        &site,
        "lockgate policy allow --policy p.toml api.example.com.",
        0,
        &["api.example.com. stays denied by egress.deny[0] in ", "api.example.com is denied"],
    );
}

#[test]
fn a_sidecar_s_files_are_named_where_they_cannot_be_written() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for file in ["--env-file", "--ca", "--audit"] {
        let script = format!(
            "echo '[egress]' > s.toml; timeout 20 $PRODUCT sidecar --policy s.toml --forward 127.0.0.1:0 {file} none/x"
        );
        told(&site, &script, 2, &["none/x", "name a file in a folder that you may write to"]);
    }
    let script = "timeout 20 $PRODUCT sidecar --policy s.toml --forward 127.0.0.1:0 --audit none/";
    told(&site, script, 2, &["there is no folder none/", "make it first"]);
}

#[test]
fn rows_that_cannot_be_read_are_named() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    told(&site, "lockgate policy check --jsonl </", 2, &["failed to read stdin", "Is a directory"]);
}

#[test]
fn what_other_programs_call_a_flag_is_answered_by_what_does_it_here() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for (wrong, word) in [
        ("--rm", "nothing is left behind"),
        ("-v /a:/b", "--mount SRC:DST"),
        ("--deny example.com", "lockgate policy deny HOST"),
        ("--verbose", "runs logs latest"),
    ] {
        let ended = site.shell().run(&format!("lockgate run {wrong} -- true"));
        assert!(ended.code == 2 && ended.stderr.contains(word), "`{wrong}`: {ended}");
        assert!(!ended.stderr.contains("to pass") && !ended.stderr.contains("similar"), "`{wrong}`: {ended}");
    }
    told(
        &site,
        "lockgate run --preset github,llm-providers -- true",
        2,
        &["--preset github --preset llm-providers"],
    );
    told(
        &site,
        "lockgate run --allow localhost:11434 -- true",
        2,
        &["addresses = [\"127.0.0.1\"]", "[11434]"],
    );
    for name in ["localhost", "host.docker.internal"] {
        let rule = &["ports = [3000], addresses = [\"127.0.0.1\"]"];
        told(&site, &format!("lockgate policy allow {name}:3000"), 2, rule);
        told(&site, &format!("lockgate policy check {name}:3000 >&2"), 1, rule);
        told(&site, &format!("lockgate policy explain {name}:3000 >&2"), 1, rule);
    }
    let rule = &["note: ", "ports = [3000], addresses = [\"127.0.0.1\"]"];
    told(&site, "lockgate policy allow 127.0.0.1:3000", 0, rule);
    told(&site, "lockgate run -- true", 0, rule);
    told(&site, "rm lockgate.toml; lockgate run --allow 127.0.0.1:3000 -- true", 0, rule);
}

#[test]
fn what_is_told_begins_a_line_and_json_has_a_file_of_its_own() {
    let Some(site) = Site::for_test(&[Need::Program("curl"), Need::Program("python3")]) else { return };
    let of_run = |ended: &Ended| -> serde_json::Value {
        serde_json::from_str(ended.stderr.lines().last().unwrap_or_default()).expect("one object")
    };
    // To a file, and through a pipe.
    for way in ["", " 2>&1 >/dev/null | cat >&2"] {
        let ended = site.shell().run(&format!("lockgate run --json -- sh -c 'printf half >&2'{way}"));
        assert!(ended.stderr.starts_with("half\n{"), "{ended}");
        assert_eq!(of_run(&ended)["exit_code"], 0, "{ended}");
        let ended = site.shell().run(&format!("lockgate run --json -- sh -c 'echo whole >&2'{way}"));
        assert!(ended.stderr.starts_with("whole\n{"), "{ended}");
    }
    let denied = "printf half >&2; curl -s -o /dev/null http://www.example.org/; sleep 1; printf rest >&2";
    let ended = site.shell().run(&format!("lockgate run -- sh -c '{denied}'"));
    assert!(ended.stderr.starts_with("half\nlockgate: denied"), "{ended}");
    assert!(ended.stderr.contains("\nrest\nlockgate: 1 request denied"), "{ended}");
    // On a terminal of the command's own.
    let terminal = "import os, pty\npid, fd = pty.fork()\nif pid == 0: os.execv(os.environ[\"PRODUCT\"], \
        [\"lockgate\", \"run\", \"--json\", \"--\", \"printf\", \"half\"])\nsaid = b\"\"\n\
        try:\n while more := os.read(fd, 4096): said += more\nexcept OSError: pass\nprint(said.decode().replace(\"\\r\", \"\"))";
    let ended = site.shell().run(&format!("python3 -c '{terminal}'"));
    assert!(ended.stdout.starts_with("half\n{"), "{ended}");
    let read = |ended: &Ended| -> serde_json::Value {
        let text = fs::read_to_string(site.outside().join("told"))
            .unwrap_or_else(|error| panic!("{error}: {ended}"));
        serde_json::from_str(&text).expect("one object")
    };
    let file = site.outside().join("told");
    for (run, code) in [("-- sh -c 'echo {; exit 3'", 3), ("--tool nope -- true", 2)] {
        let ended = site.shell().run(&format!("lockgate run --json-file {} {run}", file.display()));
        assert!(ended.code == code && !ended.stderr.contains('{'), "{ended}");
        assert_eq!(read(&ended)["exit_code"], code, "{ended}");
    }
    let link = format!("ln -s {} link; lockgate run --json-file link -- touch began", file.display());
    told(&site, &link, 2, &["link: it is a link"]);
    assert!(!site.workspace().join("began").exists());
}

#[test]
fn a_run_is_ended_from_elsewhere() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = "$PRODUCT run -- sh -c 'touch began; sleep 60' & run=$!
        for i in $(seq 100); do [ -e began ] && break; sleep 0.1; done
        $PRODUCT runs show latest | grep -Fx \"process    $run\" && ! lockgate runs rm latest && lockgate runs stop latest; echo \"stop=$?\"
        wait $run; echo \"run=$?\"; lockgate runs show latest | grep '^process'; lockgate runs stop latest; echo \"again=$?\"";
    let ended = site.shell().run(script);
    assert!(ended.took < Duration::from_secs(30), "{ended}");
    for line in ["stop=0", "run=143", "again=1"] {
        assert!(ended.stdout.lines().any(|it| it == line), "{line}: {ended}");
    }
    assert!(
        ended.stderr.contains("lockgate runs stop ") && ended.stderr.contains("has already ended"),
        "{ended}"
    );
    assert_eq!(ended.stdout.matches("process").count(), 1, "{ended}");
}

#[test]
fn of_several_that_are_to_be_ended_one_that_is_over_keeps_no_other() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = "lockgate run -- true; over=$(lockgate runs ls -q | head -n 1)
        $PRODUCT run -- sh -c 'touch began; sleep 50' & run=$!
        for i in $(seq 100); do [ -e began ] && break; sleep 0.1; done
        $PRODUCT runs stop $over latest; echo \"stop=$?\"; wait $run; echo \"run=$?\"";
    let ended = site.shell().run(script);
    assert!(ended.took < Duration::from_secs(30), "{ended}");
    assert!(ended.stdout.ends_with("stop=1\nrun=143\n") && ended.stderr.contains("has ended"), "{ended}");
}

#[test]
fn a_program_of_the_home_is_brought_by_the_line_that_is_told() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = "home=$(cd .. && pwd)/outside/home; mkdir -p $home/bin $home/app; export HOME=$home PATH=$home/bin:$PATH
        printf '#!/bin/sh\\necho it ran\\n' > $home/app/agent; chmod +x $home/app/agent; ln -s ../app/agent $home/bin/agent
        for name in agent $home/bin/agent; do
            line=$(lockgate run -- $name 2>&1 | sed -n 's/.*and this brings it: //p'); eval \"lockgate run $line\"
        done";
    let ended = site.shell().run(script);
    assert_eq!(ended.stdout, "it ran\nit ran\n", "{ended}");
    let wrong = "lockgate run --mount /usr/bin/true:/usr/local/bin/x -- true";
    told(&site, wrong, 125, &["choose a place below /home/agent"]);
}

#[test]
fn a_program_is_told_as_json_what_is_wrong() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for wrong in
        ["--pids x -- true", "--nonsense -- true", "true", "--memory x -- true", "--tool nope -- true"]
    {
        let ended = site.shell().run(&format!("lockgate run --json {wrong}"));
        assert_eq!(ended.code, 2, "`{wrong}`: {ended}");
        let told: serde_json::Value = serde_json::from_str(ended.stderr.trim()).expect("one object");
        assert!(
            told["exit_code"] == 2 && told["error"].as_str().is_some_and(|why| !why.is_empty()),
            "{told}"
        );
    }
    // Not where it is an argument of the command.
    let ended = site.shell().run("lockgate run --pids x -- echo --json");
    assert!(ended.code == 2 && ended.stderr.starts_with("error: "), "{ended}");
}

#[test]
fn what_cannot_be_on_any_machine_is_the_command_lines_matter() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for (wrong, words) in [
        (
            "mkdir -p one two; lockgate run --mount one:/srv/a --mount two:/srv/a -- true",
            ["would hide /srv/a", "of its own"],
        ),
        ("lockgate run --workspace /etc -- true", ["a directory of the system", "a folder of your own"]),
        ("BAD=$(printf 'a\\377') lockgate run --env BAD -- true", ["BAD of the caller's", "--env BAD=VALUE"]),
        ("lockgate image import ./none.tar", ["./none.tar: there is no such", "name an archive"]),
    ] {
        told(&site, wrong, 2, &words);
    }
}

#[test]
fn what_cannot_be_written_is_no_verdict() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let check = "lockgate policy check --allow 93.184.216.34 http://93.184.216.34/";
    told(&site, check, 0, &[]);
    for wanted in [check, "lockgate doctor", "lockgate version", "lockgate policy schema"] {
        told(
            &site,
            &format!("{wanted} > /dev/full"),
            125,
            &["failed to write to standard output", "No space left"],
        );
    }
    // A reader that closes the pipe has seen enough.
    told(&site, "lockgate policy schema | head -n 1 > /dev/null", 0, &[]);
}

/// With room for the run's record and none for its audit, the sidecar finds out.
#[test]
fn of_a_full_state_directory_it_is_said_which_file_does_not_fit() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let mut refused = Vec::new();
    for kibibytes in (0..=20).step_by(4) {
        let script = format!(
            "mount -t tmpfs -o size=64k none $XDG_STATE_HOME && $PRODUCT run -- true && cd $XDG_STATE_HOME && \
             {{ head -c 65536 /dev/zero > filled 2> /dev/null; truncate -s -{kibibytes}K filled; }} && \
             cd - > /dev/null && $PRODUCT run -- true"
        );
        let ended = site.shell().run(&format!("exec unshare --mount /bin/sh -c '{script}'"));
        if ended.code == 0 {
            assert!(ended.stderr.is_empty(), "{kibibytes} KiB were left: {ended}");
            continue;
        }
        let said: Vec<&str> = ended.stderr.lines().collect();
        let about_room = "No space left on device (os error 28)";
        let [first, remedy] = said[..] else { panic!("{kibibytes} KiB were left: {ended}") };
        assert!(ended.code == 125 && first.contains(about_room), "{kibibytes} KiB were left: {ended}");
        assert!(remedy.contains("free some space"), "{kibibytes} KiB were left: {ended}");
        refused.extend(["/runs/", "/audit/"].into_iter().filter(|part| first.contains(part)));
    }
    refused.dedup();
    assert_eq!(refused, ["/runs/", "/audit/"], "with more room another file is the one that does not fit");
}

#[test]
fn of_several_names_all_are_removed_or_none() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for provider in ["github", "openai"] {
        told(&site, &format!("echo value | lockgate creds set {provider} --stdin"), 0, &["stored"]);
    }
    told(&site, "lockgate creds rm github nope", 2, &["no credential for `nope`"]);
    told(&site, "lockgate creds ls -q | grep -qx github", 0, &[]);
    told(&site, "lockgate creds rm github github", 0, &["removed github"]);
    // What cannot be decrypted any more can be removed.
    told(&site, "rm \"$XDG_STATE_HOME/lockgate/keys/vault.key\"", 0, &[]);
    told(&site, "lockgate creds show openai", 125, &["key"]);
    told(&site, "lockgate creds rm openai", 0, &["removed openai"]);
    told(&site, "test -z \"$(lockgate creds ls)\"", 0, &[]);
    told(&site, "lockgate run -- true && lockgate run -- true", 0, &[]);
    told(&site, "lockgate runs rm latest nope", 2, &["there is no run `nope`"]);
    told(&site, "test $(lockgate runs ls -q | wc -l) -eq 2", 0, &[]);
    told(&site, "lockgate runs rm latest latest", 0, &["removed run"]);
    told(&site, "test $(lockgate runs ls -q | wc -l) -eq 1", 0, &[]);
}

#[test]
fn a_policy_that_cannot_be_approved_is_not_written() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let project = site.workspace().join("lockgate.toml");
    // A folder where nobody can create a file, not even root.
    told(&site, "XDG_STATE_HOME=/proc/none $PRODUCT policy allow www.example.org", 125, &["/proc/none"]);
    assert!(!project.exists());
    told(&site, "lockgate policy allow www.example.org", 0, &["allow www.example.org"]);
    let before = fs::read_to_string(&project).expect("the policy");
    told(&site, "XDG_STATE_HOME=/proc/none $PRODUCT policy approve < /dev/null", 125, &["/proc/none"]);
    assert_eq!(fs::read_to_string(&project).expect("the policy"), before);
    told(&site, "lockgate run -- true", 0, &[]);
    // A URL without a path names the first page alone.
    told(
        &site,
        "lockgate policy allow HTTPS://pages.example.org",
        0,
        &["HTTPS://pages.example.org/* is all of it"],
    );
    told(&site, "lockgate policy allow www.example.org/v1", 2, &["https://HOST/PATH/*"]);
    told(&site, "lockgate policy allow bücher.example", 2, &["`bücher.example`", "ASCII form"]);
    told(
        &site,
        "lockgate policy deny --reason \"$(printf 'a\\nb')\" x.example",
        2,
        &["--reason: it is one line"],
    );
    told(
        &site,
        "lockgate config show --memory 2gb >/dev/null",
        0,
        &["would be refused: command line: --memory: "],
    );
    told(&site, "lockgate policy allow a.example:65536", 2, &["`65536` is not a port: 1 to 65535"]);
    fs::remove_file(&project).expect("the policy goes");
    fs::create_dir(&project).expect("a folder of one's own");
    told(&site, "lockgate policy init", 2, &["is a folder", "move it away"]);
    fs::remove_dir(&project).expect("the folder goes");
    fs::write(&project, "").expect("an empty file");
    told(&site, "lockgate policy approve < /dev/null", 0, &["approved"]);
}

#[test]
fn what_a_run_would_refuse_is_shown_and_said() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let project = site.workspace().join("lockgate.toml");
    fs::write(&project, "presets = [\"github\"]\n").expect("a file that came with a clone");
    let show = "lockgate config show --origin | grep -F 'presets = [\"github\"]  # lockgate.toml'";
    told(&site, show, 0, &["a run would be refused: lockgate.toml: presets", "lockgate policy approve"]);
    told(&site, "lockgate policy approve < /dev/null", 0, &["approved"]);
    let ended = site.shell().run(show);
    assert!(ended.code == 0 && ended.stderr.is_empty(), "{ended}");
    told(&site, "lockgate config show --timeout 2h", 0, &["note: timeout 2h is longer than the ceiling"]);
}

#[test]
fn help_that_nobody_gets_and_a_variable_that_is_empty_are_no_success_and_no_failure() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    for asked in ["--help", "--version", "run --help"] {
        told(&site, &format!("lockgate {asked} > /dev/full"), 125, &["failed to write to standard output"]);
        told(&site, &format!("lockgate {asked} > /dev/null"), 0, &[]);
    }
    told(&site, "TMPDIR= lockgate demo > /dev/null", 0, &[]);
}

#[test]
fn the_doctor_says_what_a_run_in_this_folder_would() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    told(&site, "lockgate doctor > ../healthy", 0, &[]);
    // The latest run stays one of the person's own.
    told(&site, "test -z \"$(lockgate runs ls)\"", 0, &[]);
    let project = site.workspace().join("lockgate.toml");
    fs::write(&project, "nonsense").expect("a broken policy");
    told(&site, "lockgate doctor > ../broken", 1, &[]);
    told(&site, "grep -q 'does not work here' ../broken && grep -q no-project ../broken", 0, &[]);
    told(&site, "lockgate run -- true", 2, &["lockgate.toml"]);
    fs::remove_file(&project).expect("the policy goes");
    told(&site, "cd / && lockgate doctor > /dev/null", 1, &[]);
    told(&site, "cd / && lockgate run -- true", 2, &["/"]);
}

#[test]
fn a_sidecar_takes_no_file_away_and_tells_the_port_it_found() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    fs::write(site.workspace().join("p.toml"), "[egress]\n").expect("room");
    fs::write(site.workspace().join("mine"), "mine").expect("room");
    let sidecar = "timeout 5 $PRODUCT sidecar --policy p.toml --forward 127.0.0.1:0";
    told(&site, &format!("{sidecar} --gateway-socket mine"), 125, &["mine", "in use"]);
    for flags in ["--ca p.toml", "--ca new --audit ./new", "--env-file mine --gateway-socket mine"] {
        told(&site, &format!("{sidecar} {flags}"), 2, &["name the same file"]);
    }
    for (flags, words) in [
        ("--ca .", ["--ca", "it is a folder"]),
        ("--gateway-socket .", ["--gateway-socket", "it is a folder"]),
        ("--gateway 127.0.0.1:18982 --dns 127.0.0.1:18982", ["--gateway and --dns", "the same place"]),
    ] {
        told(&site, &format!("{sidecar} {flags}"), 2, &words);
    }
    told(&site, "cat p.toml mine | grep -q '^mine' && grep -q egress p.toml && [ ! -e new ]", 0, &[]);
    // The control: it serves, prints its addresses, and removes its own socket, also a stale one.
    let serve = "$PRODUCT sidecar --policy p.toml --forward 127.0.0.1:0 --gateway-socket s";
    let script = format!(
        "for end in KILL TERM; do timeout -s $end 5 {serve} 2>>said; sleep 0.5; done; [ ! -e s ] && cat said >&2"
    );
    let ended = site.shell().run(&script);
    assert!(ended.code == 0 && ended.stderr.matches("proxy at http://127.0.0.1:").count() == 2, "{ended}");
    assert!(!ended.stderr.contains("127.0.0.1:0;"), "{ended}");
}

#[test]
fn a_sidecar_alone_says_what_of_a_policy_it_does_not_hold() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let serve = "timeout 6 $PRODUCT sidecar --policy p.toml --forward 127.0.0.1:0";
    for (table, words) in [
        ("[[companion]]\nname = \"db\"\nimage = \"redis\"\nports = [6379]", ["companion", "`db`"]),
        ("[[inbound]]\ncontainer_port = 8000", ["inbound", "8000"]),
    ] {
        fs::write(site.workspace().join("p.toml"), table).expect("room");
        told(&site, serve, 2, &words);
    }
    let policy = "timeout = \"1m\"\nbuiltin_tools = [\"git\"]\nproviders = []\n[egress]\n[env.set]\nA = \"1\"\nB = \"2\"\n\
        [limits]\nmemory = \"1GiB\"\npids = 100\n[[setup]]\ncommand = [\"true\"]\n";
    fs::write(site.workspace().join("p.toml"), policy).expect("room");
    let ended = site.shell().run(serve);
    let told: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("does not hold")).collect();
    let [told] = told.as_slice() else { panic!("{told:?}: {ended}") };
    for field in ["timeout", "builtin_tools", "env.set", "limits", "setup"] {
        assert!(told.matches(field).count() == 1, "{field}: {told}");
    }
    // The control: settings that it enforces are not mentioned.
    fs::write(site.workspace().join("p.toml"), "[egress]\nallow = [{ host = \"example.com\" }]")
        .expect("room");
    let ended = site.shell().run(serve);
    assert!(!ended.stderr.contains("does not hold") && ended.stderr.contains("proxy at"), "{ended}");
}

#[test]
fn a_login_of_a_proxy_that_is_not_stored_is_told_before_anything_needs_it() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let policy = "proxy = [{ id = \"corp\", url = \"http://proxy.example:3128\", credential = \"mine\" }]\n\
        egress.proxy = \"corp\"\negress.allow = [{ host = \"far.example\" }]\n";
    fs::write(site.workspace().join("p.toml"), policy).expect("room");
    let said = |command: &str| site.shell().run(command).stderr;
    let show = || said("lockgate config show --policy p.toml");
    let serve = || said("timeout 3 $PRODUCT sidecar --policy p.toml --forward 127.0.0.1:0 --quiet");
    let missing = "the credential `mine` for the proxy `corp`";
    let remedy = "\n  lockgate creds set mine --field username; lockgate creds set mine --field password";
    let (shown, served) = (show(), serve());
    assert!(shown.contains("a run would be refused: ") && shown.contains(missing), "{shown}");
    let (before, _) = served.split_once("proxy at http").expect("it serves");
    assert!(before.contains(&format!("note: cannot find {missing}")), "{served}");
    assert!(shown.contains(remedy) && before.contains(remedy), "{shown}\n{served}");
    for field in ["username", "password"] {
        let set = format!("lockgate creds set mine --field {field} --from-command echo value");
        told(&site, &set, 0, &["stored"]);
    }
    let (shown, served) = (show(), serve());
    assert!(!shown.contains("refused") && !served.contains("cannot find"), "{shown}\n{served}");
    assert!(served.contains("proxy at http"), "{served}");
}

#[test]
fn a_value_that_is_none_is_told_and_nothing_is_stored() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let keys = "GITHUB_TOKEN=ok12345678 NOTION_TOKEN=' blank' LINEAR_API_KEY=lin12345";
    told(&site, &format!("{keys} $PRODUCT creds import-env"), 2, &["NOTION_TOKEN: the value has a blank"]);
    told(
        &site,
        "lockgate creds set @lockgate/proxy-url --from-command echo x",
        2,
        &["@lockgate/proxy-url", "this program's own"],
    );
    told(&site, "[ -z \"$(lockgate creds ls -q)\" ]", 0, &[]);
    told(
        &site,
        "timeout 20 $PRODUCT creds set x --from-command yes",
        2,
        &["`yes`", "more than any credential"],
    );
    told(&site, "lockgate run --copy /dev/null:/x -- true", 2, &["/dev/null", "only files and directories"]);
    told(&site, "lockgate completion bash > /dev/full", 125, &["failed to write to standard output"]);
    told(&site, "TMPDIR=/nope $PRODUCT demo", 2, &["/nope", "TMPDIR"]);
    // The control.
    told(
        &site,
        "GITHUB_TOKEN=ok12345678 $PRODUCT creds import-env && lockgate creds set x --from-command echo y",
        0,
        &["stored"],
    );
}

#[test]
fn half_of_a_platform_is_none() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    fs::write(site.workspace().join("p.toml"), "").expect("a policy");
    let sidecar = "timeout 5 $PRODUCT sidecar --policy p.toml --forward 127.0.0.1:18981";
    told(&site, &format!("RUN_TOKEN=x {sidecar}"), 125, &["RUN_TOKEN is set", "PLATFORM_API_URL is not"]);
    let alone = format!("PLATFORM_API_URL=http://127.0.0.1:1 {sidecar}");
    told(&site, &alone, 125, &["PLATFORM_API_URL is set", "RUN_TOKEN is not"]);
}

#[test]
fn a_reader_that_has_gone_changes_no_verdict() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    // A pipe that nobody reads.
    let unread = |command: &str| {
        format!(
            "rm -f pipe; mkfifo pipe; exec 3<>pipe 4>pipe 3<&-; {command} >&4 2>said; code=$?; cat said >&2; exit $code"
        )
    };
    for (command, code) in [
        ("lockgate policy check https://shut.example/", 1),
        ("lockgate policy check --json https://shut.example/", 1),
        ("lockgate policy explain https://shut.example/", 1),
        ("lockgate policy explain --json https://shut.example/", 1),
        ("echo '{}' | lockgate policy check --jsonl", 2),
        ("echo '{\"id\": 1}' | lockgate policy check --jsonl", 2),
        // The control: what has no verdict ends as well as ever.
        ("lockgate policy schema", 0),
        ("lockgate policy explain --allow 10.0.0.5 http://10.0.0.5/", 0),
    ] {
        told(&site, &unread(command), code, &[]);
    }
    let vault = "GITHUB_TOKEN=ok12345678 $PRODUCT creds import-env >said 2>&1; \
                 echo damaged >$XDG_STATE_HOME/lockgate/vault/github.json; ";
    for command in ["keys rotate", "creds ls"] {
        told(&site, &format!("{vault}$PRODUCT {command}"), 1, &["github: failed to "]);
        told(&site, &format!("{vault}{}", unread(&format!("$PRODUCT {command}"))), 1, &["github"]);
    }
    told(&site, &format!("{vault}{}", unread("lockgate keys rotate --json")), 1, &[]);
    let cut =
        "lockgate run -- true && sed -i '$d' $XDG_STATE_HOME/lockgate/audit/$(lockgate runs ls -q).jsonl";
    told(&site, cut, 0, &[]);
    for command in ["audit verify", "audit verify --json"] {
        told(&site, &unread(&format!("lockgate {command} $(lockgate runs ls -q)")), 1, &[]);
    }
}
