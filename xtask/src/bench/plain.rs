//! Measures plain HTTP through an explicit proxy, beside a proxy on the hudsucker library: the cost of a request without TLS.

use anyhow::Result;

use super::proxies::{self, NAME, Origin, Plane, Way};
use super::sample::{Better, Role, Row, Section, Series, Target};
use super::splice::{Load, in_turns};
use super::{Bench, hudsucker, machine};

const LOADS: [Load; 2] = [
    Load::small("1 KiB, kept connections", &["--connections", "kept", "--path", "/1k"]),
    Load::small("1 KiB, new connection each", &["--connections", "new", "--path", "/1k"]),
];
/// The most a request may cost, as a part of the peer's.
const COST: Target = Target::Each(&[(hudsucker::PEER, 1.0)]);

/// Loads every way in turn.
pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("Plain forward");
    section.about = vec![
        "The same origin without TLS. The load generator names the whole URL in each request, as an explicit proxy is asked. `lockgate \
         sidecar` has a rule of paths for it and the audit on; hudsucker is the program of `benches/hudsucker` without a secret and writes \
         no record. Each has one worker, and both keep their connections to the origin."
            .into(),
    ];
    let Some(nginx) = machine::find("nginx") else {
        section.skipped.push("nginx is not installed, and it is the origin".into());
        return Ok(section);
    };
    let origin = Origin::start(&bench.load, &nginx, &bench.folder)?;
    let url = format!("http://{NAME}:{}/*", origin.plain.port());
    let policy =
        format!("[[egress.allow]]\nurl = \"{url}\"\nmethods = [\"GET\"]\naddresses = [\"127.0.0.1\"]\n");
    let mut ways = vec![proxies::sidecar(bench, "plain", &policy, Plane::Plain)?];
    ways.extend(hudsucker::way(bench, &origin, None, &mut section.skipped)?);
    ways.push(Way {
        name: "direct",
        role: Role::Reference,
        dial: origin.plain,
        plane: Plane::Plain,
        authority: None,
        server: None,
    });
    for load in &LOADS {
        let (rates, costs) = in_turns(bench, &origin, load, &ways)?;
        section.rows.extend(rows(load, rates, costs));
    }
    Ok(section)
}

fn rows(load: &Load, rates: Vec<Series>, mut costs: Vec<Series>) -> [Row; 2] {
    costs.retain(|series| !series.samples.is_empty());
    let what = load.what.to_owned();
    let cost = format!("CPU: {what}");
    [
        Row { what, unit: "1/s", better: Better::More, part: 0.5, target: None, series: rates },
        Row { what: cost, unit: "µs", better: Better::Less, part: 0.5, target: Some(COST), series: costs },
    ]
}
