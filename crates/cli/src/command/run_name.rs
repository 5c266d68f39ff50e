//! Resolves the name of a run.

use policy::RunId;
use runtime::{RunRecord, StateDirectory};

use crate::exit::Usage;

/// Resolves an identifier, a unique prefix of one, or `latest`.
pub(crate) fn find(state: &StateDirectory, name: &str) -> Result<RunId, anyhow::Error> {
    if let Ok(run) = name.parse()
        && RunRecord::is_known(state, &run)
    {
        return Ok(run);
    }
    if name.is_empty() {
        return Err(Usage::error("no run is named: its identifier is empty", "lockgate runs ls names them"));
    }
    let all = RunRecord::list(state)?;
    let found: Vec<&RunRecord> = match name {
        "latest" => all.first().into_iter().collect(),
        prefix => all.iter().filter(|record| record.id.starts_with(prefix)).collect(),
    };
    match found.as_slice() {
        [one] => Ok(one.id.parse()?),
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
