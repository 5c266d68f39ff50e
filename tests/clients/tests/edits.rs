//! Rules that a person adds with `lockgate policy`, and the rule that a denial proposes: added literally, it allows what was denied. S4.60,
//! S4.66; the layers of docs/policy.md.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lockgate_clients::{Ended, Need, Site};

const NEEDS: &[Need] = &[Need::Program("curl")];
const RULE: &str = "host = \"www.example.org\"";

fn read(path: &std::path::Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_rule_is_written_once_and_into_the_file_that_was_named() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let project = site.workspace().join("lockgate.toml");
    let ended = site.shell().run(
        "lockgate policy allow www.example.org www.example.org && lockgate policy allow www.example.org",
    );
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(read(&project).matches(RULE).count(), 1, "{}", read(&project));
    assert_eq!(ended.stderr.matches("is there already").count(), 2, "{ended}");
    let before = read(&project);
    let (folder, named) = (site.folder("other"), site.outside().join("named.toml"));
    let (folder_text, named_text) = (folder.to_str().expect("UTF-8"), named.to_str().expect("UTF-8"));
    for words in [
        &["policy", "allow", "--policy", named_text, "www.example.org"][..],
        &["policy", "deny", "--policy", named_text, "--reason", "not today", "www.example.org:80"],
        &["policy", "allow", "--workspace", folder_text, "www.example.org"],
    ] {
        let ended = site.lockgate(words);
        assert_eq!(ended.code, 0, "{ended}");
    }
    assert_eq!(read(&project), before);
    let named = read(&named);
    assert!(named.contains(RULE) && named.contains("reason = \"not today\""), "{named}");
    // What the person added there is approved there.
    assert!(read(&folder.join("lockgate.toml")).contains(RULE));
    let ended = site
        .shell()
        .run(&format!("cd {folder_text} && lockgate run -- curl -sSf -o /dev/null http://www.example.org/"));
    assert_eq!(ended.code, 0, "{ended}");
    let ended = site.lockgate(&[
        "policy",
        "allow",
        "--policy",
        named_text,
        "--workspace",
        folder_text,
        "www.example.org",
    ]);
    assert_eq!(ended.code, 2, "{ended}");
}

#[test]
fn a_file_that_is_made_for_one_rule_says_nothing_else() {
    let Some(site) = Site::for_test(&[]) else { return };
    let config = site.folder("config");
    fs::create_dir(config.join("lockgate")).expect("room");
    fs::set_permissions(config.join("lockgate"), fs::Permissions::from_mode(0o755)).expect("ours");
    fs::write(config.join("lockgate/config.toml"), "[egress]\ndefault = \"open-internet\"\n").expect("room");
    let ended = site.shell().with("XDG_CONFIG_HOME", config.to_str().expect("UTF-8")).run(
        "lockgate policy deny files.example.com && lockgate policy allow www.example.com:443
        for host in files.example.com www.example.org; do lockgate policy check https://$host/ > /dev/null; echo $?; done",
    );
    assert_eq!(ended.stdout, "1\n0\n", "{ended}");
}

