//! Resolves the name of a run.

use policy::RunId;
use runtime::{Error, RunList, RunRecord, StateDirectory, UnreadableRecord};

use crate::exit::Usage;
use crate::output;

/// Resolves an identifier, a unique prefix of one, or `latest`. A run whose record cannot be read is named as any other.
pub(crate) fn find(state: &StateDirectory, name: &str) -> Result<RunId, anyhow::Error> {
    if let Ok(run) = name.parse()
        && RunRecord::is_known(state, &run)
    {
        return Ok(run);
    }
    if name.is_empty() {
        return Err(Usage::error("no run is named: its identifier is empty", "lockgate runs ls names them"));
    }
    let all = RunList::read(state)?;
    let unreadable = all.unreadable.iter().map(|record| record.run.as_str());
    let ids = all.records.iter().map(|record| record.id.as_str());
    let found: Vec<&str> = match name {
        "latest" => {
            refuse_maybe_later(&all)?;
            refuse_untold_order(&all.records)?;
            ids.take(1).collect()
        }
        prefix => ids.chain(unreadable).filter(|id| id.starts_with(prefix)).collect(),
    };
    match found.as_slice() {
        [one] => Ok(one.parse()?),
        [] if name == "latest" => {
            Err(Usage::error("there is no run on record yet", "lockgate run -- CMD makes one"))
        }
        [] => Err(Usage::error(format!("there is no run `{name}`"), "lockgate runs ls names them")),
        many => Err(Usage::error(
            format!("{} runs begin with `{name}`", many.len()),
            "give more of the identifier",
        )),
    }
}

/// Refuses to call a run the latest where a record that cannot be read may be of a later one.
fn refuse_maybe_later(all: &RunList) -> Result<(), anyhow::Error> {
    let Some(record) = all.maybe_later() else { return Ok(()) };
    Err(Usage::nothing(
        format!("which run is the latest cannot be told: {}", unreadable(record)),
        "name the run you mean, as lockgate runs ls does",
    ))
}

/// Refuses to call the first of these runs the latest where the clock was set back, and nothing else tells their order.
pub(crate) fn refuse_untold_order(records: &[RunRecord]) -> Result<(), anyhow::Error> {
    let Some((first, others)) = records.split_first() else { return Ok(()) };
    let Some(other) = others.iter().find(|other| other.may_be_on_either_side_of(first)) else {
        return Ok(());
    };
    let ahead = if first.begins_in_the_future() { first } else { other };
    Err(Usage::nothing(
        format!(
            "which run is the latest cannot be told: run {} began at {}, and it is not that late yet; the clock was set back",
            ahead.id, ahead.started
        ),
        format!(
            "name the run you mean, as lockgate runs ls does. If that time will stay wrong, lockgate runs rm {0} takes the run away \
             (before that lockgate discard {0}, if it keeps changes)",
            ahead.id
        ),
    ))
}

/// Says what is wrong with a record that cannot be read, and what to do about it.
pub(crate) fn unreadable(UnreadableRecord { run, path, error, .. }: &UnreadableRecord) -> String {
    let (path, remedy) = (output::path(path), error.remedy());
    match error {
        Error::Record { why, .. } => {
            format!(
                "the record of run {run} cannot be read ({path}: {why}); lockgate runs rm {run} removes the run"
            )
        }
        error => {
            format!("failed to {error}{}", remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::command::state_below;

    /// Makes a state directory with the records of runs that have ended: their identifiers, and when they began.
    fn state_with(folder: &Path, runs: &[(&str, &str)]) -> StateDirectory {
        std::fs::create_dir_all(folder.join("lockgate/runs")).unwrap();
        for (run, started) in runs {
            let record = serde_json::json!({
                "id": run, "state": "ended", "started": started, "command": [], "workspace": "/",
                "backend": "linux", "notices": [], "plan": [],
            });
            std::fs::write(folder.join(format!("lockgate/runs/{run}.jsonl")), record.to_string()).unwrap();
        }
        state_below(folder)
    }

    #[test]
    fn none_is_the_latest_where_the_clock_was_set_back_and_nothing_else_tells() {
        let folder = tempfile::tempdir().unwrap();
        let runs = [("abcdefghjkmn", "2026-01-01T00:00:00Z"), ("bcdefghjkmna", "2999-01-02T00:00:00Z")];
        let refused = find(&state_with(folder.path(), &runs), "latest").unwrap_err().to_string();
        assert!(refused.contains("run bcdefghjkmna") && refused.contains("set back"), "{refused}");
        let alone = tempfile::tempdir().unwrap();
        assert!(find(&state_with(alone.path(), &runs[1..]), "latest").is_ok());
    }

    #[test]
    fn latest_is_no_older_run_because_the_newest_record_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let runs = [("abcdefghjkmn", "2026-01-01T00:00:00Z"), ("bcdefghjkmna", "2026-01-02T00:00:00Z")];
        let state = state_with(folder.path(), &runs);
        let path = |run: &str| folder.path().join(format!("lockgate/runs/{run}.jsonl"));
        assert_eq!(find(&state, "latest").unwrap().as_str(), "bcdefghjkmna");
        let octets = std::fs::metadata(path("bcdefghjkmna")).unwrap().len();
        std::fs::write(path("bcdefghjkmna"), vec![0; usize::try_from(octets).unwrap()]).unwrap();
        let refused = find(&state, "latest").unwrap_err().to_string();
        assert!(
            refused.contains("run bcdefghjkmna cannot be read") && refused.contains("runs rm bcdefghjkmna"),
            "{refused}"
        );
        // It is named as any other, and once it is removed the other is the latest.
        let damaged = find(&state, "bcd").unwrap();
        RunRecord::remove(&state, &damaged).unwrap();
        assert_eq!(find(&state, "latest").unwrap().as_str(), "abcdefghjkmn");
        // A damaged record that is older than the latest stands in nobody's way.
        std::fs::write(path("cdefghjkmnab"), "\0").unwrap();
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
        std::fs::File::options()
            .write(true)
            .open(path("cdefghjkmnab"))
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        assert_eq!(find(&state, "latest").unwrap().as_str(), "abcdefghjkmn");
        // A pipe is not waited for.
        rustix::fs::mkfifoat(rustix::fs::CWD, path("defghjkmnabc"), rustix::fs::Mode::RWXU).unwrap();
        assert!(find(&state, "latest").unwrap_err().to_string().contains("no regular file"));
    }
}
