//! Measures the memory a run holds beside its command, while `sleep` runs: one run, and ten at once.
//!
//! Only the command itself is left out.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::processes::{self, Memory};
use super::sample::{Better, Row, Section, Series, Target};
use super::subject::Subject;
use super::{Bench, person::Person, starts};
use crate::bounded::Bounded;

const COMMAND: &str = "sleep";
/// How long a command sleeps if nothing ends it.
const SLEEP: &str = "60";
/// How long a run may take until its command sleeps, and to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long everything is left alone before the memory is read.
const SETTLE: Duration = Duration::from_millis(300);
/// How many runs there are in the second measurement.
const MANY: usize = 10;
/// The most that a run may hold, in MiB: by itself, and with its share of what ten at once have in common.
const ANONYMOUS: Target = Target::Figure(2.0);
const PROPORTIONAL: Target = Target::Figure(5.0);

/// Measures one run and ten, as the first person.
pub(crate) fn measure(bench: &Bench) -> Result<Section> {
    let mut section = Section::new("Memory beside the command");
    section.about = vec![
        "All processes of a run of `sleep` but `sleep` itself, a run, from `smaps_rollup`: anonymous pages, and the \
         proportional share of all pages (text that several runs use counts once for all of them)."
            .into(),
        "bwrap has no gate: it is the floor, not a target.".into(),
    ];
    let Some(person) = bench.people.first() else { return Ok(section) };
    let all = starts::subjects(bench, person, &mut Vec::new())?;
    for runs in [1, MANY] {
        let mut anonymous: Vec<Series> = all.iter().map(|s| Series::new(&s.name, s.role)).collect();
        let mut proportional = anonymous.clone();
        for round in 0..bench.pace.rounds {
            for turn in 0..all.len() {
                let index = (round + turn) % all.len();
                let held = look(person, &all[index], runs)?;
                anonymous[index].samples.push(held.anonymous / runs as f64);
                proportional[index].samples.push(held.proportional / runs as f64);
            }
        }
        let at_once = if runs == 1 { "one run".to_owned() } else { format!("{runs} runs at once, each") };
        let row = |what: &str, target, series| Row {
            what: format!("{what}, {at_once}"),
            unit: "MiB",
            better: Better::Less,
            part: 0.5,
            target,
            series,
        };
        let shared = (runs == MANY).then_some(PROPORTIONAL);
        section.rows.extend([
            row("anonymous", Some(ANONYMOUS), anonymous),
            row("proportional", shared, proportional),
        ]);
    }
    Ok(section)
}

fn look(person: &Person, subject: &Subject, runs: usize) -> Result<Memory> {
    let args: Vec<String> = subject.args.iter().cloned().chain([COMMAND.into(), SLEEP.into()]).collect();
    let mut sleepers = Sleepers(Vec::new());
    for _ in 0..runs {
        sleepers.0.push(limited(person.command(&subject.program, &args))?);
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asleep = sleepers.0.iter().filter(|child| !command_of(child.id()).is_empty()).count();
        if asleep == runs {
            break;
        }
        if Instant::now() > deadline {
            bail!("{} has {asleep} of {runs} commands running after {} s", subject.name, PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(SETTLE);
    let beside: Vec<u32> = sleepers
        .0
        .iter()
        .flat_map(|child| {
            let command = command_of(child.id());
            processes::tree(child.id()).into_iter().filter(move |pid| !command.contains(pid))
        })
        .collect();
    processes::memory(&beside).with_context(|| format!("failed to read the memory of {}", subject.name))
}

fn limited(mut command: Command) -> Result<Child> {
    command.stdout(Stdio::null()).spawn().context("failed to start a run")
}

/// Returns the processes of the command below a run.
fn command_of(run: u32) -> Vec<u32> {
    processes::tree(run).into_iter().filter(|pid| processes::name(*pid) == COMMAND).collect()
}

/// Runs of `sleep`, ended on drop.
struct Sleepers(Vec<Child>);

impl Drop for Sleepers {
    fn drop(&mut self) {
        for child in &self.0 {
            // A run ends with its command, and does its own cleanup.
            for pid in command_of(child.id()) {
                let _ = Bounded::new("kill", &["-TERM", &pid.to_string()], PATIENCE).run();
            }
        }
        let deadline = Instant::now() + PATIENCE;
        for child in &mut self.0 {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