#[test]
fn what_a_denial_recommends_allows_it() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let named = site.file("a policy.toml", "[egress]\ndefault = \"deny\"\n");
    let folder = site.folder("elsewhere");
    let (named, folder) =
        (format!("--policy '{}'", named.display()), format!("--workspace '{}'", folder.display()));
    for (flags, recommended) in [
        (named.as_str(), format!("lockgate policy allow {named} www.example.org:80")),
        // A path of plain letters needs no quotes.
        (&folder, format!("lockgate policy allow {} www.example.org:80", folder.replace('\'', ""))),
        ("--no-project", "--allow www.example.org:80".to_owned()),
        ("", "lockgate policy allow www.example.org:80".to_owned()),
    ] {
        let ask = |more: &str| {
            site.shell().run(&format!(
                    "lockgate run {flags} {more} -- curl -sS -m 5 -o /dev/null -w '%{{http_code}}' http://www.example.org/"
                ),
            )
        };
        let denied = ask("");
        assert!(denied.stdout.ends_with("403"), "{flags}: {denied}");
        // Without a policy in its folder a run holds the place of one.
        let lead = if flags.is_empty() || flags.starts_with("--workspace") {
            "to allow it once this run has ended: "
        } else {
            "to allow it: "
        };
        let hint = denied.stderr.lines().find_map(|line| line.trim().strip_prefix(lead));
        assert_eq!(hint, Some(recommended.as_str()), "{denied}");
        let allowed = if recommended.starts_with("--") {
            ask(&recommended)
        } else {
            let ended = site.shell().run(&recommended);
            assert_eq!(ended.code, 0, "{ended}");
            ask("")
        };
        assert!(allowed.stdout.ends_with("200"), "{flags}: {allowed}");
    }
    let explained = site.shell().run("lockgate policy explain --no-project https://files.example.com/x");
    assert!(explained.stdout.contains("to allow it: --allow files.example.com:443"), "{explained}");
    let checked = site.shell().run("lockgate policy check --no-project https://files.example.com/x");
    assert!(checked.stdout.contains("to allow it: --allow files.example.com:443"), "{checked}");
    for (command, target, is_named) in [
        ("check", "https://openrouter.ai/docs", false),
        ("check", "https://openrouter.ai/api/v1/models", true),
        ("explain", "http://api.openai.com/v1/x", false),
        ("explain", "https://api.openai.com/v1/x", true),
    ] {
        let denied = site.shell().run(&format!("lockgate policy {command} --no-project {target}"));
        assert_eq!(denied.code, 1, "{denied}");
        let flag = denied.stdout.lines().find_map(|line| line.find("--provider ").map(|at| &line[at..]));
        assert_eq!(flag.is_some(), is_named, "{denied}");
        let Some(flag) = flag else { continue };
        // It resolves no name: these lead nowhere here.
        let allowed = site.shell().run(&format!("lockgate policy explain --no-project {flag} {target}"));
        assert_eq!(allowed.code, 0, "{allowed}");
    }
}

/// Returns the first command of this program's that a remedy has in backticks.
fn recommended(ended: &Ended) -> String {
    let words = ended.stderr.split('`').skip(1).step_by(2);
    let mut commands = words.filter(|it| it.starts_with("lockgate "));
    commands.next().unwrap_or_else(|| panic!("it recommends no command: {ended}")).to_owned()
}

#[test]
fn what_a_refusal_recommends_is_about_the_file_that_was_refused() {
    let Some(site) = Site::for_test(&[]) else { return };
    let here = site.workspace().join("lockgate.toml");
    fs::write(&here, "presets = [\"open-internet\"]\n").expect("room");
    let folder = site.folder("a repository");
    let file = folder.join("lockgate.toml");
    fs::write(&file, "presets = [\"github\"]\n").expect("room");
    let flag = format!("--workspace '{}'", folder.display());
    let told = format!("{}: presets", file.display());
    let run = format!("lockgate run {flag} -- true");
    let follow = |ended: &Ended| site.shell().run(&format!("{} < /dev/null", recommended(ended)));
    for refused in [&run, &format!("lockgate policy ls {flag}")] {
        let ended = site.shell().run(refused);
        assert!(ended.code == 2 && ended.stderr.contains(&told), "{ended}");
        let followed = follow(&ended);
        assert_eq!(followed.code, 0, "{followed}");
        let again = site.shell().run(&run);
        assert_eq!(again.code, 0, "{again}");
        fs::write(&file, format!("{}# changed\n", read(&file))).expect("room");
    }
    let added = site.shell().run(&format!("lockgate policy allow {flag} www.example.org"));
    assert_eq!(follow(&added).code, 0, "{added}");
    let again = site.shell().run(&run);
    assert_eq!(again.code, 0, "{again}");
    // What lies in the current folder was approved by none of them.
    let ended = site.shell().run("lockgate run -- true");
    assert!(ended.code == 2 && ended.stderr.contains("lockgate: lockgate.toml: presets"), "{ended}");
}

#[test]
fn what_makes_or_changes_a_file_is_recommended_for_the_file_that_was_named() {
    let Some(site) = Site::for_test(&[]) else { return };
    let (named, folder) = (site.outside().join("a policy.toml"), site.folder("elsewhere"));
    let workspace = format!("--workspace '{}'", folder.display());
    let none = site.shell().run(&format!("lockgate policy approve {workspace}"));
    let made = site.shell().run(&recommended(&none));
    assert!(made.code == 0 && folder.join("lockgate.toml").exists(), "{made}");
    for (flag, file) in [
        (format!("--policy '{}'", named.display()), named.clone()),
        (workspace, folder.join("lockgate.toml")),
    ] {
        let _ = site.shell().run(&format!("lockgate policy init {flag}"));
        let there = site.shell().run(&format!("lockgate policy init {flag}"));
        assert_eq!(there.code, 2, "{there}");
        let changed = site.shell().run(&recommended(&there).replace("HOST", "www.example.org"));
        assert!(changed.code == 0 && read(&file).contains(RULE), "{changed}");
    }
    assert!(!site.workspace().join("lockgate.toml").exists());
}

