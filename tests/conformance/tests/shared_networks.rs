//! Promise: the networks that all runs at an engine share are made once, whoever begins at once and whatever has their addresses,
//! another engine of the machine included.
//! S0.18, S0.43.

use std::time::Duration;

use lockgate_conformance::{Backend, Bench, Needs, World, ask_engine, promised, ready, within};
use serde_json::{Value, json};

const EGRESS: &str = "lockgate-egress";
const POOL: &str = "lockgate-sidecar-pool";

/// Runs at one engine, at the other, and at the first again, whose network is older than the other's.
const BY_TURNS: &str = r#""$@" && DOCKER_HOST=$OTHER_HOST "$@" && "$@""#;

#[test]
fn docker_and_podman_of_one_machine_have_a_network_each() {
    let both = [Needs::RootsEngine, Needs::World, Needs::Program("dockerd"), Needs::Program("podman")];
    if !promised("shared_networks") || !ready(&both) {
        return;
    }
    let bench = Bench::new();
    let world = World::new(&bench);
    let run = bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", "0").allow("api.example.com");
    let run = run.behind(["sh", "-c", BY_TURNS, "sh"]).beside_other_engine().within(&world);
    let ended = run.command(["curl", "-sS", "--fail", "http://api.example.com/turn"]);
    assert!(ended.code == 0 && ended.stdout.matches("/turn").count() == 3, "{ended}");
}

/// Returns the subnets of the engine's networks of a name.
fn subnets(name: &str) -> Vec<String> {
    let (status, all) = ask_engine("GET", "/networks", &Value::Null);
    assert!(status == 200, "{all}");
    let named = all.as_array().into_iter().flatten().filter(|it| it["Name"] == name);
    named.map(|it| it["IPAM"]["Config"][0]["Subnet"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn one_network_is_made_where_another_has_the_addresses() {
    if !promised("shared_networks") || !ready(&[Needs::RootsEngine]) {
        return;
    }
    let bench = Bench::new();
    let best = match Backend::isolated() {
        Backend::Podman => ["198.19.253.0/24", "198.19.252.0/24"],
        _ => ["198.19.255.0/24", "198.19.254.0/24"],
    };
    for (number, subnet) in best.iter().enumerate() {
        let theirs =
            json!({ "Name": format!("theirs-{number}"), "IPAM": { "Config": [{ "Subnet": subnet }] } });
        let (status, said) = ask_engine("POST", "/networks/create", &theirs);
        assert!(status == 201, "{said}");
    }
    let run = bench.run(Backend::isolated()).caller("SIDECAR_POOL_SIZE", "1");
    let all = [(); 3].map(|()| run.start(["true"]));
    for live in all {
        let ended = live.wait();
        assert!(ended.code == 0, "{ended}");
    }
    assert!(within(Backend::patience(5), || !subnets(POOL).is_empty()), "the pool has no network");
    // For another that would come later.
    std::thread::sleep(Duration::from_secs(1));
    for (name, taken) in [EGRESS, POOL].into_iter().zip(best) {
        let made = subnets(name);
        assert!(made.len() == 1 && made[0] != taken && made[0].starts_with("198.19."), "{name}: {made:?}");
    }
}
