//! `lockgate run`: one command in a sandbox.

use std::path::PathBuf;

use egress::{Notice, NoticeOutcome};
use policy::{ProviderId, RunSpec, TerminalConfig, shell_word};
use runtime::{Ending, Finished, Report, RunRequest, Settings, StateDirectory};
use rustix::process::Signal;
use sandbox::{Ahead, Caller};

use super::hint::RuleTime;
use super::json_file::JsonFile;
use super::{hint, places, spec};
use crate::arguments::{Run, Spec};
use crate::exit::{self, Done, Usage};
use crate::output;

/// How many denials are reported as they happen.
const TOLD: usize = 20;
/// SIGPIPE ends a command whose reader closed the pipe early, as `head` does, signal(7). Shells do not report it, and neither does
/// this.
const SIGPIPE: i32 = Signal::PIPE.as_raw();
const SIGHUP: i32 = Signal::HUP.as_raw();
/// How many denied targets the summary names.
const SUMMED_UP: usize = 3;

pub(crate) fn run(arguments: Run, ahead: Option<Ahead>) -> Done {
    let json = arguments.json;
    let file = match arguments.json_file.as_deref().map(JsonFile::at).transpose() {
        Ok(file) => file,
        Err(error) if json => return Ok(send_failure(&error, None)),
        Err(error) => return Err(error),
    };
    match begin(arguments, file.as_ref(), ahead) {
        Err(error) if json => Ok(send_failure(&error, file.as_ref())),
        Err(error) => {
            if let Some(Err(unwritten)) = file.map(|file| file.write(&failure(&error))) {
                output::error(&unwritten, None);
            }
            Err(error)
        }
        done => done,
    }
}

fn begin(arguments: Run, file: Option<&JsonFile>, ahead: Option<Ahead>) -> Done {
    let caller = super::caller()?;
    let state = StateDirectory::of(&caller)?;
    let flags = arguments.spec;
    let mut request = spec::request(&flags)?;
    if arguments.terminal {
        request.flags.terminal = Some(TerminalConfig::Always);
    }
    super::tell_unknown_variables(&caller);
    let settings = Settings::load(&request, &caller, Some(&state)).map_err(spec::named_by_flag)?;
    let project_above = settings.project_above(&request, &caller);
    let mut spec = settings.spec;
    if let Some(file) = &flags.policy {
        spec.policy.keep_in(&file.to_string_lossy());
    }
    if arguments.command.is_empty() && spec.image.is_none() {
        return Err(Usage::error("no command was given", "lockgate run -- CMD"));
    }
    places::refuse_missing(&spec, &flags, &caller)?;
    if let Some(path) = project_above {
        let folder = shell_word(&path.parent().unwrap_or(&path).to_string_lossy());
        output::tell(&format!(
            "note: {} counts for runs in its own folder, and this one is not: lockgate run --workspace {folder} reads it",
            path.display()
        ));
    }
    for (rule, address, ports) in spec.policy.of_loopback() {
        output::tell(&format!("note: {}", hint::of_loopback(rule.as_str(), address, &ports)));
    }
    for note in not_passed(&flags, &spec, &caller) {
        output::tell(&format!("note: {note}"));
    }
    let project = runtime::project_file(spec.workspace.as_deref(), &caller).ok();
    let providers = hint::providers_of(&spec.policy);
    let passed_over = runtime::passed_over(&spec, &caller);
    let mut telling = Telling { flags: &flags, providers, project, passed_over, denied: Vec::new(), told: 0 };
    let request =
        RunRequest { spec, command: arguments.command, caller, state, policy: request.policy, ahead };
    let finished = runtime::run(request, &mut |report| telling.tell(report))?;
    let mut value = outcome(&finished)?;
    // The file first: standard error may have to be waited for.
    let written = file.map_or(Ok(()), |file| file.write(&value));
    if let Err(error) = &written {
        value = unwritten(value, error);
    }
    let is_reported = if arguments.json {
        output::report(&value.to_string())
    } else {
        sum_up(&finished, &telling.denied);
        if let Err(error) = &written {
            output::error(error, None);
        }
        true
    };
    // An error of standard error cannot be reported there.
    if written.is_err() || !is_reported {
        return Ok(exit::FAILED);
    }
    Ok(u8::try_from(finished.outcome.exit_code).unwrap_or(1))
}

