//! Web search must be enabled by name: a run without it reaches no search provider and has nothing of its key, whatever is in the vault or
//! the caller's environment or otherwise open. S4.42, S4.43, S4.44, S4.63.

use std::time::Duration;

use lockgate_clients::{Canary, Ended, Need, Site, run_to_end};
use serde_json::json;

/// The provider, its variable, its host, and the header of its key.
const SEARCHES: [(&str, &str, &str, &str); 3] = [
    ("tavily", "TAVILY_API_KEY", "api.tavily.com", "authorization"),
    ("exa", "EXA_API_KEY", "api.exa.ai", "x-api-key"),
    ("brave", "BRAVE_SEARCH_API_KEY", "api.search.brave.com", "x-subscription-token"),
];
/// Other names by which their services can be asked.
const OTHERS: [&str; 4] = ["mcp.tavily.com", "mcp.exa.ai", "exa.ai", "search.brave.com"];
/// The usual provider and tools of an agent.
const USUAL: [&str; 8] = [
    "--preset",
    "github",
    "--preset",
    "llm-providers",
    "--preset",
    "package-registries",
    "--allow",
    "www.example.org",
];

/// Prints each variable, and sends a request to each provider by the proxy and by the gateway, with the variable's value.
fn attempts() -> String {
    let mut script =
        r#"code() { key=$1; shift; echo "$key=$(curl -s -o /dev/null -m 20 -w '%{http_code}' "$@")"; }
env | grep _API_KEY= || true
"#
        .to_owned();
    for (provider, variable, host, header) in SEARCHES {
        script += &format!(
            "code {provider} -H \"{header}: ${{{variable}:-none}}\" https://{host}/search\n\
             code {provider}-gate -H 'X-Provider: {provider}' -H 'X-Target: https://{host}/search' \"$SIDECAR_URL/proxy\"\n"
        );
    }
    for host in OTHERS {
        script += &format!("code {host} https://{host}/mcp\n");
    }
    script + "code other https://www.example.org/\n"
}

/// Returns a site that serves each of them and stores its key, and the keys.
fn site() -> Option<(Site, Vec<Canary>)> {
    let site = Site::for_test(&[Need::Program("curl")])?;
    let web = SEARCHES.map(|(_, _, host, _)| host).into_iter().chain(OTHERS);
    let web = web.map(|host| (host.to_owned(), json!(["93.184.216.34"])));
    site.world().resolve(&serde_json::Map::from_iter(web).into()).expect("room for a table");
    let keys = SEARCHES.map(|(provider, ..)| {
        let key = Canary::draw();
        site.keep(provider, "access_token", key.text());
        key
    });
    Some((site, keys.into()))
}

fn run(site: &Site, keys: &[Canary], flags: &[&str]) -> Ended {
    let run = site.run().flags(USUAL).flags(flags);
    let mut command = run.command(&["/bin/sh", "-uc", &attempts()]);
    for ((_, variable, ..), key) in SEARCHES.iter().zip(keys) {
        command.env(variable, key.text());
    }
    run_to_end(&mut command, Duration::from_secs(60))
}

#[test]
fn a_run_that_does_not_ask_reaches_none_and_holds_no_key() {
    let Some((site, keys)) = site() else { return };
    let ended = run(&site, &keys, &[]);
    ended.says("other=200");
    for (provider, variable, host, _) in SEARCHES {
        for said in [format!("{provider}=000"), format!("{provider}-gate=403")] {
            assert!(ended.stdout.lines().any(|line| line == said), "{said}: {ended}");
        }
        assert!(!ended.stdout.contains(variable), "{variable} is inside: {ended}");
        let seen: Vec<_> = site.visits().into_iter().filter(|it| it.text("host") == host).collect();
        assert!(seen.is_empty(), "{seen:?}");
    }
    for key in &keys {
        key.is_not_in("what was said", format!("{ended}"));
    }
    // Nor was their address looked up.
    let names = site.world().records_of("resolver");
    assert!(names.iter().all(|it| it.text("name").starts_with("www.example.org")), "{names:?}");
}