#[test]
fn what_a_remedy_says_of_a_file_holds_for_it() {
    let Some(site) = Site::for_test(&[]) else { return };
    let folder = site.outside();
    std::os::unix::fs::symlink(folder.join("none"), folder.join("link")).expect("room");
    let at = |name: &str| folder.join(name).display().to_string();
    let refused = |flags: &str| {
        let ended = site.shell().run(&format!("lockgate run {flags} -- true"));
        assert_eq!(ended.code, 2, "{ended}");
        ended
    };
    let begun = site.shell().run(&recommended(&refused(&format!("--policy {}", at("new.toml")))));
    assert!(begun.code == 0 && folder.join("new.toml").exists(), "{begun}");
    for none_begins in [at("link"), at("nowhere/x.toml"), at(""), "/dev/null".to_owned()] {
        let ended = refused(&format!("--policy {none_begins}"));
        assert!(!ended.stderr.contains("policy init") && !ended.stderr.contains("no-project"), "{ended}");
    }
    // Not UTF-8.
    fs::write(site.workspace().join("lockgate.toml"), [0xff]).expect("room");
    let without = site.shell().run(&recommended(&refused("")).replace("CMD", "true"));
    assert_eq!(without.code, 0, "{without}");
    fs::remove_file(site.workspace().join("lockgate.toml")).expect("ours");
    // What is written as a value is told is taken.
    for (asked, taken) in [("--pids 4294967296", "largest is "), ("--pids 4194304", "at most ")] {
        let ended = refused(asked);
        let (_, most) = ended.stderr.split_once(taken).unwrap_or_else(|| panic!("{ended}"));
        let most: String = most.chars().take_while(char::is_ascii_digit).collect();
        let shown = site.shell().run(&format!("lockgate config show --pids {most}"));
        assert_eq!(shown.code, 0, "{shown}");
    }
    let image = site.shell().run(
        "printf 'backend = \"docker\"\n' > d.toml; lockgate sidecar --policy d.toml --forward 127.0.0.1:0",
    );
    assert!(image.code == 2 && image.stderr.contains("`image` in a policy"), "{image}");
    let given = site.shell().run(
        r#"PI_IMAGE=x "$PRODUCT" sidecar --policy d.toml --forward 127.0.0.1:0 2>err & given=$!
        trap 'kill $given' EXIT; complaints=err; await 'grep -q "proxy at http" err'"#,
    );
    assert_eq!(given.code, 0, "{given}");
}

#[test]
fn a_file_may_lean_on_what_the_person_has_always_in_force() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let home = site.folder("config");
    fs::create_dir(home.join("lockgate")).expect("room");
    let config = r#"
[[provider]]
id = "mine"
authorized_uris = ["https://protocols.example/*"]
env = "MINE_TOKEN"
inject = { header = "authorization", value = "Bearer {{access_token}}" }
"#;
    fs::write(home.join("lockgate/config.toml"), config).expect("room");
    fs::set_permissions(home.join("lockgate"), fs::Permissions::from_mode(0o755)).expect("ours");
    fs::write(site.workspace().join("lockgate.toml"), "[env.variable.MINE_TOKEN]\nexpose = true\n")
        .expect("room");
    let home = home.display();
    let with = |script: &str| site.shell().run(&format!("export XDG_CONFIG_HOME='{home}'\n{script}"));
    let ended =
        with("lockgate policy approve && lockgate policy allow www.example.org && lockgate policy ls");
    assert!(ended.code == 0 && ended.stdout.contains("www.example.org"), "{ended}");
    // Without the person's own layer it is still invalid, and stays unchanged.
    let before = read(&site.workspace().join("lockgate.toml"));
    let ended = site.shell().run("lockgate policy allow other.example.org");
    assert!(ended.code == 2 && ended.stderr.contains("MINE_TOKEN"), "{ended}");
    assert_eq!(read(&site.workspace().join("lockgate.toml")), before);
}

