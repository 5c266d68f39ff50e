//! Measures starts of `/bin/true`: one after the other, after a rest, and many at once.
//!
//! Subjects take turns, so that other work on the machine affects all alike. A start that fails ends the section: a fast failure
//! must not count as a fast start.

use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::person::{Person, owned, shown};
use super::sample::{Better, Role, Row, Section, Series, Target};
use super::sandlock::{self, Sandlock};
use super::subject::{COMMAND, Subject};
use super::{Bench, machine};

/// The sandbox a user would otherwise pick, as tight as it gets without a policy.
const BWRAP: [&str; 10] =
    ["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"];

/// A service with a credential, so that TLS to it is terminated. The command asks it for nothing.
const PROVIDER: &str = "[[provider]]\nid = \"bench\"\nauthorized_uris = [\"https://api.example.com/*\"]\n\
     inject = { header = \"authorization\", value = \"Bearer {{access_token}}\" }\n";
const SECRET: &str = "bench-canary-0123456789abcdefghijklmnopq";
/// The most a start may take, as a part of each peer's time: sandlock has its proxy for plain HTTP.
const COLD: Target = Target::Each(&[("bwrap", 1.0), (sandlock::PEER, 0.5)]);
/// The most a start with a credential may take: beside one without, and beside sandlock with TLS terminated and a credential.
const WITH_CREDENTIAL: Target = Target::Each(&[("without", 1.2), (sandlock::WITH_TLS, 1.0)]);

/// Returns the product and the installed peers, as one person starts them; notes what is weaker in each.
pub(crate) fn subjects(bench: &Bench, person: &Person, notes: &mut Vec<String>) -> Result<Vec<Subject>> {
    let mut ours = vec!["run".to_owned()];
    if try_once(bench, person, &ours).is_err() {
        // Without a control group to limit memory, a run is refused unless the user asks for `best-effort`.
        ours.extend(["--limits", "best-effort"].map(str::to_owned));
        try_once(bench, person, &ours)?;
    }
    if person.name == "unprivileged" && !has_groups(bench, person) {
        notes.push(
            "Started unprivileged there is no control group on this machine, so those rows are without one."
                .into(),
        );
    }
    ours.push("--".into());
    let mut all = vec![Subject {
        name: "lockgate".into(),
        role: Role::Ours,
        program: bench.lockgate.clone(),
        args: ours,
    }];
    if let Some(program) = machine::find("bwrap") {
        let args = BWRAP.map(str::to_owned).to_vec();
        all.push(Subject { name: "bwrap".into(), role: Role::Peer, program, args });
    }
    Ok(all)
}

