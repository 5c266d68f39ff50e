//! Work with an engine in a process apart, for one that forks later: an asynchronous runtime leaves descriptors behind that a copy
//! of the process would have to know.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

const WHAT: &str = "the engine's client";

/// How long a question and its answer may take.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// How long taking away may: an engine of which hundreds of runs want that at once does it, and slowly.
pub(super) const LONGEST_REMOVAL: Duration = Duration::from_secs(120);

/// What went wrong, and what would help.
type Trouble = (String, Option<String>);

/// Carries work out to its end in a process of its own.
///
/// # Errors
/// What the work gives, by its name, and when there can be no such process.
pub(super) fn apart<T, W>(longest: Duration, work: impl FnOnce() -> W) -> Result<T, Error>
where
    T: Serialize + DeserializeOwned,
    W: Future<Output = Result<T, Error>>,
{
    let told =
        crate::apart::apart(WHAT, || serde_json::to_vec(&carry_out(longest, work)).unwrap_or_default())?;
    let answer: Result<T, Trouble> =
        serde_json::from_slice(&told).map_err(|error| Error::Start { what: WHAT, source: error.into() })?;
    answer.map_err(|(what, remedy)| Error::Refused { what, remedy })
}

fn carry_out<T, W: Future<Output = Result<T, Error>>>(
    longest: Duration,
    work: impl FnOnce() -> W,
) -> Result<T, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| (error.to_string(), None))?;
    let late = Error::Refused { what: "the engine says nothing, or says it too slowly".into(), remedy: None };
    let answer = runtime.block_on(async { tokio::time::timeout(longest, work()).await });
    answer.unwrap_or(Err(late)).map_err(|error| match error {
        Error::Refused { what, remedy } => (what, remedy),
        other => (other.to_string(), other.remedy()),
    })
}
