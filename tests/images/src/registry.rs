//! Debian's `docker-registry`, started on a new port with new storage, and images pushed to it by its HTTP API.
//! It is killed when it is dropped; the storage goes with the last registry that uses it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tempfile::TempDir;

use crate::certificate::Certificate;
use crate::image::{INDEX, Image};
use crate::layer::Blob;
use crate::message::{Answer, send};

/// The user who may read a registry with [`Protection::Password`].
pub const USER: &str = "lockgate";
/// The user's password.
pub const PASSWORD: &str = "tr0ub4dor-and-7-horses";
/// The user and password as `htpasswd -B` writes them: the registry accepts bcrypt alone.
const HTPASSWD: &str = "lockgate:$2y$05$abcdefghijklmnopqrstuui05KdzSWqqjXUq5oTrJlqTS0HtKkm46\n";
/// The time limit until it listens.
const START: Duration = Duration::from_secs(30);

/// What a registry requires of its clients.
#[derive(Clone, Copy, Debug)]
pub enum Protection<'a> {
    /// Nothing.
    None,
    /// A user and a password.
    Password,
    /// TLS.
    Tls(&'a Certificate),
}

/// A registry that is running.
#[derive(Debug)]
pub struct Registry {
    storage: Arc<TempDir>,
    #[expect(dead_code, reason = "holding it is what it is for")]
    settings: TempDir,
    child: Child,
    address: SocketAddr,
}

impl Registry {
    /// Starts an empty registry that is open to everybody.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn open() -> Self {
        let storage = tempfile::Builder::new().prefix("lockgate-registry-").tempdir().expect("a directory");
        Self::start(Arc::new(storage), Protection::None)
    }

    /// Starts another registry with the same images.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn again(&self, protection: Protection<'_>) -> Self {
        Self::start(Arc::clone(&self.storage), protection)
    }

    fn start(storage: Arc<TempDir>, protection: Protection<'_>) -> Self {
        let settings = tempfile::Builder::new().prefix("lockgate-registry-").tempdir().expect("a directory");
        let mut http = String::from("http: {addr: '127.0.0.1:0', secret: none");
        let mut auth = String::new();
        match protection {
            Protection::None => {}
            Protection::Password => {
                let path = settings.path().join("htpasswd");
                fs::write(&path, HTPASSWD).expect("a file");
                auth = format!("auth: {{htpasswd: {{realm: test, path: '{}'}}}}\n", path.display());
            }
            Protection::Tls(certificate) => {
                let (server, key) = (certificate.server(), certificate.key());
                http += &format!(", tls: {{certificate: '{}', key: '{}'}}", server.display(), key.display());
            }
        }
        let text = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: '{}'}}}}\n{http}}}\n{auth}",
            storage.path().display()
        );
        let config = settings.path().join("config.yml");
        fs::write(&config, text).expect("a file");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("`ready` was asked for a registry first");
        let log = child.stderr.take().expect("it is piped");
        let (sender, receiver) = channel();
        std::thread::spawn(move || listen(BufReader::new(log), &sender));
        let address = receiver.recv_timeout(START);
        if address.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        Self { storage, settings, child, address: address.expect("the registry does not listen") }
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path of the file that contains a blob.
    ///
    /// # Panics
    /// When `digest` is not a digest.
    #[must_use]
    pub fn file(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").expect("a digest");
        let within = format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
        self.storage.path().join(within)
    }

    /// Pushes an image.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn push(&self, repository: &str, tag: &str, image: &Image) {
        image.blobs().for_each(|blob| self.push_blob(repository, blob));
        self.push_manifest(repository, tag, &image.manifest);
    }

    /// Pushes an index of several images, each known by its digest alone.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn push_index(&self, repository: &str, tag: &str, index: &Blob, images: &[&Image]) {
        for image in images {
            self.push(repository, &image.manifest.digest, image);
        }
        self.push_manifest(repository, tag, index);
    }

    fn push_blob(&self, repository: &str, blob: &Blob) {
        let begun = self.ask(&format!("POST /v2/{repository}/blobs/uploads/"), &[], b"", 202);
        let place = begun.head.field("location").expect("a place for the blob");
        let path = place.strip_prefix(&format!("http://{}", self.address)).unwrap_or(place);
        let kind = [("content-type", "application/octet-stream")];
        self.ask(&format!("PUT {path}&digest={}", blob.digest), &kind, &blob.octets, 201);
    }

    fn push_manifest(&self, repository: &str, tag: &str, manifest: &Blob) {
        let parsed: serde_json::Value = serde_json::from_slice(&manifest.octets).expect("JSON");
        let kind = parsed["mediaType"].as_str().unwrap_or(INDEX);
        let line = format!("PUT /v2/{repository}/manifests/{tag}");
        self.ask(&line, &[("content-type", kind)], &manifest.octets, 201);
    }

    fn ask(&self, line: &str, fields: &[(&str, &str)], body: &[u8], expected: u16) -> Answer {
        let answer = send(self.address, line, fields, body).expect("the registry answers");
        let told = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, expected, "{line}: {told}");
        answer
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads the log to the end, and sends the address it listens on.
fn listen(log: impl BufRead, tell: &Sender<SocketAddr>) {
    for line in log.lines().map_while(Result::ok) {
        let address = line.split("listening on ").nth(1).and_then(|rest| rest.split(['"', ',']).next());
        if let Some(address) = address.and_then(|text| text.parse().ok()) {
            let _ = tell.send(address);
        }
    }
}
