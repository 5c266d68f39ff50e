//! Promise: every request has exactly one audit record, allowed or not, and the chain verifies; the run's own says what it was allowed.
//! DESIGN §3, §10; S0.58, S4.69; E20.

use std::fs;

use lockgate_conformance::{Attempt, Backend, Bench, Needs, World, promised, ready};
use serde_json::Value;

/// The records about `name`, without DNS queries, which have records of their own.
fn about<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["plane"] != "dns" && record.to_string().contains(name)).collect()
}

// S0.55
#[test]
fn one_record_a_request() {
    if !ready(&[Needs::Linux, Needs::World]) {
        return;
    }
    for backend in Backend::all() {
        let bench = Bench::new();
        let world = World::new(&bench);
        let run =
            bench.run(backend).allow("api.example.com").allow("files.example.com").allow("www.example.org");
        let run = run.within(&world);
        let mut rows = vec![
            (Attempt::Proxy("http://api.example.com/once"), "api.example.com", "allowed"),
            (Attempt::Proxy("http://one.denied.example.net/"), "one.denied.example.net", "denied"),
            (Attempt::Tunnel("two.denied.example.net:443"), "two.denied.example.net", "denied"),
        ];
        if backend == Backend::isolated() {
            let files = &["tls", "files.example.com", "443", "files.example.com"];
            let other = &["tls", "www.example.org", "443", "three.denied.example.net"];
            rows.push((Attempt::Probe(files), "files.example.com", "allowed"));
            rows.push((Attempt::Probe(other), "www.example.org", "denied"));
        }
        let seen = run.attempts(&rows.iter().map(|(attempt, ..)| *attempt).collect::<Vec<_>>());
        let records = bench.every_audit_record();
        for ((_, name, outcome), seen) in rows.into_iter().zip(seen) {
            assert_eq!(seen.done(), outcome == "allowed", "{name} under {}: {seen}", backend.name());
            let found = about(&records, name);
            assert_eq!(found.len(), 1, "{name} under {}: {records:#?}", backend.name());
            assert_eq!(found[0]["outcome"], outcome, "{name} under {}", backend.name());
        }
    }
}