#[test]
fn what_every_run_refuses_is_not_approved() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let home = site.folder("config");
    fs::create_dir(home.join("lockgate")).expect("room");
    let own = "[[provider]]\nid = \"corp-api\"\nauthorized_uris = [\"https://api.corp.example/*\"]\n";
    fs::write(home.join("lockgate/config.toml"), own).expect("room");
    fs::set_permissions(home.join("lockgate"), fs::Permissions::from_mode(0o755)).expect("ours");
    let project = "[[proxy]]\nid = \"p\"\nurl = \"http://proxy.example:3128\"\ncredential = \"corp-api\"\n";
    fs::write(site.workspace().join("lockgate.toml"), project).expect("room");
    let home = home.display();
    let ended = site.shell().run(&format!("export XDG_CONFIG_HOME='{home}'\nlockgate policy approve"));
    assert!(ended.code == 2 && ended.stderr.contains("proxy[0].credential"), "{ended}");
}

#[test]
fn what_cannot_be_changed_now_is_told_with_what_to_do() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let script = r#"lockgate run -- sh -c 'touch begun; until [ -e end ]; do sleep 0.02; done' & run=$!
        await '[ -e begun ]'
        lockgate policy allow www.example.org; echo held=$?; touch end; wait $run; echo run=$?"#;
    let ended = site.shell().run(script);
    assert!(ended.stdout.contains("held=2\nrun=0"), "{ended}");
    assert!(
        ended.stderr.contains("goes on here and holds the place of lockgate.toml until it ends"),
        "{ended}"
    );
    assert!(ended.stderr.contains("lockgate runs stop "), "{ended}");
    assert!(!site.workspace().join("lockgate.toml").exists(), "{ended}");
    // A file that no run could read is not approved either.
    fs::write(site.workspace().join("lockgate.toml"), "\u{1b}[2J = 1\n").expect("room");
    let ended = site.lockgate(&["policy", "approve"]);
    assert!(ended.code == 2 && !ended.stderr.contains('\u{1b}'), "{ended}");
}

#[test]
fn what_is_recommended_says_to_a_shell_no_more_than_what_was_asked_for() {
    // The agent's request is part of the line that the person may paste.
    let Some(site) = Site::for_test(NEEDS) else { return };
    let ended = site.shell().run(r#"printf '[[egress.allow]]\nurl = "http://www.example.org/v1/*"\n' > policy.toml
        lockgate run --policy policy.toml -- curl -sSg -o /dev/null 'http://www.example.org/v2;touch$IFS./pasted;$(touch$IFS./pasted)' 2>said
        sed -n 's/^ *to allow it: //p' said > line; cat line; . ./line; [ -e pasted ] && echo PASTED
        lockgate run --policy policy.toml -- curl -sSg -o /dev/null -w '%{http_code}\n' 'http://www.example.org/v2;touch$IFS./pasted;$(touch$IFS./pasted)'
        lockgate run --policy policy.toml -- curl -sSg -o /dev/null 'http://www.example.org/v3/*' 2>&1 | grep 'for more in a rule'"#,
    );
    assert!(ended.stdout.contains("/v2;touch$IFS./pasted") && !ended.stdout.contains("PASTED"), "{ended}");
    assert!(ended.stdout.contains("\n404\n") || ended.stdout.contains("\n200\n"), "{ended}");
    // No rule could allow it, and none is proposed.
    assert!(
        ended.stdout.ends_with("\n  `*` stands for more in a rule: none can name this path alone\n"),
        "{ended}"
    );
}

#[test]
fn a_path_that_no_rule_can_name_has_no_recommendation_and_one_with_a_slash_in_it_has() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let ended = site.shell().run(r#"printf '[[egress.allow]]\nurl = "http://www.example.org/v1/*"\n' > policy.toml
        for path in 'v1/../x' 'v1/%252e%252e/x' 'v1/a%5Cb' 'v1/a%2Fb'; do
            lockgate policy check --policy policy.toml "http://www.example.org/$path" | sed -n 's/^ *to allow it: //p; /^ *no rule can name/p' >> lines; done
        cat lines; sed -n '$p' lines > last; . ./last
        lockgate policy check --policy policy.toml 'http://www.example.org/v1/a%2Fb'"#,
    );
    assert_eq!(ended.stdout.matches("no rule can name this path").count(), 3, "{ended}");
    assert!(
        ended.stdout.contains("lockgate policy allow --policy policy.toml http://www.example.org/v1/a%2Fb"),
        "{ended}"
    );
    assert!(
        ended.code == 0 && ended.stdout.lines().last().is_some_and(|it| it.starts_with("allow ")),
        "{ended}"
    );
}

