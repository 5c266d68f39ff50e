//! The only writer of the records file: a line per event, written at once. An event that cannot be written ends the servers, because a test
//! that reads an incomplete file would pass for the wrong reason.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockgate_world::Record;
use serde_json::Value;

use crate::error::Error;

/// A handle to the records file, cheap to clone.
#[derive(Clone)]
pub(crate) struct Recorder {
    file: Arc<File>,
    open: Arc<AtomicUsize>,
}

/// Counts a connection as long as it lives, because its end is recorded too.
pub(crate) struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The common part of every record of one connection: where something was reached, and by whom.
#[derive(Clone)]
pub(crate) struct Visit {
    pub(crate) server: &'static str,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

impl Recorder {
    /// Opens the file for appending, and makes it if necessary.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(Error::file(path))?;
        Ok(Self { file: Arc::new(file), open: Arc::default() })
    }

    /// Counts one more open connection.
    pub(crate) fn open_connection(&self) -> OpenConnection {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(&self.open))
    }

    /// Returns how many connections may still have something to record.
    pub(crate) fn open_connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Records an event of a connection or a datagram.
    pub(crate) fn visit(&self, visit: &Visit, event: &str, detail: Value) {
        self.write(visit.server, event, visit.peer.to_string(), visit.local.to_string(), detail);
    }

    /// Records an event whose ends are not both network addresses.
    pub(crate) fn write(&self, server: &str, event: &str, peer: String, local: String, detail: Value) {
        let record = Record { server: server.to_owned(), event: event.to_owned(), peer, local, detail };
        // One write to a file opened for appending: lines of concurrent writers do not mix (POSIX write, O_APPEND).
        let written = serde_json::to_string(&record).map_err(std::io::Error::from).and_then(|mut line| {
            line.push('\n');
            (&*self.file).write_all(line.as_bytes())
        });
        if let Err(error) = written {
            eprintln!("world: failed to record an event: {error}");
            std::process::exit(70);
        }
    }
}
