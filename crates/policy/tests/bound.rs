//! A host that a credential is bound to is bound for every request there, by whichever policy.

#![expect(clippy::unwrap_used, reason = "a test: what does not hold ends it")]

use policy::{Asked, Layers, Method, Origin, Plane, Policy, RunConfig, Target};

const BOUND: &str = r#"
[[provider]]
id = "own"
authorized_uris = ["https://api.example.com/v1/*"]
grpc = true
pinned = false
"#;
const ALLOWED: &str = r#"
[egress]
allow = [{ host = "api.example.com" }, { host = "other.example.com" }]
"#;

fn policy(layers: &[(Origin, &str)]) -> Policy {
    let mut all = Layers::default();
    for (origin, text) in layers {
        all.push(origin.clone(), toml::from_str::<RunConfig>(text).unwrap());
    }
    all.compile().unwrap().policy
}

/// Whether a GET is granted with a credential; whether its host is bound; whether keys of the command's own are refused there.
fn seen(policy: &Policy, target: &str) -> (bool, bool, bool) {
    let target = Target::parse(target).unwrap();
    let asked = Asked::request(Plane::Forward, Method::parse("GET").unwrap(), &target);
    let grant = policy.decide(&asked).unwrap();
    (grant.provider().is_some(), grant.is_bound(), grant.refuses_own_credentials())
}

#[test]
fn a_host_is_bound_beside_the_uris_of_its_credential_and_without_pinned_too() {
    let own = policy(&[(Origin::Named("own".into()), &format!("{ALLOWED}{BOUND}"))]);
    assert_eq!(seen(&own, "https://api.example.com/v1/x"), (true, true, false));
    assert_eq!(seen(&own, "https://api.example.com/v2/x"), (false, true, false));
    assert_eq!(seen(&own, "https://other.example.com/v1/x"), (false, false, false));
}

#[test]
fn a_host_that_the_managed_policy_binds_is_bound() {
    let managed = (Origin::Managed("managed".into()), &*format!("{ALLOWED}{BOUND}"));
    let own = (Origin::Named("own".into()), ALLOWED);
    let both = policy(&[managed, own]);
    assert!(seen(&both, "https://api.example.com/v2/x").1);
    assert!(!seen(&both, "https://other.example.com/").1);
}
