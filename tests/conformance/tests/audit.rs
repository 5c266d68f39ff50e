//! Promise: every request has exactly one audit record, allowed or not, and the chain verifies.
//! DESIGN §3, §10; S0.58; E20.

use lockgate_conformance::{Backend, Bench, Needs, World, ready};
use serde_json::Value;

/// The records that are not a question for a name (those have one of their own) and speak of `name`.
fn about<'a>(records: &'a [Value], name: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["plane"] != "dns" && record.to_string().contains(name)).collect()
}

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
        let mut expected = vec![
            ("api.example.com", "allowed"),
            ("one.denied.example.net", "denied"),
            ("two.denied.example.net", "denied"),
        ];
        assert!(run.by_proxy("http://api.example.com/once").done());
        assert!(!run.by_proxy("http://one.denied.example.net/").done());
        assert!(!run.by_tunnel("two.denied.example.net:443").done());
        if backend == Backend::isolated() {
            run.everything_works(&[&["tls", "files.example.com", "443", "files.example.com"]]);
            run.nothing_works(&[&["tls", "www.example.org", "443", "three.denied.example.net"]]);
            expected.extend([("files.example.com", "allowed"), ("www.example.org", "denied")]);
        }
        let records = bench.every_audit_record();
        for (name, outcome) in expected {
            let found = about(&records, name);
            assert_eq!(found.len(), 1, "{name} under {}: {records:#?}", backend.name());
            assert_eq!(found[0]["outcome"], outcome, "{name} under {}", backend.name());
        }
    }
}
