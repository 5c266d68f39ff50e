//! `lockgate audit verify`: which chains are looked at, and whether each is what it should be.

use std::path::{Path, PathBuf};

use egress::{Entry, VerifyError, VerifyReport};
use policy::RunId;
use runtime::{RunRecord, RunState, StateDirectory};

use super::audit_lines::{lines, open};
use super::audit_missing::{REMOVED, about, never_asked, recorded_companions};
use super::audit_verdict::{Chain, Verdict};
use super::run_name::find;
use crate::exit::{Done, Usage};
use crate::output::{self, Form};

/// Whose chains are verified.
enum Subject {
    /// A run of this machine's: all that its companions recorded is here.
    Run(RunId),
    /// A file that may have been taken anywhere, alone or with those of its companions.
    File,
}

/// Verifies the chain of a run or of a file, and those of its companions.
pub(super) fn verify(state: &StateDirectory, run: &str, key: Option<String>, form: Form) -> Done {
    let mut verdict = Verdict::new(form);
    let done = examine(state, run, key, &mut verdict);
    verdict.answer(done.is_ok())?;
    done.map(|()| 0)
}

/// Looks at each chain in turn, up to the first that does not hold.
fn examine(
    state: &StateDirectory,
    run: &str,
    key: Option<String>,
    verdict: &mut Verdict,
) -> Result<(), anyhow::Error> {
    key.as_deref().map_or(Ok(()), refuse_malformed)?;
    // A word alone is a run's: what a command has left under such a name in the current folder is not asked.
    let (own, subject) = if !run.contains('/') && Path::new(run).extension().is_none() {
        let run = find(state, run)?;
        if let Some(why) = never_asked(state, &run)? {
            verify_companions(state, &run, key, verdict)?;
            return Err(verdict.no(format!("there is no audit of its command to verify: run {run} {why}")));
        }
        let chain = Chain::of_run(state.audit(&run));
        if about(&chain.path)?.is_none() {
            return Err(verdict.broken(&chain, REMOVED));
        }
        (chain, Subject::Run(run))
    } else if Path::new(run).is_file() {
        (Chain::of_run(run.into()), Subject::File)
    } else {
        let how = if Path::new(run).exists() { "is no file" } else { "is not there" };
        return Err(Usage::error(
            format!("`{}` {how}", output::plain(run)),
            "name a run, or the path of an audit file",
        ));
    };
    let beside = beside(&own.path)?;
    let mut companions: Vec<_> =
        beside.iter().cloned().map(|(name, path)| Chain { companion: Some(name), path }).collect();
    if let Subject::Run(run) = &subject {
        refuse_removed(state, run, &beside, verdict)?;
        for chain in std::iter::once(&own).chain(&companions) {
            refuse_others(chain, run, verdict)?;
        }
    }
    let key = key_or_own(state, key)?;
    let record = run_of(state, run);
    let report = check_chain(&own, key.trim(), was_closed(record.as_ref(), &own), verdict)?;
    let unchecked = match subject {
        Subject::Run(_) => Vec::new(),
        Subject::File => leave_unnamed(&own, &mut companions)?,
    };
    verdict.holds(&own, &report, &unchecked)?;
    for chain in &companions {
        let report = check_chain(chain, key.trim(), was_closed(record.as_ref(), chain), verdict)?;
        verdict.holds(chain, &report, &[])?;
    }
    refuse_unnamed(&own, &companions, &unchecked, verdict)
}

/// Returns what lies beside an audit and has the name of a companion's.
fn beside(audit: &Path) -> Result<Vec<(String, PathBuf)>, anyhow::Error> {
    runtime::companion_audits_beside(audit).map_err(|error| {
        anyhow::anyhow!("failed to look for its companions' audits beside {}: {error}", audit.display())
    })
}

/// Verifies what there is of a run whose command never began: the chains of its companions, none of which any other chain names.
fn verify_companions(
    state: &StateDirectory,
    run: &RunId,
    key: Option<String>,
    verdict: &mut Verdict,
) -> Result<(), anyhow::Error> {
    let recorded = recorded_companions(state, run)?;
    if recorded.is_empty() {
        return refuse_removed(state, run, &[], verdict);
    }
    let key = key_or_own(state, key)?;
    let record = RunRecord::read(state, run).ok();
    for (name, path) in &recorded {
        let chain = &Chain { companion: Some(name.clone()), path: path.clone() };
        refuse_others(chain, run, verdict)?;
        let report = check_chain(chain, key.trim(), was_closed(record.as_ref(), chain), verdict)?;
        verdict.holds(chain, &report, &[])?;
    }
    refuse_removed(state, run, &recorded, verdict)
}

