//! Measures terminated TLS, with a credential injected into each request and masked in each answer: beside nginx and a proxy on the
//! hudsucker library, which inject but do not mask, and beside our own termination without a credential.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::proxies::{self, NAME, Origin, Plane, Way};
use super::sample::{Better, Role, Row, Section, Series, Target};
use super::server::{Server, free_port};
use super::splice::{LOADS, Load, in_turns, through};
use super::{Bench, hudsucker, machine, processes};
use crate::bounded::Bounded;

/// The load of idle connections, how long it lasts, and how long before its end memory is read.
const IDLE_CONNECTIONS: &str = "1000";
const IDLE: Load = Load {
    what: "idle connections",
    args: &["--connections", "idle", "--path", "/1k", "--workers", IDLE_CONNECTIONS],
    is_bulk: false,
    resumes: false,
    seconds: 0.0,
};
const IDLE_SECONDS: f64 = 8.0;
const IDLE_LOOK: f64 = 1.0;

/// The most a request may cost, as a part of each peer's, and the least rate of large bodies.
const COST: Target = Target::Each(&[("nginx", 1.0), (hudsucker::PEER, 0.6), (OPENED, INJECTION)]);
const BULK_COST: Target = Target::Each(&[("nginx", 1.0), (OPENED, INJECTION)]);
const BULK_RATE: Target = Target::Each(&[(hudsucker::PEER, 1.0)]);

/// Our own termination alone, and what injecting and masking may cost beside it.
const OPENED: &str = "opened";
const INJECTION: f64 = 1.15;
/// The most memory that idle connections may take, in MiB.
const IDLE_MEMORY: f64 = 40.0;

/// The secret that is injected.
const SECRET: &str = "bench-canary-0123456789abcdefghijklmnopq";

/// Loads every way in turn.
pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("Terminated TLS");
    section.about = vec![
        "The same origin and load generator. `lockgate sidecar` is reached by CONNECT, ends the load's TLS with its own authority, puts \
         a header with a credential into each request, begins TLS to the origin anew, and searches each answer for the credential; \
         nginx ends TLS, sets the header by its configuration and re-encrypts over kept connections, without verifying the origin. \
         hudsucker is a small program on the library of that name (`benches/hudsucker`): reached by CONNECT, it ends TLS with an authority of its own, \
         sets the header, and verifies the origin over the kept connections of the library's client. Neither searches answers. Each has one worker. \
         `opened` is lockgate with a rule of paths and no credential."
            .into(),
        "Idle connections were used once; what is counted is what the proxy holds more than before."
            .into(),
    ];
    let Some(nginx) = machine::find("nginx") else {
        section.skipped.push("nginx is not installed, and it is the origin".into());
        return Ok(section);
    };
    let origin = Origin::start(&bench.load, &nginx, &bench.folder)?;
    let mut ways = vec![
        sidecar(bench, &origin, "lockgate", Role::Ours)?,
        sidecar(bench, &origin, OPENED, Role::Reference)?,
        nginx_terminating(bench, &origin, &nginx)?,
    ];
    ways.extend(hudsucker::way(bench, &origin, Some(SECRET), &mut section.skipped)?);
    for load in &LOADS {
        let (rates, costs) = in_turns(bench, &origin, load, &ways)?;
        section.rows.extend(rows(load, rates, costs));
    }
    section.rows.push(idle(bench, &origin, &ways)?);
    Ok(section)
}

/// Measures a proxy's memory for connections that were used once and are idle. The target is absolute: 40 MiB.
fn idle(bench: &Bench, origin: &Origin, ways: &[Way]) -> Result<Row> {
    let mut series: Vec<Series> = ways.iter().map(|way| Series::new(way.name, way.role)).collect();
    for (way, series) in ways.iter().zip(&mut series) {
        let Some(server) = &way.server else { continue };
        let before = processes::memory(&server.processes()).context("no memory to read")?;
        let held = std::thread::scope(|scope| {
            let load = Load { seconds: IDLE_SECONDS, ..IDLE };
            let loading = scope.spawn(move || through(bench, origin, &load, way));
            std::thread::sleep(Duration::from_secs_f64(IDLE_SECONDS - IDLE_LOOK));
            let held = processes::memory(&server.processes());
            loading.join().unwrap_or_else(|_| anyhow::bail!("the load panicked"))?;
            held.context("no memory to read")
        })?;
        series.samples.push(held.anonymous - before.anonymous);
    }
    let what = format!("anonymous memory, {IDLE_CONNECTIONS} idle connections");
    Ok(Row {
        what,
        unit: "MiB",
        better: Better::Less,
        part: 0.5,
        target: Some(Target::Figure(IDLE_MEMORY)),
        series,
    })
}