#[test]
fn of_rules_that_are_added_at_once_all_are_there_and_approved() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let ended = site.shell().run(r#"for i in $(seq 12); do lockgate policy allow h$i.example & done; wait
        grep -c '^host = "h' lockgate.toml; lockgate policy deny x.example; lockgate policy deny x.example --reason 'use the mirror'
        lockgate run -- sh -c 'curl -s http://x.example/' | grep -o 'use the mirror' | head -n 1"#,
    );
    assert_eq!(ended.stdout, "12\nuse the mirror\n", "{ended}");
}

#[test]
fn a_rule_joins_others_in_brackets() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let ended = site.shell().run(r#"printf '# mine\n[egress]\nallow = [\n  { host = "a.example.com" }, # why\n]\n' > lockgate.toml; lockgate policy approve
        lockgate policy allow b.example.com:22 a.example.com; cat lockgate.toml; lockgate policy ls
        for first in 'egress = { default = "deny" }' 'egress = { allow = [{ host = "x.example.com" }] }'; do
            echo "$first" > lockgate.toml; lockgate policy approve
            lockgate policy allow c.example.com; lockgate policy deny c.example.com:80; lockgate policy ls | sed 's/^/inline: /'
        done"#,
    );
    let inline = |part: &str| {
        ended.stdout.lines().filter(|line| line.starts_with("inline: ") && line.contains(part)).count()
    };
    assert_eq!((inline("allow     c.example.com"), inline("deny      c.example.com:80")), (2, 2), "{ended}");
    assert_eq!(
        (inline("x.example.com"), ended.stderr.matches("what is denied stays so").count()),
        (1, 0),
        "{ended}"
    );
    assert!(ended.stderr.contains("allow a.example.com is there already"), "{ended}");
    let (file, rules) = ended.stdout.split_once("allow  ").expect("rules");
    assert!(
        file.starts_with("# mine\n")
            && file.contains("{ host = \"a.example.com\" }, # why\n  { host = \"b.example.com\""),
        "{ended}"
    );
    assert!(rules.contains("b.example.com:22"), "{ended}");
}

#[test]
fn what_is_told_of_a_rule_is_what_becomes_of_it() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let ended = site.shell().run("lockgate policy allow www.example.org");
    assert!(ended.stderr.contains("allow www.example.org, for runs that begin from now on"), "{ended}");
    // Another file, which contains the rule already.
    let other = "[egress]\nallow = [{ host = \"www.example.org\" }, { host = \"a.example.org\" }]\n";
    fs::write(site.workspace().join("lockgate.toml"), other).expect("a file");
    let ended = site.shell().run("lockgate policy allow www.example.org");
    for words in ["is there already", "holds more than you have approved"] {
        assert!(ended.code == 0 && ended.stderr.contains(words), "{words}: {ended}");
    }
    let ended = site.shell().run("lockgate doctor");
    let line = ended.stdout.lines().find(|line| line.contains("policy approve")).unwrap_or_default();
    assert_eq!(line.matches("--no-project").count(), 1, "{ended}");
}

#[test]
fn only_what_would_allow_it_is_told_to() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let metadata = "lockgate run -- curl -s http://169.254.169.254/; lockgate policy check http://169.254.169.254/; \
        lockgate policy explain http://169.254.169.254/";
    let ended = site.shell().run(metadata);
    for told in [&ended.stdout, &ended.stderr] {
        assert!(
            told.contains("no rule can open 169.254.169.254") && !told.contains("to allow it"),
            "{ended}"
        );
    }
    let ended = site.shell().run("lockgate run -- curl -s http://github.com/; lockgate policy check github.com; lockgate policy explain github.com",
    );
    for told in [&ended.stdout, &ended.stderr] {
        let lines = [": lockgate policy allow github.com:", "or the group it belongs to: --preset github"];
        assert!(lines.iter().all(|line| told.contains(line)), "{ended}");
    }
    let ended = site.shell().run("lockgate policy check --json github.com");
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one object");
    assert!(ended.code == 1 && told["verdict"] == "deny" && told["guard"] == "host_not_allowed", "{ended}");
    assert_eq!(told["hint"], "lockgate policy allow github.com:443", "{ended}");
}

#[test]
fn loopback_of_this_machine_is_told_how_it_is_reached() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let ended = site.shell().run("lockgate policy explain --allow 127.0.0.1:38111 http://127.0.0.1:38111/");
    let redirected = ended.stdout.lines().find(|line| line.contains("redirected")).unwrap_or_default();
    assert!(redirected.contains("loopback inside is the sandbox's own"), "{ended}");
    let ended = site.shell().run("lockgate run --allow 127.0.0.1:38111 -- true");
    assert!(ended.stderr.contains("ports = [38111], addresses = [\"127.0.0.1\"]"), "{ended}");
}

