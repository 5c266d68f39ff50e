//! Runs work with an engine in a child process, since the caller forks later: an asynchronous runtime leaves descriptors behind
//! that a fork would inherit.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

const WHAT: &str = "the engine's client";

/// How long a request may take.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// How long a removal may take: an engine that hundreds of runs ask for that at once is slow.
pub(super) const LONGEST_REMOVAL: Duration = Duration::from_secs(120);

/// An error as the child reports it: what was refused, and the remedy.
type Refusal = (String, Option<String>);

/// Runs work to its end in a child process, and returns its result.
///
/// # Errors
/// When the work fails or takes too long, or the child cannot be started.
pub(super) fn apart<T, W>(longest: Duration, work: impl FnOnce() -> W) -> Result<T, Error>
where
    T: Serialize + DeserializeOwned,
    W: Future<Output = Result<T, Error>>,
{
    let output =
        crate::apart::apart(WHAT, || serde_json::to_vec(&carry_out(longest, work)).unwrap_or_default())?;
    let answer: Result<T, Refusal> =
        serde_json::from_slice(&output).map_err(|error| Error::Start { what: WHAT, source: error.into() })?;
    answer.map_err(|(what, remedy)| Error::Refused { what, remedy })
}

fn carry_out<T, W: Future<Output = Result<T, Error>>>(
    longest: Duration,
    work: impl FnOnce() -> W,
) -> Result<T, Refusal> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| (error.to_string(), None))?;
    let late = Error::Refused { what: "the engine says nothing, or says it too slowly".into(), remedy: None };
    let answer = runtime.block_on(async { tokio::time::timeout(longest, work()).await });
    answer.unwrap_or(Err(late)).map_err(|error| match error {
        Error::Refused { what, remedy } => (what, remedy),
        other => (other.to_string(), other.remedy()),
    })
}
