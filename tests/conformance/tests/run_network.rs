//! Promise: at an engine, the network of a run is internal: the command and its sidecar stand on it and nobody else, no route leads
//! off it, and its one resolver is the sidecar.
//! S0.8, S0.12, S0.14, S0.19, S0.21, S1.4, S1.5, S1.7, S1.14.

use std::collections::{BTreeMap, BTreeSet};

use lockgate_conformance::{Backend, Bench, Live, Needs, Seen, ask_engine, containers_of, promised, ready};
use serde_json::{Value, json};

/// Starts a run that looks around and stays, and returns its id.
fn looking_around(bench: &Bench) -> (Live, String) {
    let run = bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", "0").allow("api.example.com");
    let probe = bench.probe();
    let probe = probe.display();
    // At the gateway of the network that Docker's engine records, and at some other addresses.
    let line = format!(
        "base=$(hostname -I); base=${{base%.*}}
        for last in 1 2 7 100 200 254; do '{probe}' tcp $base.$last 22 x & done; wait
        '{probe}' dns www.example.org A > reports; '{probe}' dns www.example.org A 127.0.0.11 >> reports
        '{probe}' dns api.example.com A >> reports; cat /proc/net/arp > neighbours
        begun; exec sleep 60"
    );
    run.begin(&line)
}

fn read(bench: &Bench, name: &str) -> String {
    std::fs::read_to_string(bench.workspace().join(name)).unwrap().trim().to_owned()
}

// S0.1
#[test]
fn it_leads_to_the_sidecar_and_nowhere_else() {
    if !promised("run_network") || !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let (live, id) = looking_around(&bench);
    let own = format!("lockgate-exec-{id}");

    // By the engine's description.
    let (status, network) = ask_engine("GET", &format!("/networks/{own}"), &Value::Null);
    assert!(status == 200 && network["Internal"] == true && network["EnableIPv6"] != true, "{network}");
    let containers = containers_of(&id);
    let on_each: BTreeMap<&str, BTreeSet<&str>> = containers
        .iter()
        .map(|it| {
            let networks = it["NetworkSettings"]["Networks"].as_object();
            let name = it["Name"].as_str().unwrap_or_default().trim_start_matches('/');
            (name, networks.into_iter().flatten().map(|(name, _)| name.as_str()).collect())
        })
        .collect();
    let (agent, sidecar) = (format!("lockgate-agent-{id}"), format!("lockgate-sidecar-{id}"));
    let expected = BTreeMap::from([
        (agent.as_str(), BTreeSet::from([own.as_str()])),
        (sidecar.as_str(), BTreeSet::from([own.as_str(), "lockgate-egress"])),
    ]);
    assert_eq!(on_each, expected);
    let gateway = |container: &Value, network: &str| {
        container["NetworkSettings"]["Networks"][network]["Gateway"].as_str().unwrap_or_default().to_owned()
    };
    let named = |name: &str| {
        containers.iter().find(|it| it["Name"].as_str().is_some_and(|it| it.ends_with(name))).unwrap()
    };
    assert!(!gateway(named(&sidecar), "lockgate-egress").is_empty(), "the control: that one leads outside");

    // By the view from inside.
    let own_place = &named(&sidecar)["NetworkSettings"]["Networks"][&own];
    let neighbours = read(&bench, "neighbours");
    // proc(5): an entry that answered has the flag 2.
    let answered = neighbours.lines().filter(|line| line.split_whitespace().nth(2) == Some("0x2"));
    let answered: BTreeSet<&str> = answered.filter_map(|line| line.split_whitespace().nth(3)).collect();
    assert_eq!(answered, BTreeSet::from([own_place["MacAddress"].as_str().unwrap()]), "{neighbours}");
    let (host, sidecars) = (&named(&agent)["HostConfig"], own_place["IPAddress"].as_str().unwrap());
    assert_eq!(host["Dns"], json!([sidecars]), "{host}");
    let names = host["ExtraHosts"].as_array().into_iter().flatten();
    let others = names.filter(|name| **name != format!("sidecar:{sidecars}"));
    assert_eq!(others.count(), 0, "{host}"); // S1.14

    live.signal("TERM");
    let ended = live.wait();
    assert_eq!(ended.code, 143, "{ended}");
    let reports = lockgate_conformance::Ended { stdout: read(&bench, "reports"), ..ended };
    let seen = Seen::all(&reports);
    assert_eq!(seen.len(), 3, "{reports}");
    for seen in &seen[..2] {
        assert!(!seen.done(), "it resolves: {seen}");
    }
    assert!(seen[2].done(), "the control: an allowed name resolves: {}", seen[2]);
}
