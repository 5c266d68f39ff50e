//! The environment of the command: what the policy names, what the sandbox itself tells, and nothing of the caller's
//! besides.

use std::collections::BTreeMap;
use std::path::PathBuf;

use policy::{RunId, RunSpec};

use crate::caller::Caller;
use crate::error::Error;

/// Where a program is looked for when the caller's own path names no system directory.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The parents of search path entries that exist inside.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/opt", "/nix", "/gnu"];

/// The explicit planes, as the command is told of them. S0.16.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    /// `http://sidecar:8081`.
    pub(crate) forward: String,
}

/// Builds the environment; later sources win: defaults, tools, passed, set.
pub(crate) fn build(
    spec: &RunSpec,
    caller: &Caller,
    run: &RunId,
    home: &str,
    proxy: &Proxy,
    tools: (&[PathBuf], &[(String, String)]),
) -> Result<Vec<(String, String)>, Error> {
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        env.insert(name.into(), value);
    };
    set("HOME", home.into());
    set("USER", "agent".into());
    set("LOGNAME", "agent".into());
    set("SHELL", "/bin/sh".into());
    set("LANG", "C.UTF-8".into());
    set("TMPDIR", "/tmp".into());
    set("PATH", search_path(caller, tools.0));
    set("LOCKGATE", "1".into());
    set("LOCKGATE_RUN_ID", run.to_string());
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        set(name, proxy.forward.clone());
        set(&name.to_ascii_lowercase(), proxy.forward.clone());
    }
    for name in ["NO_PROXY", "no_proxy"] {
        set(name, "localhost,127.0.0.1,::1".into());
    }
    for (name, value) in tools.1 {
        set(name, value.clone());
    }
    for name in &spec.env.pass {
        // A variable that is not set stays so.
        if let Some((_, value)) = caller.environment.iter().find(|(n, _)| n == name.as_str()) {
            let text = value.to_str().ok_or_else(|| Error::Refused {
                what: format!("the variable {name} of the caller's environment is not text"),
                remedy: None,
            })?;
            set(name, text.into());
        }
    }
    for (name, value) in &spec.env.set {
        set(name, value.clone());
    }
    Ok(env.into_iter().collect())
}

/// Tools first, then the caller's own order of system directories, then the usual ones.
fn search_path(caller: &Caller, tools: &[PathBuf]) -> String {
    let own = caller.variable("PATH").unwrap_or_default().split(':');
    let own = own.filter(|entry| SYSTEM.iter().any(|s| std::path::Path::new(entry).starts_with(s)));
    let mut entries: Vec<String> = Vec::new();
    let tools = tools.iter().map(|p| p.display().to_string());
    for entry in tools.chain(own.map(str::to_owned)).chain(SEARCH.split(':').map(str::to_owned)) {
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    entries.join(":")
}
