//! The environment of the command: what the policy names, what the sandbox itself tells, and nothing of the caller's
//! besides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use policy::{RunId, RunSpec};

use crate::caller::Caller;
use crate::error::Error;
use crate::image::RootImage;
use crate::plan::additions::Additions;

/// Where a program is looked for when the caller's own path names no system directory.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The parents of search path entries that exist inside.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/opt", "/nix", "/gnu"];

/// Where the run's authority lies inside, alone and together with those of the host.
pub(crate) const AUTHORITY: &str = "/.lockgate-etc/authority.pem";
pub(crate) const BUNDLE: &str = "/.lockgate-etc/ca-bundle.pem";

/// The same where the command sees this machine's files: the bundle and the authority in a directory of the run's own.
pub(crate) fn trusted(directory: &Path) -> [PathBuf; 2] {
    ["ca-bundle.pem", "authority.pem"].map(|name| directory.join(name))
}

/// The variables by which programs are told of a bundle that takes the place of their own: OpenSSL and Python, Go, curl,
/// Python's requests and pip, Git, Cargo, Deno's rustls, the AWS tools, Codex, gRPC's C core.
const BUNDLE_VARIABLES: &[&str] = &[
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "CODEX_CA_CERTIFICATE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];
/// And of one that comes on top of their own: Node, Deno.
const EXTRA_VARIABLES: &[&str] = &["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// What package managers do by themselves, and are told not to. How often they try again: pip for 8 s, Cargo for 11, npm for 70, though what is denied stays denied.
/// One more time is left to each, and at once where it can be told so.
const UNASKED: &[(&str, &str)] = &[
    ("PIP_RETRIES", "1"),
    ("UV_HTTP_RETRIES", "1"),
    ("CARGO_NET_RETRY", "1"),
    ("npm_config_fetch_retries", "1"),
    // In milliseconds.
    ("npm_config_fetch_retry_mintimeout", "100"),
    // It would ask for a newer npm, unasked, and be denied.
    ("npm_config_update_notifier", "false"),
];

/// The explicit planes, as the command is told of them. S0.16.
#[derive(Clone, Debug)]
pub(crate) struct Planes {
    /// `http://sidecar:8081`.
    pub(crate) forward: String,
    /// `http://sidecar:8080`.
    pub(crate) gateway: String,
    /// The gateway's Unix socket, where there is one.
    pub(crate) socket: Option<&'static str>,
}

/// Builds the environment; later sources win: defaults, tools, passed, set.
pub(crate) fn build(
    spec: &RunSpec,
    caller: &Caller,
    run: &RunId,
    home: &Path,
    planes: &Planes,
    tools: (&[PathBuf], &[(String, String)]),
    additions: &Additions,
) -> Result<Vec<(String, String)>, Error> {
    let mut env: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        env.insert(name.into(), value);
    };
    let image = additions.image.as_ref();
    let user = image.and_then(RootImage::user).unwrap_or("agent");
    set("HOME", home.display().to_string());
    set("USER", user.into());
    set("LOGNAME", user.into());
    set("SHELL", "/bin/sh".into());
    set("LANG", "C.UTF-8".into());
    set("TMPDIR", "/tmp".into());
    // What the person's terminal can do; a command that has none asks nobody.
    for name in ["TERM", "COLORTERM"] {
        if let Some(value) = caller.variable(name).filter(|value| is_terminal_name(value)) {
            set(name, value.into());
        }
    }
    set("PATH", search_path(caller, tools.0, image, home));
    UNASKED.iter().for_each(|(name, value)| set(name, (*value).into()));
    // What the image says, before what is ours to say. Its home is not its own to say: what enters for the command lies in ours.
    let said = image.iter().flat_map(|image| &image.environment);
    for (name, value) in said.filter(|(name, _)| !["PATH", "HOME"].contains(&name.as_str())) {
        set(name, value.clone());
    }
    set("LOCKGATE", "1".into());
    set("LOCKGATE_RUN_ID", run.to_string());
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        set(name, planes.forward.clone());
        set(&name.to_ascii_lowercase(), planes.forward.clone());
    }
    for name in ["NO_PROXY", "no_proxy"] {
        let companions = spec.companions.iter().map(|companion| format!(",{}", companion.name));
        set(name, ["localhost,127.0.0.1,::1,sidecar".to_owned()].into_iter().chain(companions).collect());
    }
    set("SIDECAR_URL", planes.gateway.clone()); // S0.17
    if let Some(socket) = planes.socket {
        set("LOCKGATE_SOCKET", socket.into());
    }
    for (name, value) in tools.1 {
        set(name, value.clone());
    }
    if additions.opens_tls {
        let [bundle, authority] = match &additions.trusted {
            Some(directory) => trusted(directory).map(|path| path.display().to_string()),
            None => [BUNDLE, AUTHORITY].map(str::to_owned),
        };
        BUNDLE_VARIABLES.iter().for_each(|name| set(name, bundle.clone()));
        EXTRA_VARIABLES.iter().for_each(|name| set(name, authority.clone()));
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
    // Last, so that a variable that was to be passed on does not carry the credential itself.
    for (name, value) in &additions.environment {
        set(name, value.clone());
    }
    Ok(env.into_iter().collect())
}

/// Where in a home programs of one's own are, by the XDG Base Directory Specification.
#[must_use]
pub fn programs_of(home: &Path) -> PathBuf {
    home.join(".local/bin")
}

/// Tools first, then the image's own or the caller's order of system directories, then the usual ones, then the home's own programs.
fn search_path(caller: &Caller, tools: &[PathBuf], image: Option<&RootImage>, home: &Path) -> String {
    let own = match image {
        Some(image) => {
            image.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_str())
        }
        None => caller.variable("PATH"),
    };
    let own = own.unwrap_or_default().split(':');
    // Anything else would begin at the directory the command is in.
    let own = own.filter(|entry| entry.starts_with('/'));
    let own = own.filter(|entry| image.is_some() || SYSTEM.iter().any(|s| Path::new(entry).starts_with(s)));
    let mut entries: Vec<String> = Vec::new();
    let programs = programs_of(home).display().to_string();
    let tools = tools.iter().map(|p| p.display().to_string());
    let usual = own.chain(SEARCH.split(':')).map(str::to_owned);
    for entry in tools.chain(usual).chain([programs]) {
        if !entries.contains(&entry) {
            entries.push(entry);
        }
    }
    entries.join(":")
}

/// Whether a text is a name as terminals have them, and nothing else that the caller's environment may hold.
fn is_terminal_name(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b))
}

/// The Java runtime that an environment names.
pub(crate) fn java_home(environment: &[(String, String)]) -> Option<&Path> {
    environment.iter().find(|(name, _)| name == "JAVA_HOME").map(|(_, home)| Path::new(home))
}
