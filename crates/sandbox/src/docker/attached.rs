//! A container's standard streams, through the engine.

use std::pin::Pin;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::query_parameters::AttachContainerOptionsBuilder;
use futures_util::{Stream, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::engine::Engine;
use super::engine_error::told;
use super::mux::CHUNK;

/// How much of what a container says on its standard error is kept, for an error of ours.
const COMPLAINT: usize = 2000;

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// A container that was attached to before it is started, so that nothing of it is missed.
pub(super) struct Attached {
    pub(super) output: Output,
    pub(super) input: Input,
}

impl Attached {
    pub(super) async fn to(engine: &Engine, name: &str) -> Result<Self, String> {
        let options = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let attached = engine.api.attach_container(name, Some(options)).await.map_err(|e| told(&e))?;
        Ok(Self { output: attached.output, input: attached.input })
    }
}

/// The next octets of a container's standard output; what it says on its standard error goes to `complaint`.
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

/// What a container said on its standard error, and a line that is to be let go of only when that has been told.
pub(super) type Ended = (String, (OwnedReadHalf, OwnedWriteHalf));

/// Carries the line of the sidecar's container to its process on this machine and back, until one of them lets go.
pub(super) async fn carry(attached: Attached, line: UnixStream) -> Ended {
    let Attached { mut output, mut input } = attached;
    let (mut from, mut to) = line.into_split();
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
    (complaint, (from, to))
}