/// Says which variables are to be passed on, and are not.
fn not_passed(flags: &Spec, spec: &RunSpec, caller: &Caller) -> Vec<String> {
    let is_given = |name: &str| spec.env.set.iter().any(|(set, _)| set == name);
    let is_set = |name: &str| caller.environment.iter().any(|(set, _)| set == name);
    let why = |name: &String| match runtime::is_own_secret(name) {
        true => Some(format!(
            "{name} is not passed on: it holds a secret of Lockgate's own, which no command gets"
        )),
        // A file may well name what only some machines set.
        false if is_set(name) || !flags.env.contains(name) => None,
        false => Some(format!(
            "--env {name}: it is not set here, so the command does not have it; --env {name}=VALUE sets it"
        )),
    };
    spec.env.pass.iter().filter(|name| !is_given(name)).filter_map(why).collect()
}

/// Tells what happens in a run, as it happens.
struct Telling<'a> {
    flags: &'a Spec,
    /// The providers of the run.
    providers: Vec<ProviderId>,
    /// The path of the workspace's policy file.
    project: Option<PathBuf>,
    /// How the run is given a proxy that it passes over, until it is told.
    passed_over: Option<String>,
    /// The targets that were denied.
    denied: Vec<String>,
    /// How many notices came.
    told: usize,
}

impl Telling<'_> {
    fn tell(&mut self, report: Report<'_>) {
        match report {
            Report::KeptApart(run) => output::tell(&format!(
                "what was written in the workspace is kept apart: lockgate diff {run}, then apply or discard"
            )),
            Report::Note(text) => output::tell(&format!("note: {text}")),
            Report::Notice(notice) => self.tell_notice(notice),
        }
    }

    fn tell_notice(&mut self, notice: &Notice) {
        if notice.outcome == NoticeOutcome::Denied {
            self.denied.push(notice.target.clone());
        }
        self.told += 1;
        if self.told > TOLD {
            if self.told == TOLD + 1 {
                output::tell(
                    "further denials and failures are not shown here; lockgate audit follow shows them all",
                );
            }
            return;
        }
        let time = self.rule_time();
        let proxy = self.proxy_for(notice);
        let lines = |hint| hint::lines(hint, &notice.target, &self.providers, self.flags, time);
        let lines = notice.hint.iter().flat_map(lines).chain(proxy);
        let hints: String = lines.map(|line| format!("\n  {line}")).collect();
        output::tell(&format!("{}{hints}", notice.line()));
    }

    /// Returns what to do about the first host that was not reached, if the run may lack the proxy of this network.
    fn proxy_for(&mut self, notice: &Notice) -> Option<String> {
        if notice.is_unreached() { self.passed_over.take() } else { None }
    }

    /// Returns when a rule can be added: a run in a folder without a policy holds the place of one by an empty folder.
    fn rule_time(&self) -> RuleTime {
        match self.project.as_ref().is_some_and(|path| path.is_dir()) {
            true => RuleTime::AfterTheRun,
            false => RuleTime::Now,
        }
    }
}

/// Whether an ending is reported. As in a shell, an exit and a closed output pipe are not; a command with a terminal of its own learns of
/// such a pipe by a hang-up.
fn says_more_than_its_code(ending: &Ending, has_reader: impl FnOnce() -> bool) -> bool {
    match ending {
        Ending::Exited { shortage: None, .. } | Ending::Signalled(SIGPIPE) => false,
        Ending::Signalled(SIGHUP) => has_reader(),
        _ => true,
    }
}

fn sum_up(finished: &Finished, denied: &[String]) {
    let outcome = &finished.outcome;
    if says_more_than_its_code(&finished.ending, output::has_reader) {
        output::tell(&outcome.summary);
    }
    if let Some(models) = &outcome.models {
        output::tell(&output::models(models));
    }
    let requests_denied = outcome.requests.map_or(0, |requests| requests.denied);
    if requests_denied > 0 {
        let plural = if requests_denied == 1 { "request" } else { "requests" };
        output::tell(&format!(
            "{requests_denied} {plural} denied{} (lockgate audit show {})",
            listed(denied),
            finished.run
        ));
    }
}

/// Returns the first of the denied targets for a sentence. A notice may have been lost, and its target with it.
fn listed(denied: &[String]) -> String {
    let names = denied.iter().take(SUMMED_UP).cloned().collect::<Vec<_>>().join(", ");
    match denied.len() {
        0 => String::new(),
        1..=SUMMED_UP => format!(": {names}"),
        _ => format!(": {names}, …"),
    }
}

/// Reports a failed run as JSON; returns its exit code.
fn send_failure(error: &anyhow::Error, file: Option<&JsonFile>) -> u8 {
    let value = failure(error);
    if let Some(Err(unwritten)) = file.map(|file| file.write(&value)) {
        output::error(&unwritten, None);
    }
    // The exit code tells the failure in any case.
    output::report(&value.to_string());
    exit::code_and_remedy(error).0
}