#[test]
fn where_every_host_is_open_none_is_reached_that_was_not_asked_for() {
    let Some((site, keys)) = site() else { return };
    let ended = run(&site, &keys, &["--preset", "open-internet"]);
    ended.says("other=200");
    for (provider, _, host, _) in SEARCHES {
        assert!(ended.stdout.lines().any(|line| line == format!("{provider}=000")), "{provider}: {ended}");
        assert!(!site.visits().iter().any(|it| it.text("host") == host), "{host} was reached: {ended}");
    }
    let hint = "lockgate run --provider tavily";
    assert!(ended.stderr.contains(hint), "{hint}: {ended}");
    let are_closed = |ended: &Ended| {
        for host in OTHERS {
            assert!(ended.stdout.lines().any(|line| line == format!("{host}=000")), "{host}: {ended}");
        }
    };
    are_closed(&ended);
    let forbids = site.file("none.toml", "web_search = false\negress.default = \"open-internet\"\n");
    let forbids = forbids.to_string_lossy();
    let flags = OTHERS.iter().flat_map(|host| ["--allow", host]);
    let forbidding = ["--policy", &forbids].into_iter().chain(flags).collect::<Vec<_>>();
    are_closed(&run(&site, &keys, &forbidding));
    // The control: a rule for one of them opens it, where nothing forbids that.
    let ended = run(&site, &keys, &["--preset", "open-internet", "--allow", "mcp.exa.ai"]);
    assert!(ended.stdout.lines().any(|line| line == "mcp.exa.ai=200"), "{ended}");
    // The control: with the provider named, the host can be reached.
    let ended = run(&site, &keys, &["--preset", "open-internet", "--provider", "tavily"]);
    for said in ["tavily=200", "exa=000"] {
        assert!(ended.stdout.lines().any(|line| line == said), "{said}: {ended}");
    }
}

#[test]
fn who_forbids_it_is_not_passed_by() {
    let Some((site, keys)) = site() else { return };
    let forbids = site.file("none.toml", "web_search = false\nproviders = [\"tavily\"]\n");
    let ended = run(&site, &keys, &["--policy", &forbids.to_string_lossy()]);
    assert!(ended.code == 2 && ended.stderr.contains("`tavily` searches the web"), "{ended}");
}

#[test]
fn one_that_is_asked_for_opens_no_other() {
    // The control: the run reaches the provider it names, with its key, by the placeholder alone.
    let Some((site, keys)) = site() else { return };
    for ((provider, variable, host, header), key) in SEARCHES.into_iter().zip(&keys) {
        let ended = run(&site, &keys, &["--provider", provider]);
        for (other, ..) in SEARCHES {
            let statuses = if other == provider { ("200", "200") } else { ("000", "403") };
            let said = format!("{other}={}\n{other}-gate={}\n", statuses.0, statuses.1);
            assert!(ended.stdout.contains(&said), "{said}: {ended}");
        }
        let variables: Vec<&str> = ended.stdout.lines().filter(|line| line.contains("_API_KEY=")).collect();
        assert!(
            variables.len() == 1 && variables[0].starts_with(&format!("{variable}=lgph_")),
            "{variables:?}: {ended}"
        );
        let sent: Vec<String> = site
            .requests()
            .iter()
            .filter(|it| it.text("host") == host)
            .map(|it| it.header(header).unwrap_or_default().trim_start_matches("Bearer ").to_owned())
            .collect();
        assert_eq!(sent.first().map(String::as_str), Some(key.text()), "{provider}: {sent:?}");
        key.is_not_in("what was said", format!("{ended}"));
    }
}

#[test]
fn a_run_that_asks_for_any_has_the_first_that_has_a_key() {
    let Some(site) = Site::for_test(&[Need::Program("curl")]) else { return };
    let web = SEARCHES.map(|(_, _, host, _)| (host.to_owned(), json!(["93.184.216.34"])));
    site.world().resolve(&serde_json::Map::from_iter(web).into()).expect("room for a table");
    let none = run(&site, &[], &["--web-search"]);
    assert!(none.code == 2, "{none}");
    for words in ["tavily", "creds set tavily", "exa, brave"] {
        assert!(none.stderr.contains(words), "{words}: {none}");
    }
    // In reverse order: each provider stored in addition takes precedence.
    for (provider, variable, host, header) in SEARCHES.into_iter().rev() {
        let key = Canary::draw();
        site.keep(provider, "access_token", key.text());
        let ended = run(&site, &[], &["--web-search"]);
        for (other, ..) in SEARCHES {
            let status = if other == provider { "200" } else { "000" };
            assert!(ended.stdout.lines().any(|line| line == format!("{other}={status}")), "{other}: {ended}");
        }
        let variables: Vec<&str> = ended.stdout.lines().filter(|line| line.contains("_API_KEY=")).collect();
        assert!(
            variables.len() == 1 && variables[0].starts_with(&format!("{variable}=lgph_")),
            "{variables:?}: {ended}"
        );
        let sent = site.requests().into_iter().rfind(|it| it.text("host") == host);
        let sent = sent.as_ref().and_then(|it| it.header(header)).unwrap_or_default();
        assert_eq!(sent.trim_start_matches("Bearer "), key.text(), "{provider}: {ended}");
        key.is_not_in("what was said", format!("{ended}"));
    }
}
