//! An agent's use of a forge's credential: git over https, GitHub's own client, curl. It names a placeholder or nothing at all, and the
//! forge receives the credential in the required form. C08, C14.

use lockgate_clients::{Canary, Ended, Held, Need, Run, Site};

/// A self-hosted forge.
const FORGE: &str = "[[provider]]\nid = \"forge\"\nauthorized_uris = [\"https://git.example.org/*\"]\nenv = \"FORGE_TOKEN\"\n\
                     inject = { basic = \"x-access-token:{{access_token}}\" }\n";
const COMMIT: &str = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m";

/// Clones, commits and pushes. `git` is the command line of git.
fn round(run: &Run<'_>, git: &str, url: &str, folder: &str) -> Ended {
    run.script(&format!(
        "{git} clone -q {url} {folder}; cat {folder}/README; cd {folder}; {COMMIT} {folder}\n\
         {git} push -q origin HEAD:refs/heads/{folder}; {git} fetch -q origin; git rev-parse --abbrev-ref origin/{folder}"
    ))
}

/// Checks that it succeeded, that every request to the host brought the credential, and that a push was among them.
fn went(site: &Site, held: &Held<'_>, ended: &Ended, host: &str, folder: &str) {
    ended.says("hello from the world");
    ended.says(&format!("origin/{folder}"));
    let requests = site.requests();
    let brought = held.brought(host, "authorization", &held.basic("x-access-token"));
    assert_eq!(brought, requests.len(), "{requests:?}");
    assert!(
        requests.iter().any(|request| request.text("path") == "/repo.git/git-receive-pack"),
        "{requests:?}"
    );
    held.is_nowhere(ended);
}

#[test]
fn git_without_a_credential_of_its_own() {
    for site in Site::for_everyone(&[Need::Program("git")]) {
        let held = Held::by(&site, "forge");
        let run = site.run().policy(FORGE).bare();
        let ended = round(&run, "git", "https://git.example.org/repo.git", "bare");
        went(&site, &held, &ended, "git.example.org", "bare");
    }
}

#[test]
fn git_by_the_proxy() {
    let Some(site) = Site::for_test(&[Need::Program("git")]) else { return };
    let held = Held::by(&site, "forge");
    let ended = round(&site.run().policy(FORGE), "git", "https://git.example.org/repo.git", "by-proxy");
    went(&site, &held, &ended, "git.example.org", "by-proxy");
}

#[test]
fn git_with_the_placeholder() {
    // In the address, where it stays in the clone's configuration and git sends it only on request, and in a header, as automation does.
    let Some(site) = Site::for_test(&[Need::Program("git"), Need::Program("base64")]) else { return };
    let held = Held::by(&site, "forge");
    let run = site.run().policy(FORGE).bare();
    let url = "\"https://x-access-token:$FORGE_TOKEN@git.example.org/repo.git\"";
    let ended = round(&run, "git", url, "in-the-address");
    went(&site, &held, &ended, "git.example.org", "in-the-address");
    let git = "git -c http.extraHeader=\"Authorization: Basic $(printf 'x-access-token:%s' \"$FORGE_TOKEN\" | base64 -w0)\"";
    let ended = round(&run, git, "https://git.example.org/repo.git", "in-a-header");
    went(&site, &held, &ended, "git.example.org", "in-a-header");
}

#[test]
fn git_at_github() {
    let Some(site) = Site::for_test(&[Need::Program("git")]) else { return };
    let held = Held::by(&site, "github");
    let run = site.run().flags(["--provider", "github"]).bare();
    let ended = round(&run, "git", "https://github.com/repo.git", "github");
    went(&site, &held, &ended, "github.com", "github");
}

#[test]
fn gh_asks_who_it_is() {
    for site in Site::for_everyone(&[Need::Program("gh")]) {
        let held = Held::by(&site, "github");
        let ended = site
            .run()
            .flags(["--provider", "github"])
            .bare()
            .script("env > environment; case $GH_TOKEN in lgph_*) ;; *) exit 9 ;; esac; gh api user");
        ended.says("\"path\":\"/user\"");
        let token = format!("token {}", held.text());
        assert_eq!(held.brought("api.github.com", "authorization", &token), 1, "{:?}", site.requests());
        // The forge repeated what it received, and the answer is masked.
        assert!(ended.stdout.contains("token ****"), "{ended}");
        held.is_nowhere(&ended);
    }
}

#[test]
fn curl_with_and_without_the_placeholder() {
    for site in Site::for_everyone(&[Need::Program("curl")]) {
        let held = Held::for_model(&site, "openai", "api.openai.com");
        let run = site.run().flags(["--provider", "openai"]);
        let ask = "curl -sS --fail-with-body --max-time 20 https://api.openai.com/v1/models";
        let ways = [String::new(), " -H \"Authorization: Bearer $OPENAI_API_KEY\"".to_owned()];
        for run in [run.clone(), run.bare()] {
            for way in &ways {
                let ended = run.script(&format!("{ask}{way} | tee answer"));
                ended.says("\"object\"");
                held.is_nowhere(&ended);
            }
        }
        let bearer = format!("Bearer {}", held.text());
        assert_eq!(held.brought("api.openai.com", "authorization", &bearer), 4, "{:?}", site.requests());
    }
}

#[test]
fn a_credential_of_the_agents_own_goes_nowhere() {
    // It could belong to another account, a way to leak a file; the forge never receives it.
    let Some(site) = Site::for_test(&[Need::Program("git"), Need::Program("curl")]) else { return };
    let (_held, own) = (Held::by(&site, "forge"), Canary::draw());
    let run = site.run().policy(FORGE).bare();
    let git = format!(
        "git -c http.extraHeader=\"Authorization: Basic $(printf me:{} | base64 -w0)\" clone -q https://git.example.org/repo.git own",
        own.text()
    );
    let curl =
        format!("curl -sS --fail https://git.example.org/echo -H 'Authorization: Bearer {}'", own.text());
    for attempt in [git, curl] {
        let ended = run.fastest(&attempt);
        ended.fails_fast(&["403", "denied git.example.org"]);
    }
    assert!(site.requests().iter().all(|request| own.found_in(request.detail.to_string()).is_none()));
}
