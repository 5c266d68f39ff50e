//! The shim's conversation with both containers of a run, from the brief to the sidecar's last words.

use std::os::fd::OwnedFd;
use std::time::Duration;

use super::acquire::Carried;
use super::agent_session::{AgentSession, Ended};
use super::attached::CarryEnd;
use super::replenish::Replenisher;
use crate::failure::Failure;

/// How long the sidecar's container may take over its last output.
const LAST_WORD: Duration = Duration::from_secs(5);

/// How a session ended, and with the sidecar's end how that ended.
pub(super) struct Conversation {
    pub(super) ended: Ended,
    pub(super) last_words: Option<CarryEnd>,
}

/// What a run whose conversation failed has open, the sidecar with it.
pub(super) struct Open {
    pub(super) session: AgentSession,
    pub(super) stand_in: OwnedFd,
    pub(super) sidecar: Carried,
}

/// The failure of a run, with what is still open of it.
pub(super) struct Lost {
    pub(super) failure: Failure,
    pub(super) open: Option<Open>,
}

impl From<Failure> for Lost {
    fn from(failure: Failure) -> Self {
        Self { failure, open: None }
    }
}

/// Carries a session on until it or the sidecar's container has ended. The replenisher hears when the command begins.
pub(super) async fn converse(
    session: &mut AgentSession,
    sidecar: &mut Carried,
    replenisher: Option<&Replenisher>,
) -> Result<Conversation, Failure> {
    let mut begun = false;
    loop {
        tokio::select! {
            end = &mut *sidecar => {
                return Ok(Conversation { ended: Ended::SidecarGone, last_words: Some(end.unwrap_or_default()) });
            }
            ended = session.advance() => match ended? {
                None if session.has_begun() && !begun => {
                    begun = true;
                    replenisher.into_iter().for_each(Replenisher::announce_begun);
                }
                None => {}
                Some(ended) => return Ok(Conversation { ended, last_words: None }),
            },
        }
    }
}

/// Closes a session and the socket to the stand-in, and returns what the sidecar's container wrote to its standard error.
pub(super) async fn close(
    session: AgentSession,
    stand_in: OwnedFd,
    sidecar: Carried,
    last_words: Option<CarryEnd>,
) -> String {
    let _attached = session.close().await;
    // At the hang-up, the stand-in asks the sidecar to end, and closes the stream once it has.
    let _ = rustix::net::shutdown(&stand_in, rustix::net::Shutdown::Both);
    drop(stand_in);
    let end = match last_words {
        Some(end) => end,
        None => {
            let end = tokio::time::timeout(LAST_WORD, sidecar).await;
            end.ok().and_then(Result::ok).unwrap_or_default()
        }
    };
    end.complaint
}