#[test]
fn what_is_denied_elsewhere_is_not_told_as_allowed() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let home = site.folder("config");
    fs::create_dir(home.join("lockgate")).expect("room");
    let own = "[[egress.deny]]\nhost = \"files.example.com\"\nreason = \"not from here\"\n";
    fs::write(home.join("lockgate/config.toml"), own).expect("room");
    fs::set_permissions(home.join("lockgate"), fs::Permissions::from_mode(0o755)).expect("ours");
    let file = site.workspace().join("lockgate.toml");
    fs::write(&file, "# Of this project.\n").expect("room");
    let home = home.display();
    let say =
        |words: &str| site.shell().run(&format!("export XDG_CONFIG_HOME='{home}'\nlockgate policy {words}"));
    let ended = say("deny '**.example.org'");
    assert!(
        ended.code == 0 && read(&file).starts_with("# Of this project.\n\n[[egress.deny]]\n"),
        "{}",
        read(&file)
    );
    for (target, note) in [
        ("www.example.org", "note: www.example.org stays denied by egress.deny[0] in lockgate.toml: "),
        (
            "https://www.example.org/v1/*",
            "note: https://www.example.org/v1/* stays denied by egress.deny[0] in ",
        ),
        ("files.example.com", ": not from here; take that rule out"),
    ] {
        let ended = say(&format!("allow '{target}'"));
        assert!(ended.code == 0 && ended.stderr.contains(note), "{target}: {ended}");
    }
    let ended = say("allow api.example.com");
    assert!(ended.code == 0 && !ended.stderr.contains("note:"), "{ended}");
}

#[test]
fn a_tunnel_is_explained_as_it_is_checked() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let rule = "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\nmethods = [\"GET\"]\n";
    let policy = site.file("tunnel.toml", rule).display().to_string();
    for (target, code) in [("api.example.com:443", 0), ("api.example.com:8443", 1), ("api.example.com", 1)] {
        for word in ["check", "explain"] {
            let ended = site.lockgate(&["policy", word, "--policy", &policy, "--method", "CONNECT", target]);
            assert_eq!(ended.code, code, "{word} {target}: {ended}");
            assert!(!ended.stdout.contains("redirected") && !ended.stdout.contains("methods of"), "{ended}");
        }
    }
}

#[test]
fn what_is_shown_of_the_configuration_is_a_policy() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    let ended = site.shell().run(
        r#"export SYSTEM_PROXIES='[{"id": "corp", "url": "http://bob:word@proxy.example:3128"}]'
        lockgate config show > shown.toml && cat shown.toml && lockgate policy ls --policy shown.toml"#,
    );
    assert!(ended.code == 0 && ended.stdout.contains("http://proxy.example:3128"), "{ended}");
    let ended = site.shell().run("lockgate config show --preset github --allow a.example.org > shown.toml && lockgate policy ls --policy shown.toml",
    );
    assert!(
        ended.code == 0
            && ended.stdout.contains("a.example.org:80,443")
            && ended.stdout.contains("preset github"),
        "{ended}"
    );
}

#[test]
fn an_approval_is_asked_for_the_folder_and_given_in_a_word() {
    let Some(site) = Site::for_test(&[Need::Program("python3")]) else { return };
    let script = r#"printf '[egress]\nallow = [{ host = "a.example.org" }]\n' > lockgate.toml
        cat > ask.py <<'END'
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0: os.execv(os.environ["PRODUCT"], ["lockgate", "policy", "approve"])
said = b""
while b"[y/N]" not in said: said += os.read(terminal, 4096)
os.write(terminal, sys.argv[1].encode() + b"\n")
try:
    while more := os.read(terminal, 4096): said += more
except OSError: pass
print(said.decode().replace("\r", ""), "code=%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
        python3 ask.py no; python3 ask.py yes"#;
    let ended = site.shell().run(script);
    let folder = site.workspace();
    let asked =
        format!("Approve this file for runs in {}? [y/N]", folder.canonicalize().unwrap_or(folder).display());
    assert_eq!(ended.stdout.matches(&asked).count(), 2, "{ended}");
    let codes: Vec<_> = ended.stdout.lines().filter(|line| line.contains("code=")).map(str::trim).collect();
    assert_eq!(codes, ["code=1", "code=0"], "{ended}");
}
