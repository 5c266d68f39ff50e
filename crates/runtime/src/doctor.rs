//! Examines what this machine offers a run beyond its sandbox: records, certificates, the clock, the disk. At last it tries a run.

use std::io::Write;
use std::path::{Path, PathBuf};

use policy::{Backend, Layers, RunSpec, Span};
use sandbox::{Ahead, Caller, Check, Verdict};

use crate::authorities;
use crate::ending::Ending;
use crate::error::Error;
use crate::key::{audit_key, audit_public_key};
use crate::plan_run::{RunRequest, refuse_unfit};
use crate::proxy_url::passed_over;
use crate::record::RunRecord;
use crate::report::{Finished, Report};
use crate::run::run;
use crate::run_lock::{Reaped, reap_dead};
use crate::settings::{Settings, SettingsRequest};
use crate::state::{StateDirectory, append, make_directory, state_error};

/// Below this free space a run's records are at risk.
const LITTLE: u64 = 64 << 20;
/// 2024-01-01: a clock before that has not been set.
const NOT_SET: i64 = 1_704_067_200;

/// The time limit of the run that is tried.
const TRIAL: Span = Span::from_secs(30);

/// Examines everything a run needs on this machine.
#[must_use]
pub fn doctor(caller: &Caller) -> Vec<Check> {
    let mut checks = sandbox::examine(caller);
    checks.extend(sandbox::examine_subordinate_ids(caller));
    checks.extend(sandbox::examine_engine(caller));
    checks.push(settings(caller));
    checks.push(workspace(caller));
    checks.push(store(caller));
    checks.push(certificates(caller));
    checks.push(clock());
    checks.push(disk(caller));
    // What is missing is named already, and how to mend it.
    if !checks.iter().any(Check::prevents_a_run) {
        checks.push(trial(caller));
    }
    checks
}

/// Tries a run of nothing in this folder, without anybody's settings: what no single check looks at would fail it as well. It is tried
/// once: afterwards nobody but root may look into this process, so the ids of another sandbox could not be mapped.
fn trial(caller: &Caller) -> Check {
    const WHAT: &str = "a run of `true` here";
    let mut told = Vec::new();
    let tried = StateDirectory::of(caller).and_then(|state| run_nothing(caller, state, &mut told));
    let with_told = |detail: String| {
        told.iter().fold(detail, |detail, told| format!("{detail}\nnote: {}", without_doctor(told)))
    };
    let lacks = |detail, remedy| Check::lacks("run", WHAT, Verdict::Missing, with_told(detail), remedy);
    match tried {
        Ok(finished) if has_worked(&finished) => Check::works("run", WHAT, with_told("works".into())),
        Ok(Finished { ending, .. }) => lacks(ending.to_string(), None),
        Err(error) => lacks(error.sentence(), error.remedy().map(|remedy| without_doctor(&remedy))),
    }
}

/// Whether the run that is tried has shown that runs work. A machine without its program has made the sandbox that looked for it.
fn has_worked(finished: &Finished) -> bool {
    matches!(finished.ending, Ending::Exited { code: 0, .. } | Ending::NotFound { .. })
}

/// Leaves out the advice to ask who says this.
fn without_doctor(text: &str) -> String {
    [sandbox::DOCTOR_TELLS, sandbox::SEE_DOCTOR].iter().fold(text.to_owned(), |text, it| text.replace(it, ""))
}

/// Runs `true`. A run that worked leaves no record: the latest run is one of the person's own.
fn run_nothing(caller: &Caller, state: StateDirectory, told: &mut Vec<String>) -> Result<Finished, Error> {
    // It might stand in the way of this run.
    told.extend(reap_dead(&state).iter().flat_map(Reaped::sentences));
    let mut spec = Layers::default().compile()?;
    (spec.timeout, spec.timeout_ceiling) = (TRIAL, None);
    let request = RunRequest {
        spec,
        command: vec!["true".into()],
        caller: caller.clone(),
        state: state.clone(),
        policy: None,
        ahead: Ahead::begin(),
    };
    let finished = run(request, &mut |report| {
        if let Report::Note(text) = report {
            told.push(text.to_owned());
        }
    })?;
    if has_worked(&finished) {
        let _ = RunRecord::remove(&state, &finished.run);
    }
    Ok(finished)
}

/// Checks the settings that a run here would read, and whether this machine has what they ask for.
fn settings(caller: &Caller) -> Check {
    let what = "settings and policy of this folder";
    let met = |settings: Settings| refuse_unmet(&settings.spec, caller).map(|()| settings);
    match loaded(caller).and_then(met) {
        Ok(Settings { project, spec, .. }) => {
            let found = project.map_or("no file of a project".to_owned(), |path| path.display().to_string());
            let proxy = passed_over(&spec, caller).map(|told| format!("; {told}")).unwrap_or_default();
            let found = found + &proxy;
            Check::works("settings", what, found)
        }
        Err(error) => {
            // A broken project file only concerns runs that read it.
            let without = loaded_without_project(caller).and_then(met).is_ok();
            let remedy = remedies(error.remedy(), without);
            Check::lacks("settings", what, Verdict::Missing, error.sentence(), remedy)
        }
    }
}

