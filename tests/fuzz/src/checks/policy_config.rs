//! Policy files. A file that was not approved never widens a run, no file widens a managed one, and a configuration survives being
//! written and read again.

use std::sync::LazyLock;

use policy::{
    Asked, Budget, Carriage, Grant, Host, Layers, Method, Origin, Plane, Policy, Port, RunConfig, RunSpec,
    Scrub, Target, View,
};

use crate::octets;

/// What a user's own flags ask for beside the file under test.
const WISHES: &str = r#"
[egress]
allow = [
    { host = "**.example.com", ports = [22, 80, 443] },
    { host = "inside.example.org", addresses = ["10.0.0.5"] },
    { host = "127.0.0.1" },
]
[llm.budget]
requests = 1000
tokens = 1000000
usd = 50
[limits]
memory = "64GiB"
cpus = 64
pids = 60000
disk = "1TiB"
"#;

static WISH: LazyLock<RunConfig> =
    LazyLock::new(|| toml::from_str(WISHES).expect("the wishes above are TOML"));

static PROBES: LazyLock<Vec<Asked>> = LazyLock::new(|| {
    let mut probes = Vec::new();
    let hosts =
        ["api.example.com", "example.com", "inside.example.org", "127.0.0.1", "github.com", "93.184.216.34"];
    for host in hosts {
        for port in [22, 80, 443] {
            for view in [View::Opaque, View::Tls] {
                let host = Host::parse(host).expect("a constant host");
                let port = Port::new(port).expect("a constant port");
                probes.push(Asked::connection(Plane::Transparent, host, port, view));
            }
        }
        for (method, target) in
            [("GET", format!("https://{host}/v1/x")), ("DELETE", format!("http://{host}/admin"))]
        {
            let target = Target::parse(&target).expect("a constant target");
            probes.push(Asked::request(
                Plane::Forward,
                Method::parse(method).expect("a constant method"),
                &target,
            ));
        }
    }
    probes
});

fn compile(layers: &[(Origin, &RunConfig)]) -> Option<RunSpec> {
    let mut stack = Layers::default();
    for (origin, config) in layers {
        stack.push(origin.clone(), (*config).clone());
    }
    let _ = stack.origins();
    stack.compile().ok()
}

/// Reads the input as a policy file, and compiles it as each layer of a run.
pub fn policy_config(input: &[u8]) {
    let text = octets::text_of(input);
    let Ok(config) = toml::from_str::<RunConfig>(text) else { return };
    let written = toml::to_string(&config).expect("a configuration can be written");
    let again: RunConfig = toml::from_str(&written).expect("what was written can be read");
    assert_eq!(toml::to_string(&again).expect("and written again"), written);

    let wish = || (Origin::User("wish".into()), &*WISH);
    let base = compile(&[wish()]).expect("the wishes compile");
    let unapproved = Origin::Project { path: "lockgate.toml".into(), approved: false };
    if let Some(narrowed) = compile(&[wish(), (unapproved, &config)]) {
        assert_not_wider(&narrowed, &base, "an unapproved project");
    }
    let managed = || (Origin::Managed("managed".into()), &config);
    if let (Some(alone), Some(both)) = (compile(&[managed()]), compile(&[managed(), wish()])) {
        let speaks = config.egress.default.is_some() || !config.egress.allow.is_empty();
        if speaks {
            assert_rules_not_wider(&both.policy, &alone.policy, "flags over a managed policy");
        }
        assert!(config.limits.memory.is_none() || both.limits.memory <= alone.limits.memory);
        assert!(config.limits.pids.is_none() || both.limits.pids <= alone.limits.pids);
        let (most, budget) = (&alone.spending.budget, &both.spending.budget);
        assert!(within(budget, most), "flags over a managed budget: {budget:?}, {most:?}");
        assert!(config.egress.scrub != Some(Scrub::Strict) || both.policy.scrub() == Scrub::Strict);
    }
}

/// Whether a budget has every limit of another, none of them larger.
fn within(budget: &Budget, most: &Budget) -> bool {
    fn least<T: PartialOrd>(own: Option<T>, most: Option<T>) -> bool {
        most.is_none_or(|most| own.is_some_and(|own| own <= most))
    }
    least(budget.requests, most.requests) && least(budget.tokens, most.tokens) && least(budget.usd, most.usd)
}

fn assert_not_wider(narrow: &RunSpec, wide: &RunSpec, who: &str) {
    assert!(
        narrow.limits.memory <= wide.limits.memory && narrow.limits.cpus <= wide.limits.cpus,
        "{who}: limits"
    );
    assert!(
        narrow.limits.pids <= wide.limits.pids && narrow.limits.disk <= wide.limits.disk,
        "{who}: limits"
    );
    assert!(narrow.timeout <= wide.timeout, "{who}: timeout");
    assert!(
        narrow.mounts.len() <= wide.mounts.len() && narrow.copies.len() <= wide.copies.len(),
        "{who}: places"
    );
    assert!(narrow.env.set == wide.env.set && narrow.env.pass == wide.env.pass, "{who}: environment");
    assert!(narrow.backend == wide.backend || narrow.backend == policy::Backend::Linux, "{who}: backend");
    assert!(within(&narrow.spending.budget, &wide.spending.budget), "{who}: budget");
    assert!(wide.policy.scrub() != Scrub::Strict || narrow.policy.scrub() == Scrub::Strict, "{who}: scrub");
    assert_rules_not_wider(&narrow.policy, &wide.policy, who);
}

fn assert_rules_not_wider(narrow: &Policy, wide: &Policy, who: &str) {
    for probe in &*PROBES {
        let Ok(granted) = narrow.decide(probe) else { continue };
        let by = granted.rule().as_str().to_owned();
        let Ok(most) = wide.decide(probe) else { panic!("{who}: {probe:?} by {by}") };
        let carries = |grant: &Grant| match grant.carriage() {
            Carriage::Request => 0,
            Carriage::Terminated => 1,
            Carriage::Tls => 2,
            Carriage::Any => 3,
        };
        assert!(carries(&granted) <= carries(&most), "{who}: {probe:?} carries more by {by}");
        for address in granted.addresses().unwrap_or_default() {
            assert!(
                granted.vet(&[*address]).is_err() || most.vet(&[*address]).is_ok(),
                "{who}: {probe:?} at {address} by {by}"
            );
        }
    }
}
