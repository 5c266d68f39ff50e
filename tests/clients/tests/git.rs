//! git over HTTPS and over SSH. Over SSH either side may speak first, the client knows no proxy, and the connection is recognized by its
//! port and name alone. S4.24, S4.67; E06.

use std::time::Duration;

use lockgate_clients::{Ended, Need, Run, Site};
use lockgate_needs::missing;

const COMMIT: &str = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m";

/// Copies the world's SSH key and known hosts into a run, as a person would.
fn with_ssh<'a>(site: &'a Site, run: Run<'a>) -> Run<'a> {
    let folder = site.world().ca_directory();
    let copy = |name: &str| format!("{}/{name}:/home/agent/.ssh/{name}", folder.display());
    let ssh = "GIT_SSH_COMMAND=ssh -F /dev/null -i /home/agent/.ssh/ssh_key -o StrictHostKeyChecking=yes \
               -o UserKnownHostsFile=/home/agent/.ssh/known_hosts -o BatchMode=yes -o ConnectTimeout=10";
    run.flags(["--copy", &copy("ssh_key"), "--copy", &copy("known_hosts"), "--env", ssh]).bare()
}

/// Whether the world has an SSH server; without one the test is skipped.
fn has_ssh(site: &Site, ended: &Ended) -> bool {
    let absent = site.world().records_of("ssh").iter().any(|record| record.event == "absent");
    if absent {
        missing(&format!("the world has no SSH server: {ended}"));
    }
    !absent
}

#[test]
fn clone_and_push_over_https() {
    for site in Site::for_everyone(&[Need::Program("git")]) {
        let run = site.run().allow("git.example.org");
        for (run, branch) in [(run.clone(), "by-proxy"), (run.bare(), "bare")] {
            let ended = run.script(&format!(
                "git clone -q https://git.example.org/repo.git {branch}; cat {branch}/README; cd {branch}; \
                 {COMMIT} {branch}; git push -q origin HEAD:refs/heads/{branch}; git fetch -q origin; git rev-parse --abbrev-ref origin/{branch}"
            ));
            ended.says("hello from the world");
            ended.says(&format!("origin/{branch}"));
        }
        let requests = site.world().records_of("web");
        let pushed =
            requests.iter().filter(|record| record.text("path") == "/repo.git/git-receive-pack").count();
        assert_eq!(pushed, 2, "{requests:?}");
    }
}

/// As programs do that have git in them, such as cargo. What holds names in a repository is no part of it to them.
#[test]
fn libgit2_opens_a_repository_inside_and_beside_a_run() {
    let Some(site) = Site::for_test(&[Need::Program("git"), Need::Venv]) else { return };
    let venv = std::env::var("LOCKGATE_TEST_VENV").expect("`Need::Venv` was asked for");
    let ended = site.shell().with("VENV", &venv).run(&format!(
        r#"git init -q -b main .; {COMMIT} one; git branch two
        echo 'import pygit2, sys; at = pygit2.Repository("."); print(sys.argv[1], at.head.shorthand, *sorted(at.branches.local))' > look.py
        "$PRODUCT" run --timeout 40s --mount "$VENV:$VENV:ro" -- sh -c "$VENV/bin/python look.py inside; touch done
            until [ -e seen ]; do sleep 0.1; done" &
        for _ in $(seq 300); do [ -e done ] && break; sleep 0.1; done
        "$VENV/bin/python" look.py beside; touch seen; wait $!"#
    ));
    assert_eq!((ended.code, &*ended.stdout), (0, "inside main main two\nbeside main main two\n"), "{ended}");
}

#[test]
fn clone_and_push_over_ssh() {
    for site in Site::for_everyone(&[Need::Program("git"), Need::Program("ssh")]) {
        let run = with_ssh(&site, site.run().allow("ssh.example.org:22"));
        let ended = run.script(&format!(
            "git clone -q ssh://git@ssh.example.org/repo.git a; cat a/README; cd a; {COMMIT} two; \
             git push -q origin HEAD:refs/heads/by-ssh; git fetch -q; git rev-parse --abbrev-ref origin/by-ssh"
        ));
        if !has_ssh(&site, &ended) {
            return;
        }
        ended.says("hello from the world");
        ended.says("origin/by-ssh");
        let sessions =
            site.world().records_of("ssh").into_iter().filter(|record| record.event == "connect").count();
        assert_eq!(sessions, 3, "{:?}", site.world().records_of("ssh"));
    }
}

#[test]
fn a_denied_host_fails_fast() {
    for site in Site::for_everyone(&[Need::Program("git"), Need::Program("ssh")]) {
        let run = site.run().allow("www.example.org");
        let clone = "GIT_TERMINAL_PROMPT=0 git clone https://git.example.org/repo.git denied";
        run.fastest(clone).fails_fast(&["403"]);
        run.clone().bare().fastest(clone).fails_fast(&["could not resolve host: git.example.org"]);
        let ssh = with_ssh(&site, run);
        let ended = ssh.fastest("git clone ssh://git@ssh.example.org/repo.git denied");
        ended.fails_fast(&["could not resolve hostname ssh.example.org"]);
        assert!(ended.stderr.contains("denied ssh.example.org"), "{ended}");
        assert!(site.visits().is_empty(), "{:?}", site.visits());
    }
}

#[test]
fn an_allowed_host_has_no_other_port() {
    // `--allow HOST` opens 80 and 443; the host's SSH server stays closed.
    let Some(site) = Site::for_test(&[Need::Program("git"), Need::Program("ssh")]) else { return };
    let ssh = with_ssh(&site, site.run().allow("ssh.example.org"));
    let ended = ssh.fastest("git clone ssh://git@ssh.example.org/repo.git denied");
    ended.fails_fast(&["connection closed", "connection reset", "connection refused"]);
    assert!(ended.stderr.contains("ssh.example.org:22"), "the person was not told of the port: {ended}");
    assert!(site.visits().is_empty(), "{:?}", site.visits());
}

#[test]
fn a_session_that_rests_is_kept() {
    let Some(site) = Site::for_test(&[Need::Program("ssh")]) else { return };
    let run = with_ssh(&site, site.run().allow("ssh.example.org:22"));
    let ended = run.script("(sleep 3; echo late) | $GIT_SSH_COMMAND git@ssh.example.org anything");
    if has_ssh(&site, &ended) {
        ended.says("hello from ssh.example.org");
        assert!(ended.took < Duration::from_secs(30), "{ended}");
    }
}
