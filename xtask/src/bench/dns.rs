//! Measures what a DNS question costs the sidecar, beside a resolver that answers the same name from its own configuration.
//!
//! Neither asks another resolver. Questions go over UDP on loopback, 32 at a time.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use super::proxies::NAME;
use super::sample::{Better, Role, Row, Section, Series, Target};
use super::server::{Server, free_port};
use super::splice::Tally;
use super::{Bench, machine, processes};
use crate::bounded::Bounded;

const SLACK: Duration = Duration::from_secs(20);
const OUTSTANDING: &str = "32";

/// A DNS server under load.
struct Subject {
    name: &'static str,
    role: Role,
    address: SocketAddr,
    server: Server,
}

/// Loads each server in turn.
pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("DNS");
    section.about = vec![format!(
        "An A record of one allowed name, by `lockgate-load` with {OUTSTANDING} questions under way, {} s a round: `lockgate sidecar --dns`, \
         and unbound with `local-data` and one thread.",
        bench.pace.seconds
    )];
    let mut subjects = vec![lockgate(bench)?];
    match machine::find("unbound") {
        Some(program) => subjects.push(unbound(bench, &program)?),
        None => section.skipped.push("unbound is not installed".into()),
    }
    let mut costs: Vec<Series> = subjects.iter().map(|one| Series::new(one.name, one.role)).collect();
    let mut rates = costs.clone();
    for round in 0..bench.pace.rounds {
        for turn in 0..subjects.len() {
            let index = (round + turn) % subjects.len();
            let subject = &subjects[index];
            let (address, seconds) = (subject.address.to_string(), bench.pace.seconds.to_string());
            let args = [
                "dns",
                "--server",
                &address,
                "--name",
                NAME,
                "--outstanding",
                OUTSTANDING,
                "--seconds",
                &seconds,
            ];
            let before = processes::busy(&subject.server.processes());
            let limit = Duration::from_secs_f64(bench.pace.seconds) + SLACK;
            let line = Bounded::new(&bench.load.to_string_lossy(), &args, limit).stdout()?;
            let busy = processes::busy(&subject.server.processes()) - before;
            let tally = Tally::parse(&line, subject.name)?;
            costs[index].samples.push(busy / tally.done as f64);
            rates[index].samples.push(tally.done as f64 / tally.seconds);
        }
    }
    let row = |what: &str, unit, better, target, series| Row {
        what: what.into(),
        unit,
        better,
        part: 0.5,
        target,
        series,
    };
    section.rows = vec![
        row("CPU a question", "µs", Better::Less, Some(Target::Best(1.5)), costs),
        row("questions", "1/s", Better::More, None, rates),
    ];
    Ok(section)
}

fn lockgate(bench: &Bench) -> Result<Subject> {
    let policy = bench.folder.join("dns.toml");
    fs::write(&policy, format!("[[egress.allow]]\nhost = \"{NAME}\"\n"))?;
    let (forward, address) = (free_port()?, free_port()?);
    let args = [
        "sidecar",
        "--policy",
        &policy.to_string_lossy(),
        "--forward",
        &forward.to_string(),
        "--dns",
        &address.to_string(),
    ]
    .map(str::to_owned);
    let server = Server::start("dns-sidecar", &bench.lockgate, &args, &bench.folder)?
        .await_port(address, &bench.folder)?;
    Ok(Subject { name: "lockgate", role: Role::Ours, address, server })
}

fn unbound(bench: &Bench, program: &std::path::Path) -> Result<Subject> {
    let address = free_port()?;
    let config = format!(
        "server:\n  interface: {}@{}\n  do-daemonize: no\n  username: \"\"\n  chroot: \"\"\n  directory: \"{}\"\n  pidfile: \"\"\n\
         \x20 use-syslog: no\n  num-threads: 1\n  module-config: \"iterator\"\n  access-control: 127.0.0.0/8 allow\n\
         \x20 local-zone: \"{NAME}.\" static\n  local-data: \"{NAME}. 60 IN A 198.18.0.1\"\nremote-control:\n  control-enable: no\n",
        address.ip(),
        address.port(),
        bench.folder.display()
    );
    let path = bench.folder.join("unbound.conf");
    fs::write(&path, config)?;
    let args = ["-d".to_owned(), "-c".into(), path.to_string_lossy().into_owned()];
    let server =
        Server::start("unbound", program, &args, &bench.folder)?.await_port(address, &bench.folder)?;
    Ok(Subject { name: "unbound", role: Role::Peer, address, server })
}
