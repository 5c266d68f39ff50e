//! sandlock as a peer of starts, with the proxy that makes it comparable: for plain HTTP, and with TLS opened and a credential.
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
/// What it is called where it does more.
pub(super) const WITH_TLS: &str = "sandlock tls";
/// What the command may read, as its own documentation has it; the folder it is started in may be written.
const READABLE: [&str; 7] = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev"];
/// The one service it may reach. A name would be looked up at each start, an address is not.
const SERVICE: &str = "GET 127.0.0.1/*";
/// Where its proxy's authority has to be trusted.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// How one person starts it.
pub(super) struct Sandlock {
    program: PathBuf,
    args: Vec<String>,
    /// The secret of the credential, where the command cannot read it.
    secret: PathBuf,
}

impl Sandlock {
    /// If it is installed and starts here; else why not is told.
    pub(super) fn find(bench: &Bench, person: &Person, skipped: &mut Vec<String>) -> Result<Option<Self>> {
        let Some(installed) = machine::find(PEER) else {
            let why = format!("{PEER} is not installed; `cargo install {PEER}-cli` does");
            if !skipped.contains(&why) {
                skipped.push(why);
            }
            return Ok(None);
        };
        // Where it was installed, an unprivileged person may not come.
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

    /// With its proxy for plain HTTP.
    pub(super) fn plain(&self) -> Subject {
        self.subject(PEER, &[])
    }

    /// With TLS opened by an authority made at the start, and a credential for one service.
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
