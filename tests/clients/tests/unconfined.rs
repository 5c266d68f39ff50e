//! A credential is hidden without isolation as well: the command's own programs trust the run's authority, and their requests carry it
//! where it is bound. Each run says that there is no isolation. S0.9, S0.11, S0.13, S0.35, S1.42, S1.43.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockgate_clients::{Canary, Need, Run, Site, bearer_provider, run_to_end};

const NEEDS: &[Need] = &[Need::Program("curl"), Need::Program("python3")];
const LIMIT: Duration = Duration::from_secs(20);

fn policy() -> String {
    format!("backend = \"process\"\n{}", bearer_provider("https://protocols.example/*"))
}

fn site_of(site: &Site, canary: &Canary) {
    site.keep("one", "access_token", canary.text());
}

/// Returns the files with runs' authorities that are left.
fn left(site: &Site) -> Vec<String> {
    let Ok(listed) = fs::read_dir(site.state().join("lockgate/trusted")) else { return Vec::new() };
    listed.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn programs_trust_the_authority_and_the_credential_is_put_in() {
    // S0.4, S1.41
    for site in Site::for_everyone(NEEDS) {
        let canary = Canary::draw();
        site_of(&site, &canary);
        let ended = site.run().policy(&policy()).script(
            r#"curl -sS -m 20 -o /dev/null -w 'curl=%{http_code}\n' -H "Authorization: Bearer $ONE_TOKEN" https://protocols.example/a
            python3 -c 'import ssl, urllib.request as u; print("python=%s" % u.urlopen("https://protocols.example/b").status)'
            curl -sS -m 20 -o /dev/null --cacert "$NODE_EXTRA_CA_CERTS" -w 'alone=%{http_code}\n' https://protocols.example/c
            stat -c 'mode=%a' "${SSL_CERT_FILE%/*}"; env"#,
        );
        for said in ["curl=200", "python=200", "alone=200", "mode=700"] {
            assert!(ended.stdout.lines().any(|line| line == said), "{said}: {ended}");
        }
        canary.is_not_in("what the command wrote", format!("{ended}"));
        let bearer = format!("Bearer {}", canary.text());
        let sent: Vec<_> =
            site.requests().iter().map(|it| it.header("authorization").map(str::to_owned)).collect();
        assert_eq!(sent, vec![Some(bearer); 3]);
        assert_eq!(left(&site), Vec::<String>::new());
    }
}

#[test]
fn the_files_of_a_killed_run_go_at_the_next_start() {
    let Some(site) = Site::for_test(NEEDS) else { return };
    site_of(&site, &Canary::draw());
    let run = site.run().policy(&policy());
    let mut killed = begun(&run, &site);
    killed.kill().expect("a process of this test's");
    assert_eq!(killed.wait().expect("it was killed").signal(), Some(9));
    assert_eq!(left(&site).len(), 1);
    assert!(run.script("true").code == 0);
    let deadline = Instant::now() + LIMIT;
    while !left(&site).is_empty() {
        assert!(Instant::now() < deadline, "{:?}", left(&site));
        assert!(run.script("true").code == 0);
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_command_that_stops_its_supervisor_ends_all_the_same() {
    for site in Site::for_everyone(&[]) {
        let script = r#"
            "$PRODUCT" run --backend process --timeout 1s -- sh -c 'kill -STOP $PPID; exec sleep 300.25'; echo "once=$?"
            "$PRODUCT" run --backend process --timeout 1s -- sh -c 'while :; do kill -STOP $PPID || exit; done'; echo "always=$?"
            pgrep -xf 'sleep 300.25' || echo gone"#;
        let ended = site.shell().within(Duration::from_secs(90)).run(script);
        assert_eq!(ended.stdout, "once=124\nalways=124\ngone\n", "{ended}");
    }
}

#[test]
fn a_deep_chain_of_processes_ends_with_its_command() {
    for site in Site::for_everyone(&[Need::Program("python3")]) {
        let chain = site.file(
            "chain.py",
            "import os, time\nfor _ in range(300):\n  if os.fork(): time.sleep(300.5); os._exit(0)\n\
             open('deep', 'w').close(); time.sleep(300.5)\n",
        );
        let script = format!(
            r#""$PRODUCT" run --backend process -- sh -c 'setsid python3 {0} & until [ -e deep ]; do sleep 0.05; done'; echo "code=$?"
            pgrep -xf "python3 {0}" | wc -l"#,
            chain.display()
        );
        let ended = site.shell().within(Duration::from_secs(60)).run(&script);
        assert_eq!(ended.stdout, "code=0\n0\n", "{ended}");
    }
}

#[test]
fn each_run_says_that_nothing_keeps_it_apart() {
    // S1.42, S1.43, S2.2
    let Some(site) = Site::for_test(&[]) else { return };
    let told = |flags: &[&str], variable: (&str, &str)| {
        let run = site.run().flags(flags);
        let mut command = run.command(&["/bin/sh", "-c", "echo ran"]);
        command.envs([variable]);
        let ended = run_to_end(&mut command, LIMIT);
        // The command's output is its own.
        assert!(ended.code == 0 && ended.stdout == "ran\n", "{flags:?} {variable:?}: {ended}");
        let lines = ended.stderr.lines().filter(|line| line.contains("backend `process`: no isolation"));
        (lines.count(), ended.stderr.lines().last().is_some_and(|line| line.starts_with('{')))
    };
    let nothing = ("LOCKGATE_SANDBOX", "");
    let asked: [(&[&str], (&str, &str)); 4] = [
        (&["--backend", "process"], nothing),
        (&["--backend", "process", "--json"], nothing),
        (&[], ("RUN_ADAPTER", "process")),
        (&["--json"], ("LOCKGATE_SANDBOX", "none")),
    ];
    // Not only the first time.
    for (flags, variable) in asked.into_iter().chain(asked) {
        assert_eq!(told(flags, variable), (1, flags.contains(&"--json")), "{flags:?} {variable:?}");
        let record = site.lockgate(&["runs", "show", "latest", "--json"]);
        record.says("no isolation");
    }
    // The control.
    assert_eq!(told(&["--json"], nothing), (0, true));
    let record = site.lockgate(&["runs", "show", "latest", "--json"]);
    assert!(!record.stdout.contains("no isolation"), "{record}");
}

/// Starts a run, and waits until its command has begun.
fn begun(run: &Run<'_>, site: &Site) -> Child {
    let mark = site.workspace().join("begun");
    let mut command: Command = run.command(&["/bin/sh", "-c", "touch begun; exec sleep 30"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = child.expect("the product starts");
    await_file(&mark);
    child
}

fn await_file(path: &Path) {
    let deadline = Instant::now() + LIMIT;
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} did not come", path.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}
