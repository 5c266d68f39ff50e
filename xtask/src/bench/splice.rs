//! Measures spliced TLS: requests on kept connections, new connections, and bulk. Each row has the rate, or what it costs the
//! proxy's processes.
//!
//! The load generator is our own (`lockgate-load`): one thread, TLS 1.3 by rustls. Each row says whether sessions are resumed.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::proxies::{self, NAME, Origin, Plane, Way};
use super::sample::{Better, Role, Row, Section, Series, Target};
use super::starts;
use super::{Bench, machine, processes};
use crate::bounded::Bounded;

/// How much longer than its time a load may take.
const SLACK: Duration = Duration::from_secs(20);
/// How long the load generator stays after its last output, so that the sidecar beside it can still be read.
const LINGER: &str = "0.5";

/// The load generator's output.
#[derive(Deserialize)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) octets: u64,
    pub(crate) resumed: u64,
    pub(crate) seconds: f64,
    #[serde(default)]
    pub(crate) first_failure: Option<String>,
}

impl Tally {
    /// Parses one line, and refuses a load of which a thousandth failed: its rate would mean nothing.
    pub(crate) fn parse(line: &str, who: &str) -> Result<Self> {
        let tally: Self =
            serde_json::from_str(line).with_context(|| format!("failed to read the load of {who}"))?;
        if tally.done == 0 || tally.failed * 1000 > tally.done {
            let why = tally.first_failure.as_deref().unwrap_or("nothing came back");
            bail!("{} of {} loads through {who} failed: {why}", tally.failed, tally.done + tally.failed);
        }
        Ok(tally)
    }
}

/// One kind of load.
pub(super) struct Load {
    pub(super) what: &'static str,
    pub(super) args: &'static [&'static str],
    /// Whether octets are counted, and not answers.
    pub(super) is_bulk: bool,
    pub(super) resumes: bool,
    /// How long it lasts, or 0 for as long as the others.
    pub(super) seconds: f64,
}

pub(super) const LOADS: [Load; 4] = [
    Load::small("1 KiB, kept connections", &["--connections", "kept", "--path", "/1k"]),
    Load::small("1 KiB, new connection each, no resumption", &["--connections", "new", "--path", "/1k"]),
    Load {
        what: "1 KiB, new connection each, resumed",
        args: &["--connections", "new", "--path", "/1k", "--resume"],
        is_bulk: false,
        resumes: true,
        seconds: 0.0,
    },
    Load {
        what: "64 MiB bodies",
        args: &["--connections", "kept", "--path", "/bulk", "--workers", "2"],
        is_bulk: true,
        resumes: false,
        seconds: 0.0,
    },
];

/// Loads every way in turn.
pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("Spliced TLS");
    section.about = vec![
        format!(
            "An nginx with a certificate of our own is the origin; `lockgate-load` (one thread, TLS 1.3, 8 requests at a time, {} s a \
             round) reaches it through `lockgate sidecar` by CONNECT with the audit on, through nginx `ssl_preread`, through \
             haproxy by SNI, and directly. Each proxy has one worker. CPU is that of the proxy's processes.",
            bench.pace.seconds
        ),
        "A CONNECT costs one more round trip a connection than a proxy that only reads the server name; the transparent rows are \
         the load generator inside `lockgate run`, redirected, against the same peers."
            .into(),
    ];
    let Some(nginx) = machine::find("nginx") else {
        section.skipped.push("nginx is not installed, and it is the origin".into());
        return Ok(section);
    };
    let origin = Origin::start(&bench.load, &nginx, &bench.folder)?;
    let ways = proxies::all(bench, &origin, &nginx, &mut section.skipped)?;
    for load in &LOADS {
        let mut rates: Vec<Series> = ways.iter().map(|way| Series::new(way.name, way.role)).collect();
        let mut costs = rates.clone();
        let mut inside = (Series::new("lockgate", Role::Ours), Series::new("lockgate", Role::Ours));
        for round in 0..bench.pace.rounds {
            for turn in 0..ways.len() {
                let index = (round + turn) % ways.len();
                let (rate, cost) = through(bench, &origin, load, &ways[index])?;
                rates[index].samples.push(rate);
                costs[index].samples.extend(cost);
            }
            let (rate, cost) = transparently(bench, &origin, load)?;
            inside.0.samples.push(rate);
            inside.1.samples.push(cost);
        }
        section.rows.extend(rows(load, "CONNECT", rates.clone(), costs.clone()));
        rates[0] = inside.0;
        costs[0] = inside.1;
        section.rows.extend(rows(load, "transparent", rates, costs));
    }
    Ok(section)
}

fn rows(load: &Load, plane: &str, rates: Vec<Series>, mut costs: Vec<Series>) -> [Row; 2] {
    costs.retain(|series| !series.samples.is_empty());
    let (unit, per) = if load.is_bulk { ("GB/s", "µs/MB") } else { ("1/s", "µs") };
    let what = format!("{}, {plane}", load.what);
    let cost = format!("CPU: {what}");
    [
        Row { what, unit, better: Better::More, part: 0.5, target: Some(Target::Best(0.95)), series: rates },
        Row { what: cost, unit: per, better: Better::Less, part: 0.5, target: None, series: costs },
    ]
}

/// Loads every way in turn, and returns the rates and their cost to the proxies.
pub(super) fn in_turns(
    bench: &Bench,
    origin: &Origin,
    load: &Load,
    ways: &[Way],
) -> Result<(Vec<Series>, Vec<Series>)> {
    let mut rates: Vec<Series> = ways.iter().map(|way| Series::new(way.name, way.role)).collect();
    let mut costs = rates.clone();
    for round in 0..bench.pace.rounds {
        for turn in 0..ways.len() {
            let index = (round + turn) % ways.len();
            let (rate, cost) = through(bench, origin, load, &ways[index])?;
            rates[index].samples.push(rate);
            costs[index].samples.extend(cost);
        }
    }
    Ok((rates, costs))
}