/// Starts once; an error carries the program's own message.
fn try_once(bench: &Bench, person: &Person, args: &[String]) -> Result<()> {
    let args = [args, &["--".to_owned(), COMMAND.to_owned()]].concat();
    let output = person.command(&bench.lockgate, &args).stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        bail!(
            "`lockgate {}` as {}: {}",
            args.join(" "),
            person.name,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

fn has_groups(bench: &Bench, person: &Person) -> bool {
    let args = ["run", "--json", "--limits", "best-effort", "--", COMMAND].map(str::to_owned);
    let output = person.command(&bench.lockgate, &args).stderr(Stdio::piped()).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("memory_peak"))
}

/// Measures starts one after the other, as every person, and after a rest, as the first.
pub(crate) fn cold(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("Cold start of /bin/true");
    section.about = vec![
        "From fork to the end of the starting program; everything lockgate does by default is on: sidecar, redirect, \
         seccomp, landlock, control group, audit and run record on a real disk."
            .into(),
        format!("The peer is `bwrap {} {COMMAND}`; bare is fork and exec alone.", BWRAP.join(" ")),
        "sandlock is a sandbox by Landlock and a supervisor, without namespaces, with its proxy for plain HTTP and one rule; `sandlock tls` \
         opens TLS with an authority made at the start, which it puts into the host's bundle, and puts a credential of a file into \
         requests to one service."
            .into(),
    ];
    for (index, person) in bench.people.iter().enumerate() {
        let mut all = subjects(bench, person, &mut section.about)?;
        let sandlock = Sandlock::find(bench, person, &mut section.skipped)?;
        all.extend(sandlock.as_ref().map(Sandlock::plain));
        all.push(Subject {
            name: "bare".into(),
            role: Role::Reference,
            program: COMMAND.into(),
            args: Vec::new(),
        });
        let what = format!("{}, one after the other, p50", person.name);
        let row =
            Row { target: Some(COLD), ..sequence(person, &all, bench.pace.starts, Duration::ZERO, what)? };
        let tail = row.at(0.9, &format!("{}, one after the other, p90", person.name));
        section.rows.extend([row, tail]);
        section.rows.push(with_credential(bench, person, &all, sandlock.as_ref())?);
        if index == 0 && bench.pace.idle_starts > 0 {
            all.pop();
            let what = format!("{}, each after {} idle seconds, p50", person.name, bench.pace.idle.as_secs());
            section.rows.push(sequence(person, &all, bench.pace.idle_starts, bench.pace.idle, what)?);
        }
    }
    if machine::find("bwrap").is_none() {
        section.skipped.push("bwrap is not installed".into());
    }
    Ok(section)
}

/// Measures a run with terminated TLS and a credential, beside the same run without, and beside sandlock with them.
fn with_credential(
    bench: &Bench,
    person: &Person,
    subjects: &[Subject],
    sandlock: Option<&Sandlock>,
) -> Result<Row> {
    let Some(plain) = subjects.first() else { bail!("there is nobody to compare with") };
    let at = |name: &str| person.work().join(name);
    let (policy, secret) = (at("credential.toml"), at("credential.secret"));
    std::fs::write(&policy, PROVIDER)?;
    std::fs::write(&secret, SECRET)?;
    let stored = ["creds", "set", "bench", "--from-file", shown(&secret)?];
    person.told(&plain.program, &owned(&stored)).context("failed to store the credential")?;
    std::fs::remove_file(&secret)?;
    let mut args = plain.args.clone();
    args.splice(1..1, ["--policy".to_owned(), shown(&policy)?.to_owned()]);
    let subject = |name: &str, role, args: &[String]| Subject {
        name: name.into(),
        role,
        program: plain.program.clone(),
        args: args.to_vec(),
    };
    let mut all = vec![subject("credential", Role::Ours, &args), subject("without", Role::Peer, &plain.args)];
    all.extend(sandlock.map(|it| it.with_credential(person, SECRET)).transpose()?);
    let what = format!("{}, with a credential and TLS opened, p50", person.name);
    let row = sequence(person, &all, bench.pace.starts, Duration::ZERO, what)?;
    std::fs::remove_file(&policy)?;
    Ok(Row { target: Some(WITH_CREDENTIAL), ..row })
}

fn sequence(
    person: &Person,
    subjects: &[Subject],
    count: usize,
    rest: Duration,
    what: String,
) -> Result<Row> {
    let mut series: Vec<Series> = subjects.iter().map(|s| Series::new(&s.name, s.role)).collect();
    for round in 0..count {
        // The order rotates with each round, so no subject always follows the same one.
        for turn in 0..subjects.len() {
            let index = (round + turn) % subjects.len();
            std::thread::sleep(rest);
            series[index].samples.push(start(person, &subjects[index])?.as_secs_f64() * 1000.0);
        }
    }
    Ok(Row { what, unit: "ms", better: Better::Less, part: 0.5, target: Some(Target::Best(1.0)), series })
}

/// Starts once, and waits for the end.
fn start(person: &Person, subject: &Subject) -> Result<Duration> {
    let is_bare = subject.program == Path::new(COMMAND);
    let command = (!is_bare).then(|| COMMAND.to_owned());
    let args: Vec<String> = subject.args.iter().cloned().chain(command).collect();
    let mut command = person.command(&subject.program, &args);
    let began = Instant::now();
    let status = command.spawn().and_then(|mut child| child.wait());
    let took = began.elapsed();
    let status = status.with_context(|| format!("failed to start {}", subject.name))?;
    if !status.success() {
        bail!("{} as {} ended with {status}", subject.name, person.name);
    }
    Ok(took)
}

/// Measures many starts at once, as the first person.
pub(crate) fn concurrent(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("Concurrent starts of /bin/true");
    section.about = vec![
        "Starts a second, from the first fork to the last end, with so many under way at any time; everything is on as \
         above. A start that fails is an error, never a sample."
            .into(),
    ];
    let Some(person) = bench.people.first() else { return Ok(section) };
    let all = subjects(bench, person, &mut section.about)?;
    for (width, count) in bench.pace.bursts {
        let mut series: Vec<Series> = all.iter().map(|s| Series::new(&s.name, s.role)).collect();
        for round in 0..bench.pace.rounds {
            for turn in 0..all.len() {
                let index = (round + turn) % all.len();
                series[index].samples.push(burst(person, &all[index], width, count)?);
            }
        }
        let what = format!("{}, {width} at once, {count} in all", person.name);
        section.rows.push(Row {
            what,
            unit: "1/s",
            better: Better::More,
            part: 0.5,
            target: Some(Target::Best(1.0)),
            series,
        });
    }
    Ok(section)
}

fn burst(person: &Person, subject: &Subject, width: usize, count: usize) -> Result<f64> {
    let taken = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let worker = || {
            while taken.fetch_add(1, Ordering::Relaxed) < count {
                start(person, subject)?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let workers: Vec<_> = (0..width).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|one| one.join().unwrap_or_else(|_| bail!("a worker panicked")))
    })?;
    Ok(count as f64 / began.elapsed().as_secs_f64())
}
