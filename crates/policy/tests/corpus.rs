//! The public SSRF corpus, row by row, through the decision and the address guard with no I/O between them.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold ends it")]

use std::net::IpAddr;

use policy::{Asked, Layers, Method, Origin, Plane, Policy, RunConfig, Target};

const P1: &str = r#"
[[egress.allow]]
url = "https://api.example.com/v1/*"
[[egress.allow]]
url = "http://files.example.com/*"
"#;

fn policy_p1() -> Policy {
    let config: RunConfig = toml::from_str(P1).unwrap();
    let mut layers = Layers::default();
    layers.push(Origin::Named("P1".into()), config);
    layers.compile().unwrap().policy
}

fn verdict(policy: &Policy, target: &str, resolves: Option<Vec<IpAddr>>) -> Result<Target, policy::Denial> {
    let target = Target::parse(target)?;
    let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
    let grant = policy.decide(&asked)?;
    let answers = resolves.unwrap_or_else(|| vec!["93.184.216.34".parse().unwrap()]);
    grant.vet(&answers)?;
    Ok(target)
}

#[test]
fn every_row_agrees() {
    let policy = policy_p1();
    let rows = include_str!("../../../tests/corpora/ssrf_public.jsonl");
    let mut wrong = Vec::new();
    for line in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let resolves = row.get("resolves").map(|list| {
            list.as_array().unwrap().iter().map(|a| a.as_str().unwrap().parse().unwrap()).collect()
        });
        let found = verdict(&policy, row["target"].as_str().unwrap(), resolves);
        let expected = row["expect"] == "allow";
        let agrees = match (&found, expected) {
            (Ok(target), true) => {
                let effective = &row["effective"];
                effective["host"] == target.host().to_string()
                    && effective["port"] == target.port().number()
                    && effective["path"] == target.path().as_str()
                    && effective["query"].as_str() == target.query()
            }
            (Err(_), false) => true,
            _ => false,
        };
        if !agrees {
            wrong.push(format!("{} {} expected {} got {found:?}", row["id"], row["target"], row["expect"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rows.lines().count(), 183);
}