#[test]
fn the_chains_of_companions_belong_to_that_of_their_run() {
    let at_engine = Backend::isolated().is_engine();
    let kernels = [Needs::Linux, Needs::Images];
    if !promised("companions") || !at_engine && !ready(&kernels) {
        return;
    }
    let bench = Bench::new();
    let one = |name: &str| {
        format!(
            "[[companion]]\nname = \"{name}\"\nimage = \"debian\"\nports = [5000]\ncommand = [\"sleep\", \"60\"]\n\
                 health = {{ command = [\"true\"] }}\n"
        )
    };
    let file = bench.file("outside/policy.toml", &(one("first") + &one("second")));
    let run = bench.run(Backend::isolated()).flags(["--policy", file.to_str().unwrap()]);
    let ended = if at_engine { run } else { run.with_images() }.command(["true"]);
    assert!(ended.code == 0, "{ended}");

    let records = bench.records(&["audit", "show", "--json"]);
    let named: Vec<&Value> = records.iter().filter(|it| it["action"] == "companion").collect();
    assert_eq!(named.iter().map(|it| &it["target"]).collect::<Vec<_>>(), ["first", "second"], "{records:?}");
    assert!(
        named.iter().all(|it| it["plane"] == "gate" && it["image"].as_str().unwrap().starts_with("sha256:"))
    );
    let begins: Vec<&Value> =
        records.iter().filter(|it| it["action"] == "open").map(|it| &it["hash"]).collect();
    assert_eq!(named.iter().map(|it| &it["chain"]).collect::<Vec<_>>(), begins[1..], "{records:?}");
    let whose = |name: Option<&str>| records.iter().any(|it| it["companion"].as_str() == name);
    assert!([None, Some("first"), Some("second")].into_iter().all(whose), "{records:?}");
    let shown = bench.lockgate(&["audit", "show"]).stdout;
    assert!(shown.contains("companion second  of image sha256:"), "{shown}");

    let verify = || bench.lockgate(&["audit", "verify"]);
    assert!(verify().code == 0, "{}", verify());
    let object =
        || -> Value { serde_json::from_str(&bench.lockgate(&["audit", "verify", "--json"]).stdout).unwrap() };
    let companions = |found: &Value| found["companions"].as_array().unwrap().clone();
    let whole = object();
    assert!(whole["holds"] == true && whole["closed"] == true, "{whole}");
    let names: Vec<_> = companions(&whole).iter().map(|it| it["name"].clone()).collect();
    assert_eq!(names, ["first", "second"], "{whole}");
    let run = records[0]["run"].as_str().unwrap();
    let path = |name: &str| bench.state().join(format!("lockgate/audit/{run}.{name}.jsonl"));
    let fails = |what: &str| {
        let verified = verify();
        assert!(verified.code == 1 && verified.stderr.contains(what), "{what}: {verified}");
    };
    let texts = ["first", "second"].map(|name| fs::read(path(name)).unwrap());
    fs::write(path("first"), &texts[1]).unwrap();
    fails("has the chain of companion second");
    fs::write(path("first"), &texts[0]).unwrap();
    fs::write(path("third"), &texts[0]).unwrap();
    fails("has the chain of companion first");
    fs::remove_file(path("third")).unwrap();
    fs::remove_file(path("second")).unwrap();
    fails("companion second: the audit does not hold: the run's audit names it, and it is not there");
    let removed = object();
    assert!(removed["holds"] == false && removed["why"].as_str().unwrap().contains("not there"), "{removed}");
    assert!(companions(&removed).iter().all(|it| it["holds"] == (it["name"] == "first")), "{removed}");
    fs::write(path("second"), &texts[1]).unwrap();
    assert!(verify().code == 0, "{}", verify());
    // Nor does one hold in the place of the command's own.
    ["first", "second"].iter().for_each(|name| fs::remove_file(path(name)).unwrap());
    fs::write(bench.state().join(format!("lockgate/audit/{run}.jsonl")), &texts[0]).unwrap();
    fails("has the chain of companion first");
}

// S4.69
#[test]
fn a_runs_record_says_what_it_was_allowed() {
    if !ready(&[Needs::Linux]) {
        return;
    }
    let bench = Bench::new();
    let policy = bench.file(
        "outside/policy.toml",
        "[[egress.allow]]\nurl = \"https://api.example.com/v1/*\"\nmethods = [\"GET\"]\n\
         [[egress.deny]]\nhost = \"ads.example.org\"\n",
    );
    let run = bench.run(Backend::isolated()).allow("example.net:443").flags(["--policy".into(), policy]);
    assert!(run.command(["true"]).code == 0);
    let id = bench.lockgate(&["runs", "ls", "-q"]).stdout.trim().to_owned();
    let record: Value =
        serde_json::from_str(&bench.lockgate(&["runs", "show", "--json", &id]).stdout).unwrap();
    let rules = record["permissions"].as_array().unwrap().iter();
    let rules: Vec<_> =
        rules.map(|it| ["effect", "reach"].map(|part| it[part].as_str().unwrap().to_owned())).collect();
    let expected = [
        ["deny", "ads.example.org, every port"],
        ["allow", "https://api.example.com:443/v1/* [GET]"],
        ["allow", "example.net:443"],
        ["deny", "everything else"],
    ];
    assert!(rules == expected, "{rules:?}");
    // The record keeps a rule that has left the policy, also in its text for people.
    fs::remove_file(bench.outside().join("policy.toml")).unwrap();
    let shown = bench.lockgate(&["runs", "show", &id]).stdout;
    assert!(
        shown.contains("rule       allow https://api.example.com:443/v1/* [GET] (egress.allow[0] in "),
        "{shown}"
    );
}