/// Refuses that a companion's audit is not there which its run, as it failed, had begun.
fn refuse_removed(
    state: &StateDirectory,
    run: &RunId,
    recorded: &[(String, PathBuf)],
    verdict: &mut Verdict,
) -> Result<(), anyhow::Error> {
    let begun = RunRecord::read(state, run).map(|record| record.audits).unwrap_or_default();
    let mut begun = begun.into_iter().filter_map(|audit| audit.companion);
    match begun.find(|name| recorded.iter().all(|(known, _)| known != name)) {
        Some(name) => {
            let removed = Chain { companion: Some(name), path: state.audit(run) };
            Err(verdict.broken(&removed, REMOVED))
        }
        None => Ok(()),
    }
}

/// Whether the record of its run says that a chain was closed.
fn was_closed(record: Option<&RunRecord>, chain: &Chain) -> bool {
    record.is_some_and(|record| {
        let closed = record.audits.iter().any(|audit| audit.closed && audit.companion == chain.companion);
        closed || record.state == RunState::Ended
    })
}

fn key_or_own(state: &StateDirectory, key: Option<String>) -> Result<String, anyhow::Error> {
    Ok(key.map_or_else(|| runtime::audit_public_key(state), Ok)?)
}

/// Leaves out what lies beside a file and is no chain that it names, such as an older file of the same name. Returns the companions
/// whose chains do not lie there.
fn leave_unnamed(own: &Chain, companions: &mut Vec<Chain>) -> Result<Vec<String>, anyhow::Error> {
    let mut named: Vec<_> =
        egress::named_companions(open(&own.path)?)?.into_iter().map(|named| named.name).collect();
    companions.retain(|chain| chain.companion.as_ref().is_some_and(|name| named.contains(name)));
    named.retain(|name| companions.iter().all(|chain| chain.companion.as_ref() != Some(name)));
    Ok(named)
}

/// Parses the public key; an invalid key is a usage error and says nothing about the audit.
fn refuse_malformed(key: &str) -> Result<(), anyhow::Error> {
    match egress::verify(std::io::empty(), key.trim()) {
        Err(VerifyError::Key) => Err(Usage::error(
            format!("--key `{}` is not a public key", output::plain(key)),
            "write its 64 hexadecimal digits in lower case, or leave it out for this machine's own",
        )),
        _ => Ok(()),
    }
}

/// Compares the companions that a run's chain names, but those that are left unchecked, with the files that are there.
fn refuse_unnamed(
    own: &Chain,
    companions: &[Chain],
    unchecked: &[String],
    verdict: &mut Verdict,
) -> Result<(), anyhow::Error> {
    let mut named = egress::named_companions(open(&own.path)?)?;
    named.retain(|companion| !unchecked.contains(&companion.name));
    for chain in companions {
        let at = named.iter().position(|it| Some(&it.name) == chain.companion.as_ref());
        let first = egress::first_hash(open(&chain.path)?)?;
        if at.map(|at| named.swap_remove(at).first) != first {
            return Err(verdict.broken(chain, "it is not the one that the run's audit names"));
        }
    }
    match named.into_iter().next() {
        Some(missing) => {
            // What names it is all there is of it.
            let missing = Chain { companion: Some(missing.name), path: own.path.clone() };
            Err(verdict.broken(&missing, "the run's audit names it, and it is not there"))
        }
        None => Ok(()),
    }
}

/// Refuses a valid chain that belongs to another run.
fn refuse_others(chain: &Chain, run: &RunId, verdict: &mut Verdict) -> Result<(), anyhow::Error> {
    let path = &chain.path;
    let first = match lines(path)?.next() {
        Some(Ok(first)) => first,
        Some(Err(error)) if error.is::<Usage>() => return Err(verdict.broken(chain, &error.to_string())),
        Some(Err(error)) => return Err(error),
        None => return Err(verdict.broken(chain, "it is empty")),
    };
    let why = match serde_json::from_str::<Entry>(&first) {
        Ok(entry) if entry.run == run.as_str() => return Ok(()),
        Ok(entry) => format!("{} is of run {}", path.display(), output::plain(&entry.run)),
        Err(error) => format!("the first record of {} is damaged: {error}", path.display()),
    };
    Err(verdict.broken(chain, &why))
}