fn rows(load: &Load, rates: Vec<Series>, costs: Vec<Series>) -> [Row; 2] {
    let (unit, per) = if load.is_bulk { ("GB/s", "µs/MB") } else { ("1/s", "µs") };
    let what = load.what.to_owned();
    let cost = format!("CPU: {what}");
    let (rate_target, target) = if load.is_bulk { (Some(BULK_RATE), BULK_COST) } else { (None, COST) };
    [
        Row { what, unit, better: Better::More, part: 0.5, target: rate_target, series: rates },
        Row { what: cost, unit: per, better: Better::Less, part: 0.5, target: Some(target), series: costs },
    ]
}

fn sidecar(bench: &Bench, origin: &Origin, name: &'static str, role: Role) -> Result<Way> {
    let folder = &bench.folder;
    let at = |what: &str| folder.join(format!("terminate-{name}-{what}"));
    let (policy, authority, audit) = (at("policy.toml"), at("ca.pem"), at("audit.jsonl"));
    let url = format!("https://{NAME}:{}/*", origin.address.port());
    fs::write(
        &policy,
        match role {
            Role::Ours => format!(
                "[[provider]]\nid = \"bench\"\nauthorized_uris = [\"{url}\"]\naddresses = [\"127.0.0.1\"]\n\
                 inject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\n"
            ),
            _ => format!(
                "[[egress.allow]]\nurl = \"{url}\"\nmethods = [\"GET\"]\naddresses = [\"127.0.0.1\"]\n"
            ),
        },
    )?;
    let secret = at("secret");
    fs::write(&secret, SECRET)?;
    Bounded::new(
        &bench.lockgate.to_string_lossy(),
        &["creds", "set", "bench", "--from-file", &secret.to_string_lossy()],
        Duration::from_secs(30),
    )
    .env("XDG_STATE_HOME", folder.join("server-state"))
    .env("SSL_CERT_FILE", &origin.authority)
    .run()
    .context("failed to store the credential")?;
    let dial = free_port()?;
    // The origin's certificate is its own authority; the sidecar verifies it as any other.
    let args = [
        format!("SSL_CERT_FILE={}", origin.authority.display()),
        bench.lockgate.to_string_lossy().into_owned(),
        "sidecar".into(),
        "--policy".into(),
        policy.to_string_lossy().into_owned(),
        "--forward".into(),
        dial.to_string(),
        "--ca".into(),
        authority.to_string_lossy().into_owned(),
        "--audit".into(),
        audit.to_string_lossy().into_owned(),
    ];
    let server = Server::start(&format!("terminate-{name}"), Path::new("env"), &args, folder)?
        .await_port(dial, folder)?;
    Ok(Way { name, role, dial, plane: Plane::Tunnel, authority: Some(authority), server: Some(server) })
}

fn nginx_terminating(bench: &Bench, origin: &Origin, nginx: &Path) -> Result<Way> {
    let dial = free_port()?;
    let at = bench.folder.display();
    let rest = format!(
        "http {{ access_log {at}/terminate-access.log; keepalive_requests 1000000000; keepalive_timeout 600;\n\
         client_body_temp_path {at}/t-body; proxy_temp_path {at}/t-proxy; fastcgi_temp_path {at}/t-fastcgi;\n\
         uwsgi_temp_path {at}/t-uwsgi; scgi_temp_path {at}/t-scgi;\n\
         ssl_certificate {at}/cert.pem; ssl_certificate_key {at}/key.pem; ssl_session_cache shared:t:10m; ssl_protocols TLSv1.3;\n\
         upstream origin {{ server {}; keepalive 64; keepalive_requests 1000000000; }}\n\
         server {{ listen {dial} ssl backlog=4096; location / {{ proxy_pass https://origin; proxy_http_version 1.1;\n\
         proxy_set_header Connection \"\"; proxy_set_header Host {NAME}; proxy_set_header Authorization \"Bearer {SECRET}\";\n\
         proxy_ssl_server_name on; proxy_ssl_name {NAME}; proxy_ssl_protocols TLSv1.3;\n\
         proxy_max_temp_file_size 0; }} }} }}\n",
        origin.address
    );
    let server = proxies::start_nginx("terminate", nginx, 1, &rest, dial, &bench.folder)?;
    Ok(Way {
        name: "nginx",
        role: Role::Peer,
        dial,
        plane: Plane::Tls,
        authority: None,
        server: Some(server),
    })
}
