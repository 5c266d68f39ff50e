//! The standard streams of a container, attached through the engine.

use std::pin::Pin;
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::engine::Engine;
use super::engine_error::error_text;
use super::mux::CHUNK;

/// How many octets of a container's standard error are kept, for an error message.
const COMPLAINT: usize = 2000;

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// How long the engine may take to tell how a container ended, and the pause before it is asked again. Nobody who wants the run to end is
/// heard meanwhile, and where only the stream broke the container goes on.
const LONGEST_TOLD: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The streams of a container, attached before its start so that nothing is missed.
pub(super) struct Attached {
    engine: Engine,
    /// The container's id.
    pub(super) container: String,
    pub(super) output: Output,
    pub(super) input: Input,
}

impl Attached {
    /// Attaches to all three streams of a container.
    pub(super) async fn to(engine: &Engine, container: &str) -> Result<Self, String> {
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let attached =
            engine.api.attach_container(container, Some(options)).await.map_err(|e| error_text(&e))?;
        let (engine, container) = (engine.clone(), container.to_owned());
        Ok(Self { engine, container, output: attached.output, input: attached.input })
    }

    /// Returns by what the container ended: as it `said` itself, or else as the engine has it.
    pub(super) async fn ended_by<'a>(&self, said: &'a str) -> EndedBy<'a> {
        if !said.is_empty() {
            return EndedBy::Told(said);
        }
        let state = async {
            loop {
                // Its streams end a moment before it has ended.
                match self.engine.described(&self.container).await?.1["State"].take() {
                    state if state["Running"] == true => tokio::time::sleep(POLL_INTERVAL).await,
                    state => return Some(EndedBy::of(&state)),
                }
            }
        };
        tokio::time::timeout(LONGEST_TOLD, state).await.ok().flatten().unwrap_or(EndedBy::Unknown)
    }
}

/// By what a container ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBy<'a> {
    Told(&'a str),
    WantOfMemory,
    Kill,
    Unknown,
}

impl<'a> EndedBy<'a> {
    fn of(state: &Value) -> Self {
        /// 128 and the number of `SIGKILL`.
        const KILLED: i64 = 137;
        match state {
            state if state["ExitCode"] != KILLED => Self::Unknown,
            // Of any process that was in the container.
            state if state["OOMKilled"] == true => Self::WantOfMemory,
            _ => Self::Kill,
        }
    }

    /// Returns the cause of a run's failure by it. Podman may not know of what the kernel killed.
    pub(super) fn cause(self) -> &'a str {
        match self {
            Self::Told(cause) => cause,
            Self::WantOfMemory => "it was out of memory, which --memory sets",
            Self::Kill => {
                "its init was killed: by somebody, or because it was out of memory, which --memory sets"
            }
            Self::Unknown => "it ended and did not say how, or its engine has gone",
        }
    }
}

/// Returns the next octets of a container's standard output, and appends its standard error to `complaint`.
pub(super) async fn next_output(output: &mut Output, complaint: &mut String) -> Option<bytes::Bytes> {
    loop {
        match output.next().await? {
            Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => return Some(message),
            Ok(LogOutput::StdErr { message }) => {
                if complaint.len() < COMPLAINT {
                    complaint.push_str(&String::from_utf8_lossy(&message));
                }
            }
            Ok(LogOutput::StdIn { .. }) => {}
            Err(_) => return None,
        }
    }
}

/// How the carrying of a sidecar's streams ended.
#[derive(Default)]
pub(super) struct CarryEnd {
    /// What the container wrote to its standard error.
    pub(super) complaint: String,
    /// The stream to the sidecar's process on this machine, which stays open until the complaint is reported.
    _stream: Option<(OwnedReadHalf, OwnedWriteHalf)>,
}

/// Copies between the streams of the sidecar's container and its process on this machine, until one of the two closes.
pub(super) async fn carry(attached: Attached, stream: UnixStream) -> CarryEnd {
    let Attached { mut output, mut input, .. } = attached;
    let (mut from, mut to) = stream.into_split();
    let mut complaint = String::new();
    let out = async {
        while let Some(octets) = next_output(&mut output, &mut complaint).await {
            if to.write_all(&octets).await.is_err() {
                break;
            }
        }
    };
    let into = async {
        let mut buffer = vec![0; CHUNK];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if input.write_all(&buffer[..length]).await.is_err() || input.flush().await.is_err() {
                break;
            }
        }
    };
    tokio::select! { () = out => {}, () = into => {} }
    CarryEnd { complaint, _stream: Some((from, to)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::engine::{EngineAt, EngineKind};

    #[test]
    fn want_of_memory_is_told_from_a_kill() {
        let of = |is_oom: bool, code: i64| {
            EndedBy::of(&serde_json::json!({ "Running": false, "OOMKilled": is_oom, "ExitCode": code }))
        };
        assert_eq!(of(true, 137), EndedBy::WantOfMemory);
        assert_eq!(of(false, 137), EndedBy::Kill);
        assert_eq!(of(false, 125), EndedBy::Unknown);
        assert!(EndedBy::Kill.cause().contains("--memory"));
        // A process of the command was out of memory, and init ended otherwise.
        assert_eq!(of(true, 125), EndedBy::Unknown);
        assert_eq!(of(true, 0), EndedBy::Unknown);
    }

    #[test]
    fn what_init_said_is_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine");
        std::fs::write(&socket, "").unwrap();
        let at =
            EngineAt { socket, minor_version: 41, rootless: false, user: (0, 0), kind: EngineKind::Docker };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let attached = Attached {
                engine: Engine::at(&at).unwrap(),
                container: "agent".into(),
                output: Box::pin(futures_util::stream::empty()),
                input: Box::pin(tokio::io::sink()),
            };
            assert_eq!(attached.ended_by("no room").await.cause(), "no room");
            assert_eq!(attached.ended_by("").await, EndedBy::Unknown);
        });
    }
}