/// Finds the record of the named run, if there is one.
fn run_of(state: &StateDirectory, run: &str) -> Option<RunRecord> {
    RunRecord::read(state, &find(state, run).ok()?).ok()
}

/// Refuses a valid chain that was begun for another than the one in whose place it lies. A companion's may lie alone, under a name that
/// ends in the companion's.
fn refuse_exchanged(chain: &Chain, verdict: &mut Verdict) -> Result<(), anyhow::Error> {
    let first = lines(&chain.path)?.next().transpose()?;
    let opened = first.and_then(|first| serde_json::from_str::<Entry>(&first).ok());
    let named = opened.as_ref().and_then(Entry::opened_for);
    let is_alone = |name: &str| {
        let stem = chain.path.file_stem().and_then(|stem| stem.to_str());
        chain.companion.is_none() && stem.is_some_and(|stem| stem.ends_with(&format!(".{name}")))
    };
    if named == chain.companion.as_deref() || named.is_some_and(is_alone) {
        return Ok(());
    }
    let whose =
        named.map_or_else(|| "the command".into(), |name| format!("companion {}", output::plain(name)));
    Err(verdict.broken(chain, &format!("{} has the chain of {whose}", chain.path.display())))
}

fn check_chain(
    chain: &Chain,
    key: &str,
    ended: bool,
    verdict: &mut Verdict,
) -> Result<VerifyReport, anyhow::Error> {
    let report = match egress::verify(open(&chain.path)?, key) {
        Ok(report) => report,
        Err(VerifyError::Empty) => return Err(verdict.broken(chain, "it is empty")),
        // What could not be read was neither found to hold nor found to be altered.
        Err(error @ VerifyError::Read(_)) => {
            return Err(anyhow::anyhow!("failed to {error}"));
        }
        Err(error) => return Err(verdict.broken(chain, &error.to_string())),
    };
    refuse_exchanged(chain, verdict)?;
    if ended && !report.closed {
        return Err(verdict.broken(chain, "its run ended, and it does not: records were cut off at its end"));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::state_below;

    const RUN: &str = "abcdefghjkmn";

    #[test]
    fn a_companion_is_compared_by_its_name_and_told_without_control_characters() {
        let folder = tempfile::tempdir().unwrap();
        let own = Chain::of_run(folder.path().join("own.jsonl"));
        let hash = "a".repeat(64);
        let opened = serde_json::json!({
            "seq": 0, "ts": "T", "run": RUN, "plane": "gate", "action": "companion", "target": "d\u{1b}b",
            "outcome": "allowed", "sent": 0, "received": 0, "us": 0, "prev": "0", "image": "sha256:1", "chain": hash,
        });
        std::fs::write(&own.path, format!("{opened}\n")).unwrap();
        let path = folder.path().join("companion.jsonl");
        let mut first = opened.clone();
        first["hash"] = hash.as_str().into();
        std::fs::write(&path, format!("{first}\n")).unwrap();
        let why = |companions: &[Chain]| {
            let verdict = &mut Verdict::new(Form::Text);
            refuse_unnamed(&own, companions, &[], verdict).map_err(|error| error.to_string())
        };
        let named = |name: &str| Chain { companion: Some(name.into()), path: path.clone() };
        let shown = named("d\u{1b}b").whose();
        assert!(shown.starts_with("companion d") && !shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(why(&[named("d\u{1b}b")]), Ok(()));
        let other = why(&[named(shown.trim_start_matches("companion ").trim_end_matches(": "))]).unwrap_err();
        assert!(other.ends_with("it is not the one that the run's audit names"), "{other}");
        assert_eq!(
            why(&[]).unwrap_err(),
            format!("{shown}the audit does not hold: the run's audit names it, and it is not there")
        );
    }

    #[test]
    fn a_file_is_verified_with_the_companions_that_lie_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = Chain::of_run(folder.path().join("kept.jsonl"));
        let naming = |name: &str| {
            let entry = serde_json::json!({
                "seq": 0, "ts": "T", "run": RUN, "plane": "gate", "action": "companion", "target": name,
                "outcome": "allowed", "sent": 0, "received": 0, "us": 0, "prev": "0", "image": "sha256:1",
                "chain": "a".repeat(64),
            });
            format!("{entry}\n")
        };
        std::fs::write(&own.path, naming("db") + &naming("cache")).unwrap();
        // An older file of the same name is no companion's.
        for name in ["kept.db.jsonl", "kept.1.jsonl", "other.cache.jsonl"] {
            std::fs::write(folder.path().join(name), "{}\n").unwrap();
        }
        let beside = beside(&own.path).unwrap();
        assert_eq!(beside.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["1", "db"]);
        let mut companions: Vec<_> =
            beside.into_iter().map(|(name, path)| Chain { companion: Some(name), path }).collect();
        let unchecked = leave_unnamed(&own, &mut companions).unwrap();
        assert_eq!(unchecked, ["cache"]);
        assert!(matches!(&companions[..], [Chain { companion: Some(name), .. }] if name == "db"));
        let verdict = &mut Verdict::new(Form::Text);
        assert_eq!(refuse_unnamed(&own, &[], &["db".into(), "cache".into()], verdict).ok(), Some(()));
        assert!(refuse_unnamed(&own, &[], &unchecked, verdict).is_err(), "the one that is there is compared");
    }

    #[test]
    fn a_chain_that_cannot_be_read_has_no_verdict() {
        // A regular file without a single octet that can be read: nothing is mapped at address 0.
        let chain = Chain::of_run("/proc/self/mem".into());
        let mut verdict = Verdict::new(Form::Json);
        let error = check_chain(&chain, &"a".repeat(64), true, &mut verdict).unwrap_err();
        assert!(error.to_string().starts_with("failed to read the audit: "), "{error}");
        assert_eq!(crate::exit::code_and_remedy(&error).0, crate::exit::FAILED);
        assert!(!verdict.json(false).unwrap().contains("why"), "{}", verdict.json(false).unwrap());
    }

    #[test]
    fn a_chain_holds_in_its_own_place_alone() {
        let folder = tempfile::tempdir().unwrap();
        let judged = |file: &str, companion: Option<&str>, target: &str| {
            let entry = serde_json::json!({
                "seq": 0, "ts": "T", "run": RUN, "plane": "gate", "action": "open", "target": target,
                "outcome": "allowed", "sent": 0, "received": 0, "us": 0, "prev": "0",
            });
            let chain = Chain { companion: companion.map(str::to_owned), path: folder.path().join(file) };
            std::fs::write(&chain.path, format!("{entry}\n")).unwrap();
            let found = refuse_exchanged(&chain, &mut Verdict::new(Form::Text));
            found.map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        assert_eq!(judged("run.jsonl", None, ""), "");
        assert_eq!(judged("run.db.jsonl", Some("db"), "db"), "");
        assert_eq!(judged("run.db.jsonl", None, "db"), "", "a file of its own");
        assert!(judged("run.jsonl", None, "db").ends_with("run.jsonl has the chain of companion db"));
        assert!(judged("run.cache.jsonl", None, "db").ends_with("has the chain of companion db"));
        assert!(judged("run.cache.jsonl", Some("cache"), "db").ends_with("has the chain of companion db"));
        assert!(judged("run.db.jsonl", Some("db"), "").ends_with("has the chain of the command"));
    }

    #[test]
    fn a_key_that_is_none_is_told_as_such() {
        for key in ["zz", "", &"A".repeat(64), &"a".repeat(63)] {
            assert!(refuse_malformed(key).unwrap_err().downcast_ref::<Usage>().is_some(), "{key}");
        }
        assert!(refuse_malformed(&"a".repeat(64)).is_ok());
    }

    #[test]
    fn what_a_run_that_failed_had_begun_is_there_and_as_its_sidecars_left_it() {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (state_below(folder.path()), RUN.parse::<RunId>().unwrap());
        std::fs::create_dir_all(folder.path().join("lockgate/runs")).unwrap();
        std::fs::create_dir_all(state.audit(&run).parent().unwrap()).unwrap();
        let (signing, document) = egress::SigningKey::generate().unwrap();
        let of_db = state.audit(&run).with_file_name(format!("{RUN}.db.jsonl"));
        let write = |path: &Path, companion: Option<&str>| {
            let file = std::fs::File::create(path).unwrap();
            let key = egress::SigningKey::from_pkcs8(&document).unwrap();
            let options =
                egress::GateOptions::new(policy::Policy::default(), policy::Spending::default(), run.clone());
            let companion = companion.map(|name| policy::Hostname::parse(name).unwrap());
            let audit = Some((std::sync::Arc::new(file), key));
            let gate = egress::Gate::open(egress::GateOptions { audit, companion, ..options }).unwrap();
            gate.close().unwrap();
        };
        let cut = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap();
            std::fs::write(path, text.split_inclusive('\n').next().unwrap()).unwrap();
        };
        let found = |audits: serde_json::Value| {
            let record = serde_json::json!({
                "id": RUN, "state": "failed", "started": "", "command": [], "workspace": "/", "backend": "linux",
                "notices": [], "plan": [], "audits": audits,
            });
            std::fs::write(folder.path().join(format!("lockgate/runs/{RUN}.jsonl")), record.to_string())
                .unwrap();
            let found = examine(&state, RUN, Some(signing.public()), &mut Verdict::new(Form::Json));
            found.map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        let own = |closed: bool| serde_json::json!([{ "closed": closed }]);
        write(&state.audit(&run), None);
        assert_eq!(found(own(true)), "");
        cut(&state.audit(&run));
        assert!(found(own(true)).ends_with("records were cut off at its end"));
        assert_eq!(found(own(false)), "", "its sidecar was killed");
        std::fs::remove_file(state.audit(&run)).unwrap();
        assert!(found(own(false)).ends_with(REMOVED));
        // Its command never began, and a companion's sidecar had.
        let companions = || found(serde_json::json!([{ "companion": "db", "closed": true }]));
        write(&of_db, Some("db"));
        assert!(companions().contains("was over before its command began"));
        cut(&of_db);
        assert!(companions().ends_with("records were cut off at its end"));
        std::fs::remove_file(&of_db).unwrap();
        assert!(companions().starts_with("companion db: ") && companions().ends_with(REMOVED));
        // The companion's in the place of the command's.
        write(&state.audit(&run), Some("db"));
        assert!(found(own(true)).ends_with("has the chain of companion db"));
    }

    #[test]
    fn whatever_is_found_is_one_object_that_holds_only_where_all_of_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let (state, run) = (state_below(folder.path()), RUN.parse::<RunId>().unwrap());
        std::fs::create_dir_all(folder.path().join("lockgate/runs")).unwrap();
        std::fs::create_dir_all(state.audit(&run).parent().unwrap()).unwrap();
        let found = |became: &str| {
            let record = serde_json::json!({
                "id": RUN, "state": became, "started": "", "command": [], "workspace": "/", "backend": "linux",
                "notices": [], "plan": [],
            });
            std::fs::write(folder.path().join(format!("lockgate/runs/{RUN}.jsonl")), record.to_string())
                .unwrap();
            let mut verdict = Verdict::new(Form::Json);
            let error = examine(&state, RUN, Some("a".repeat(64)), &mut verdict).unwrap_err().to_string();
            let json: serde_json::Value = serde_json::from_str(&verdict.json(false).unwrap()).unwrap();
            assert_eq!(json["holds"], false, "{json}");
            let why = json["why"].as_str().unwrap();
            assert!(error.ends_with(why.trim_start_matches("companion db: ")), "{error}: {json}");
            json
        };
        let json = found("failed");
        assert!(json["why"].as_str().unwrap().contains("made no requests"), "{json}");
        assert_eq!(found("ended")["why"], REMOVED);
        std::fs::write(state.audit(&run).with_file_name(format!("{RUN}.db.jsonl")), "{}\n").unwrap();
        let json = found("failed");
        assert!(json["companions"][0]["name"] == "db" && json["companions"][0]["holds"] == false, "{json}");
        assert_eq!(json["companions"].as_array().unwrap().len(), 1, "{json}");
    }
}