/// Refuses settings that ask for what cannot be had here: limits, a wiring, places inside. What is wrong with the folder is for its own
/// check.
fn refuse_unmet(spec: &RunSpec, caller: &Caller) -> Result<(), Error> {
    let state = StateDirectory::of(caller)?;
    // An engine has limits of its own.
    if spec.backend == Backend::Docker || refuse_unfit(of_the_folder(spec)?, caller, &state).is_err() {
        return Ok(());
    }
    refuse_unfit(spec.clone(), caller, &state)
}

/// Returns what settings say of the folder alone.
fn of_the_folder(spec: &RunSpec) -> Result<RunSpec, Error> {
    let RunSpec { workspace, workspace_mode, open, .. } = spec.clone();
    Ok(RunSpec { workspace, workspace_mode, open, ..Layers::default().compile()? })
}

/// Joins an error's own remedy with the advice to leave the file out, if that helps and is not said yet.
fn remedies(own: Option<String>, helps_without: bool) -> Option<String> {
    let is_said = own.as_ref().is_some_and(|own| own.contains("--no-project"));
    let without = (helps_without && !is_said).then(|| "--no-project leaves it out".to_owned());
    let all: Vec<String> = own.into_iter().chain(without).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// The check of the folder: where it fails alone, another folder is all that a run lacks.
pub const FOLDER_CHECK: &str = "this folder as a workspace";

/// Checks whether a run here may have this folder for its workspace.
fn workspace(caller: &Caller) -> Check {
    let what = FOLDER_CHECK;
    let spec = loaded(caller).or_else(|_| loaded_without_project(caller)).map(|settings| settings.spec);
    let state = StateDirectory::of(caller);
    let fit = spec.and_then(|spec| {
        let looked_at = caller.workspace(spec.workspace.as_deref());
        refuse_unfit(of_the_folder(&spec)?, caller, &state?).map(|()| looked_at)
    });
    match fit {
        Ok(looked_at) => Check::works("settings", what, looked_at.display().to_string()),
        Err(error) => Check::lacks("settings", what, Verdict::Missing, error.sentence(), error.remedy()),
    }
}

/// Loads the settings of a run here.
fn loaded(caller: &Caller) -> Result<Settings, Error> {
    load(&SettingsRequest::default(), caller)
}

/// Loads the settings of a run here that leaves the project's file out.
fn loaded_without_project(caller: &Caller) -> Result<Settings, Error> {
    load(&SettingsRequest { no_project: true, ..SettingsRequest::default() }, caller)
}

fn load(request: &SettingsRequest, caller: &Caller) -> Result<Settings, Error> {
    StateDirectory::of(caller).and_then(|state| Settings::load(request, caller, Some(&state)))
}

/// The usual size of a run's record, in octets.
const RECORD_SIZE: usize = 4096;

fn store(caller: &Caller) -> Check {
    let tried = StateDirectory::of(caller).and_then(|state| {
        make_directory(&state.runs())?;
        let probe = state.runs().join(".doctor");
        let written = append(&probe)?.write_all(&[0; RECORD_SIZE]);
        let _ = std::fs::remove_file(&probe);
        written.map_err(|source| state_error(&probe, source))?;
        audit_key(&state)?;
        audit_public_key(&state)?;
        Ok(state)
    });
    match tried {
        Ok(state) => Check::works("store", "run records and audit key", state.runs().display().to_string()),
        Err(error) => Check::lacks(
            "store",
            "run records and audit key",
            Verdict::Missing,
            error.sentence(),
            error.remedy(),
        ),
    }
}

fn certificates(caller: &Caller) -> Check {
    let what = "authorities of this machine";
    let files = egress::Files::open(caller.variable(authorities::VARIABLE)).map_err(Error::from);
    match files {
        Err(error) => {
            let (detail, remedy) = (error.sentence(), error.remedy());
            return Check::lacks("certificates", what, Verdict::Missing, detail, remedy);
        }
        Ok(files) if files.descriptor().is_some() => return Check::works("certificates", what, "found"),
        Ok(_) => {}
    }
    let detail = "none found; the built-in list of public authorities is used".into();
    Check::lacks(
        "certificates",
        what,
        Verdict::Weaker,
        detail,
        Some("install ca-certificates, or set SSL_CERT_FILE".into()),
    )
}

fn clock() -> Check {
    let now = jiff::Timestamp::now();
    if now.as_second() > NOT_SET {
        return Check::works("clock", "time", now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    }
    let detail = format!("it says {now}, so certificates cannot be judged");
    Check::lacks("clock", "time", Verdict::Weaker, detail, Some("set the clock".into()))
}

/// Returns the path itself or its nearest existing ancestor: that is the file system it is on, or will be.
fn nearest(place: &Path) -> PathBuf {
    place.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).into()
}

fn disk(caller: &Caller) -> Check {
    let place = StateDirectory::of(caller).map_or_else(|_| "/".into(), |state| nearest(state.directory()));
    match rustix::fs::statvfs(&place) {
        Ok(stat) if stat.f_bavail * stat.f_frsize < LITTLE => {
            let detail = format!("less than 64 MiB free at {}", place.display());
            Check::lacks("disk", "space for records", Verdict::Weaker, detail, Some("free some space".into()))
        }
        Ok(stat) => {
            let free = policy::ByteSize::from_bytes(stat.f_bavail * stat.f_frsize);
            let place = place.display();
            let detail = format!(
                "{free} free at {place}; a writable workspace is this machine's own disk and is not limited"
            );
            Check::works("disk", "space for records", detail)
        }
        Err(errno) => {
            let detail = format!("{}: {}", place.display(), std::io::Error::from(errno));
            Check::lacks("disk", "space for records", Verdict::Weaker, detail, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_that_is_told_is_the_one_that_was_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["here", "project", "lockgate"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::fs::write(root.join("lockgate/config.toml"), format!("workspace = {:?}", root.join("project")))
            .unwrap();
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let state = root.join("state");
        let check = workspace(&Caller::new(uid, gid, root.join("here")).with_env([
            ("XDG_CONFIG_HOME", root.to_str().unwrap()),
            ("XDG_STATE_HOME", state.to_str().unwrap()),
        ]));
        assert_eq!(check.detail, root.join("project").display().to_string());
    }

    #[test]
    fn what_settings_ask_for_in_vain_is_no_fault_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["here", "lockgate"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let caller = Caller::new(uid, gid, root.join("here")).with_env([
            ("XDG_CONFIG_HOME", root.to_str().unwrap()),
            ("XDG_STATE_HOME", root.join("state").to_str().unwrap()),
        ]);
        std::fs::write(root.join("lockgate/config.toml"), "[[mount]]\nsource = \"/srv\"\ntarget = \"/usr\"")
            .unwrap();
        let (asked, folder) = (settings(&caller), workspace(&caller));
        assert!(!folder.detail.contains("/usr"), "{}", folder.detail);
        // Root may be where no owners are mapped, as in a container.
        if folder.verdict == Verdict::Works {
            assert!(asked.verdict == Verdict::Missing && asked.detail.contains("/usr"), "{}", asked.detail);
        }
    }

    #[test]
    fn a_remedy_is_said_once() {
        let said = |own: &str, without| remedies(Some(own.into()), without).unwrap_or_default();
        assert_eq!(said("mend it", true), "mend it; --no-project leaves it out");
        assert_eq!(said("mend it", false), "mend it");
        assert_eq!(said("approve it, or `--no-project`", true), "approve it, or `--no-project`");
        assert_eq!(remedies(None, false), None);
    }

    #[test]
    fn the_doctor_sends_nobody_to_the_doctor() {
        let proc =
            sandbox::Failure { need: Some(sandbox::Need::UncoveredProc), ..sandbox::Failure::new("s", "") };
        let remedy = Error::from(sandbox::Error::Step(proc)).remedy().unwrap();
        assert!(remedy.contains("doctor"), "{remedy}");
        assert!(!without_doctor(&remedy).contains("doctor"), "{remedy}");
        let note = format!("memory is not limited{}", sandbox::SEE_DOCTOR);
        assert_eq!(without_doctor(&note), "memory is not limited");
    }

    #[test]
    fn the_disk_that_is_looked_at_is_that_of_the_records() {
        let folder = tempfile::tempdir().unwrap();
        let caller = |state: &Path| Caller {
            uid: 0,
            gid: 0,
            superuser: false,
            home: Some("/proc".into()),
            directory: "/".into(),
            environment: vec![("XDG_STATE_HOME".into(), state.into())],
        };
        let there = disk(&caller(&folder.path().join("not/made/yet")));
        assert!(there.detail.contains(&*folder.path().to_string_lossy()), "{}", there.detail);
        assert!(!there.detail.contains("not/made"), "{}", there.detail);
        // A file system without room at all.
        let full = disk(&caller(Path::new("/proc/none")));
        assert!(full.verdict == Verdict::Weaker && full.detail.contains("at /proc"), "{}", full.detail);
    }
}