fn failure(error: &anyhow::Error) -> serde_json::Value {
    let (code, hint) = exit::code_and_remedy(error);
    serde_json::json!({"exit_code": code, "error": output::said(error), "hint": hint})
}

/// Describes the outcome of a run as JSON.
fn outcome(finished: &Finished) -> Result<serde_json::Value, anyhow::Error> {
    let mut value = serde_json::to_value(&finished.outcome)?;
    value["run"] = finished.run.as_str().into();
    Ok(value)
}

/// Returns the outcome of a run whose file could not be written: the exit code is of that.
fn unwritten(mut outcome: serde_json::Value, error: &anyhow::Error) -> serde_json::Value {
    outcome["exit_code"] = exit::FAILED.into();
    outcome["error"] = output::said(error).into();
    outcome
}

#[cfg(test)]
mod tests {
    use runtime::Shortage;

    use super::*;

    #[test]
    fn a_variable_that_is_to_be_passed_on_and_is_not_set_is_told() {
        let names = ["SET", "UNSET", "GIVEN=1", "GIVEN", "RUN_TOKEN", "PROXY_URL", "PROXY_URL=http://a:1"];
        let flags = Spec { env: names.map(String::from).into(), ..Spec::default() };
        let mut layers = policy::Layers::default();
        let file = "env.pass = [\"ABSENT\", \"CONFIG_SECRET\"]";
        layers.push(policy::Origin::Named("file".into()), toml::from_str(file).unwrap());
        layers.push(policy::Origin::Flags, spec::request(&flags).unwrap().flags);
        let caller = Caller::new(1000, 1000, "/").with_env([("SET", ""), ("RUN_TOKEN", "")]);
        let notes = not_passed(&flags, &layers.compile().unwrap(), &caller);
        let first: Vec<_> = notes.iter().map(|note| note.split(':').next().unwrap()).collect();
        assert_eq!(first, ["CONFIG_SECRET is not passed on", "--env UNSET", "RUN_TOKEN is not passed on"]);
    }

    #[test]
    fn a_proxy_that_is_passed_over_is_told_once_and_where_a_host_was_not_reached() {
        let flags = Spec::default();
        let passed_over = Some("name it".to_owned());
        let mut telling = Telling {
            flags: &flags,
            providers: Vec::new(),
            project: None,
            passed_over,
            denied: Vec::new(),
            told: 0,
        };
        let mut told = |guard: &str| {
            let notice = serde_json::json!({
                "plane": "forward", "target": "a.example:443", "guard": guard, "outcome": "failed", "reason": "why",
                "hint": null,
            });
            telling.proxy_for(&serde_json::from_value(notice).unwrap())
        };
        assert_eq!(told("credential_unavailable"), None);
        assert_eq!(told("name_not_found").as_deref(), Some("name it"));
        assert_eq!(told("upstream_failed"), None);
    }

    #[test]
    fn an_outcome_whose_file_could_not_be_written_has_the_exit_code_of_that() {
        let ended = serde_json::json!({"run": "run-1", "exit_code": 0, "summary": "it exited with 0"});
        let told = unwritten(ended, &anyhow::anyhow!("failed to write out: it is a link"));
        assert_eq!((&told["exit_code"], &told["run"]), (&125.into(), &"run-1".into()));
        assert_eq!(told["error"], "failed to write out: it is a link");
    }

    #[test]
    fn denied_targets_are_listed_as_far_as_they_are_known() {
        let of = |names: &[&str]| listed(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!((of(&[]), of(&["a"])), (String::new(), ": a".into()));
        assert_eq!(
            (of(&["a", "b", "c"]), of(&["a", "b", "c", "d"])),
            (": a, b, c".into(), ": a, b, c, …".into())
        );
    }

    #[test]
    fn what_the_exit_code_says_alone_is_not_said_again() {
        for code in [0, 1, 141] {
            assert!(!says_more_than_its_code(&Ending::Exited { code, shortage: None }, || true), "{code}");
        }
        assert!(!says_more_than_its_code(&Ending::Signalled(13), || true));
        for has_reader in [false, true] {
            assert_eq!(says_more_than_its_code(&Ending::Signalled(1), || has_reader), has_reader);
        }
        let more = [
            // Reported even if the command succeeded.
            Ending::Exited { code: 0, shortage: Some(Shortage::Processes { refused: 1 }) },
            Ending::Signalled(11),
            Ending::Killed(13),
            Ending::NotFound { command: "exited".into(), hint: None },
        ];
        assert!(more.iter().all(|ending| says_more_than_its_code(ending, || false)), "{more:?}");
    }
}
