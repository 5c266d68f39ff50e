//! sandlock as a peer of starts, with the proxy that makes it comparable: for plain HTTP, and with TLS terminated and a credential.
//!
//! It confines by Landlock and a supervisor, without namespaces, and its proxy is a thread of that supervisor.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::person::{Person, shown};
use super::sample::Role;
use super::subject::{COMMAND, Subject};
use super::{Bench, machine};

pub(super) const PEER: &str = "sandlock";
/// Its name in the table when it terminates TLS.
pub(super) const WITH_TLS: &str = "sandlock tls";
/// What the command may read, as in sandlock's own documentation; it may write the folder it is started in.
const READABLE: [&str; 7] = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"];
/// The one service it may reach. A name would need a lookup at each start; an address does not.
const SERVICE: &str = "GET 127.0.0.1/*";
/// The file in which its proxy's authority must be trusted.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The program and arguments with which one person starts it.
pub(super) struct Sandlock {
    program: PathBuf,
    args: Vec<String>,
    /// The file of the credential's secret, which the command cannot read.
    secret: PathBuf,
}

impl Sandlock {
    /// Returns it if it is installed and starts here; else notes why not.
    pub(super) fn find(bench: &Bench, person: &Person, skipped: &mut Vec<String>) -> Result<Option<Self>> {
        let Some(installed) = machine::find(PEER) else {
            let why = format!("{PEER} is not installed; `cargo install {PEER}-cli` does");
            if !skipped.contains(&why) {
                skipped.push(why);
            }
            return Ok(None);
        };
        // An unprivileged person may not reach the folder it was installed in.
        let program = bench.folder.join(PEER);
        if !program.exists() {
            fs::copy(&installed, &program).context("failed to copy sandlock")?;
        }
        let mut args = vec!["run".to_owned()];
        for path in READABLE {
            args.extend(["--fs-read".into(), path.into()]);
        }
        args.extend(["--fs-write".into(), shown(&person.work())?.into()]);
        args.extend(["--http-allow".into(), SERVICE.into()]);
        let secret = bench.folder.join(format!("sandlock-{}", person.name));
        let it = Self { program, args, secret };
        let subject = it.plain();
        match person.told(&subject.program, &[subject.args, vec![COMMAND.into()]].concat()) {
            Ok(_) => Ok(Some(it)),
            Err(error) => {
                skipped.push(format!("{PEER} as {}: {error:#}", person.name));
                Ok(None)
            }
        }
    }

    /// Returns the subject whose proxy is for plain HTTP.
    pub(super) fn plain(&self) -> Subject {
        self.subject(PEER, &[])
    }

    /// Returns the subject that terminates TLS with an authority made at the start, and has a credential for one service.
    pub(super) fn with_credential(&self, person: &Person, secret: &str) -> Result<Subject> {
        fs::write(&self.secret, secret)?;
        person.own(&self.secret)?;
        let file = format!("bench=file:{}", shown(&self.secret)?);
        let rule = format!("{SERVICE} bearer bench");
        Ok(self.subject(WITH_TLS, &["--http-inject-ca", BUNDLE, "--credential", &file, "--http-auth", &rule]))
    }

    fn subject(&self, name: &str, more: &[&str]) -> Subject {
        let more = more.iter().copied().chain(["--"]).map(str::to_owned);
        let args = self.args.iter().cloned().chain(more).collect();
        Subject { name: name.into(), role: Role::Peer, program: self.program.clone(), args }
    }
}
