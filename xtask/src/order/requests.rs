//! Starts whose command asks an origin of their own: behind the functions of a start come those of a request.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::trace::Start;
use crate::bench::machine;
use crate::bench::proxies::{NAME, Origin};

/// The provider whose credential is put into requests.
pub(super) const PROVIDER: &str = "order";
/// The load generator, in the workspace of the start.
const LOAD: &str = "./load https --seconds 0.3 --workers 2";
/// The sidecar's proxy, as a command finds it.
const PROXY: &str = "--dial 198.18.0.0:8081";

/// The origin, and the files that lead to it.
pub(super) struct Requests {
    origin: Origin,
    opened: PathBuf,
    spliced: PathBuf,
}

impl Requests {
    /// Starts the origin, and brings the load generator into the workspace `work`.
    pub(super) fn prepare(load: &Path, folder: &Path, work: &Path) -> Result<Self> {
        let nginx =
            machine::find("nginx").context("nginx is not installed, and it is the origin of requests")?;
        fs::copy(load, work.join("load")).context("failed to copy the load generator")?;
        let origin = Origin::start(load, &nginx, folder)?;
        fs::copy(&origin.authority, work.join("cert.pem")).context("failed to copy the certificate")?;
        let (opened, spliced) = (folder.join("opened.toml"), folder.join("spliced.toml"));
        fs::write(&opened, opening(&origin))?;
        fs::write(&spliced, origin.policy())?;
        Ok(Self { origin, opened, spliced })
    }

    /// Returns the starts: one whose TLS is opened for a credential, and one whose TLS is spliced.
    pub(super) fn starts(&self) -> [Start; 2] {
        let name = |port: u16| format!("--origin {NAME}:{port}");
        let (https, plain) = (name(self.origin.address.port()), name(self.origin.plain.port()));
        let ours = format!("{LOAD} {https} --authority /.lockgate-etc/authority.pem");
        let theirs = format!("{LOAD} {https} --authority cert.pem");
        [
            self.start(
                &self.opened,
                &[
                    format!("{ours} --connections kept"),
                    format!("{ours} --connections new"),
                    format!("{ours} --connections new --resume"),
                    format!("{ours} --connections kept --tunnel {PROXY}"),
                    format!("{LOAD} {plain} --plain {PROXY} --connections kept"),
                ],
            ),
            self.start(
                &self.spliced,
                &[
                    format!("{theirs} --connections kept"),
                    format!("{theirs} --connections new"),
                    format!("{theirs} --connections new --tunnel {PROXY}"),
                ],
            ),
        ]
    }

    fn start(&self, policy: &Path, asks: &[String]) -> Start {
        let args = ["run", "--policy", &policy.to_string_lossy(), "--", "sh", "-c", &asks.join(" && ")];
        Start { args: args.map(str::to_owned).into(), authorities: Some(self.origin.authority.clone()) }
    }
}

/// Returns a policy by which TLS to the origin is opened and a credential put into requests, and plain requests are judged by their path.
fn opening(origin: &Origin) -> String {
    let (https, plain) = (origin.address.port(), origin.plain.port());
    format!(
        "[[provider]]\nid = \"{PROVIDER}\"\nauthorized_uris = [\"https://{NAME}:{https}/*\"]\naddresses = [\"127.0.0.1\"]\n\
         inject = {{ header = \"authorization\", value = \"Bearer {{{{access_token}}}}\" }}\n\
         [[egress.allow]]\nurl = \"http://{NAME}:{plain}/*\"\nmethods = [\"GET\"]\naddresses = [\"127.0.0.1\"]\n"
    )
}