pub(super) fn through(bench: &Bench, origin: &Origin, load: &Load, way: &Way) -> Result<(f64, Option<f64>)> {
    let dial = way.dial.to_string();
    let address = if way.plane == Plane::Plain { origin.plain } else { origin.address };
    let origin_name = format!("{NAME}:{}", address.port());
    let authority = way.authority.as_ref().unwrap_or(&origin.authority).to_string_lossy();
    let seconds = if load.seconds > 0.0 { load.seconds } else { bench.pace.seconds };
    let limit = Duration::from_secs_f64(seconds) + SLACK;
    let seconds = seconds.to_string();
    let mut args = vec!["https", "--origin", &origin_name, "--dial", &dial, "--seconds", &seconds];
    args.extend(load.args);
    match way.plane {
        Plane::Tls => args.extend(["--authority", &authority]),
        Plane::Tunnel => args.extend(["--authority", &authority, "--tunnel"]),
        Plane::Plain => args.push("--plain"),
    }
    let before = way.server.as_ref().map(|server| processes::busy(&server.processes()));
    let line = Bounded::new(&bench.load.to_string_lossy(), &args, limit).stdout()?;
    let after = way.server.as_ref().map(|server| processes::busy(&server.processes()));
    let tally = Tally::parse(&line, way.name)?;
    let cost = before.zip(after).map(|(before, after)| (after - before) / load.amount(&tally));
    Ok((load.rate(&tally, way.name)?, cost))
}

/// Runs the load generator in a sandbox: it looks the name up and connects, as any program would.
fn transparently(bench: &Bench, origin: &Origin, load: &Load) -> Result<(f64, f64)> {
    let who = "lockgate run";
    let person = bench.people.first().context("nobody to run as")?;
    let work = person.work();
    std::fs::copy(&bench.load, work.join("load"))?;
    std::fs::copy(&origin.authority, work.join("cert.pem"))?;
    std::fs::write(work.join("splice.toml"), origin.policy())?;
    let ours = starts::subjects(bench, person, &mut Vec::new())?.remove(0);
    let mut args = ours.args;
    let command = args.pop();
    args.extend(["--policy".into(), "splice.toml".into()]);
    args.extend(command);
    let origin_name = format!("{NAME}:{}", origin.address.port());
    let seconds = bench.pace.seconds.to_string();
    let inner = [
        "./load",
        "https",
        "--origin",
        &origin_name,
        "--authority",
        "cert.pem",
        "--linger",
        LINGER,
        "--seconds",
        &seconds,
    ];
    args.extend(inner.iter().chain(load.args).map(|word| (*word).to_owned()));
    // The run has its own time limit, so reading to the end is bounded.
    args.splice(
        1..1,
        ["--timeout".to_owned(), format!("{}s", (bench.pace.seconds + SLACK.as_secs_f64()).ceil())],
    );
    let mut child =
        person.command(&bench.lockgate, &args).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
    let mut line = String::new();
    let read = child.stdout.take().context("no output")?;
    BufReader::new(read).read_line(&mut line)?;
    // The sidecar is the child without children; init has the command.
    let sidecars: Vec<u32> = processes::children(child.id())
        .into_iter()
        .filter(|pid| processes::children(*pid).is_empty())
        .collect();
    let busy = processes::busy(&sidecars);
    child.wait()?;
    let tally = Tally::parse(&line, who)?;
    Ok((load.rate(&tally, who)?, busy / load.amount(&tally)))
}

impl Load {
    /// Returns a load of small answers, as long as the others and without resumption.
    pub(super) const fn small(what: &'static str, args: &'static [&'static str]) -> Self {
        Self { what, args, is_bulk: false, resumes: false, seconds: 0.0 }
    }

    /// Returns answers a second, or gigabytes a second.
    fn rate(&self, tally: &Tally, who: &str) -> Result<f64> {
        if self.resumes && tally.resumed * 2 < tally.done {
            bail!("only {} of {} connections through {who} were resumed", tally.resumed, tally.done);
        }
        let per_second = if self.is_bulk { tally.octets as f64 / 1e9 } else { tally.done as f64 };
        Ok(per_second / tally.seconds)
    }

    /// Returns the divisor of the processor time: answers, or megabytes.
    fn amount(&self, tally: &Tally) -> f64 {
        if self.is_bulk { tally.octets as f64 / 1e6 } else { tally.done as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        r#"{"done":1000,"failed":0,"octets":2000000,"resumed":1,"seconds":2.0,"p50_us":1.0,"p99_us":2.0}"#;

    #[test]
    fn a_load_is_read_and_a_failed_one_refused() {
        let tally = Tally::parse(LINE, "it").unwrap();
        assert!((LOADS[0].rate(&tally, "it").unwrap() - 500.0).abs() < 1e-9);
        assert!((LOADS[3].rate(&tally, "it").unwrap() - 0.001).abs() < 1e-9);
        assert!(LOADS[2].rate(&tally, "it").is_err(), "a row of resumed connections needs some");
        let failed = LINE.replace("\"failed\":0", "\"failed\":2,\"first_failure\":\"cut\"");
        assert_eq!(
            Tally::parse(&failed, "it").err().unwrap().to_string(),
            "2 of 1002 loads through it failed: cut"
        );
    }
}
