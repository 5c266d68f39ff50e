//! Builds the environment of a command: the sandbox's own variables and those that the policy names, and no other of the caller's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use policy::agreed::{FORWARD_PORT, GATEWAY_PORT, plane_url};
use policy::{RunId, RunSpec};

use crate::caller::Caller;
use crate::error::Error;
use crate::image::RootImage;
use crate::plan::additions::Additions;
use crate::tool::Brought;

/// The default search path, appended to the system directories of the caller's own.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The directories below which entries of the caller's search path exist inside.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/opt", "/nix", "/gnu"];

/// The files inside that hold the run's certificate authority: alone, and together with the host's authorities.
pub(crate) const AUTHORITY: &str = "/.lockgate-etc/authority.pem";
pub(crate) const BUNDLE: &str = "/.lockgate-etc/ca-bundle.pem";

/// Returns these files, bundle first, for a command that sees the host's files: in a directory of the run.
pub(crate) fn trusted(directory: &Path) -> [PathBuf; 2] {
    ["ca-bundle.pem", "authority.pem"].map(|name| directory.join(name))
}

/// Variables that name a CA bundle which replaces a program's own: for OpenSSL and Python, Go, curl, Python's requests and pip, Git, Cargo,
/// Deno's rustls, the AWS tools, Codex, gRPC's C core.
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
/// Variables that name a CA file in addition to a program's own: for Node, Deno.
const EXTRA_VARIABLES: &[&str] = &["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Variables that stop package managers from acting on their own. They retry denied requests (pip for 8 s, Cargo for 11, npm for 70),
/// although those stay denied. Each keeps one retry, without a delay if that can be set.
const UNASKED: &[(&str, &str)] = &[
    ("PIP_RETRIES", "1"),
    ("UV_HTTP_RETRIES", "1"),
    ("CARGO_NET_RETRY", "1"),
    ("npm_config_fetch_retries", "1"),
    // In milliseconds.
    ("npm_config_fetch_retry_mintimeout", "100"),
    // npm would ask for a newer version of itself, and be denied.
    ("npm_config_update_notifier", "false"),
];

/// The addresses of the explicit planes, for the command. S0.16.
#[derive(Clone, Debug)]
pub(crate) struct Planes {
    /// `http://sidecar:8081`.
    pub(crate) forward: String,
    /// `http://sidecar:8080`.
    pub(crate) gateway: String,
    /// The gateway's Unix socket, if there is one.
    pub(crate) socket: Option<&'static str>,
}

impl Planes {
    /// The planes at the sidecar's usual ports.
    pub(crate) fn inside(socket: Option<&'static str>) -> Self {
        Self { forward: plane_url(FORWARD_PORT), gateway: plane_url(GATEWAY_PORT), socket }
    }
}

/// What the environment of a command is built from.
pub(crate) struct EnvironmentInputs<'a> {
    pub(crate) spec: &'a RunSpec,
    pub(crate) caller: &'a Caller,
    pub(crate) run: &'a RunId,
    pub(crate) home: &'a Path,
    pub(crate) planes: &'a Planes,
    pub(crate) tools: &'a Brought,
    pub(crate) additions: &'a Additions,
}

impl EnvironmentInputs<'_> {
    /// Builds the environment. Each source takes precedence over those before it.
    ///
    /// # Errors
    /// When a variable that is to be passed is not UTF-8.
    pub(crate) fn build(&self) -> Result<Vec<(String, String)>, Error> {
        let mut env = Variables::default();
        self.basics(&mut env);
        self.image_variables(&mut env);
        self.planes(&mut env);
        self.tools(&mut env);
        self.trust_bundle(&mut env);
        self.passed_and_set(&mut env)?;
        Ok(env.0.into_iter().collect())
    }

    fn image(&self) -> Option<&RootImage> {
        self.additions.image.as_ref()
    }

    /// Sets the variables that every program expects.
    fn basics(&self, env: &mut Variables) {
        let user = self.image().and_then(RootImage::user).unwrap_or("agent");
        env.set("HOME", self.home.display().to_string());
        env.set("USER", user);
        env.set("LOGNAME", user);
        env.set("SHELL", "/bin/sh");
        env.set("LANG", "C.UTF-8");
        env.set("TMPDIR", "/tmp");
        // The abilities of the caller's terminal. A command without a terminal does not read them.
        for name in ["TERM", "COLORTERM"] {
            if let Some(value) = self.caller.variable(name).filter(|value| is_terminal_name(value)) {
                env.set(name, value);
            }
        }
        env.set("PATH", search_path(self.caller, &self.tools.search, self.image(), self.home));
        UNASKED.iter().for_each(|(name, value)| env.set(name, *value));
    }

    /// Sets the image's own variables, except its search path, which is merged, and its home: files that are brought in for the
    /// command lie in the sandbox's home.
    fn image_variables(&self, env: &mut Variables) {
        let said = self.image().into_iter().flat_map(|image| &image.environment);
        for (name, value) in said.filter(|(name, _)| !["PATH", "HOME"].contains(&name.as_str())) {
            env.set(name, value.as_str());
        }
    }

    /// Names the run and the sidecar's planes.
    fn planes(&self, env: &mut Variables) {
        env.set("LOCKGATE", "1");
        env.set("LOCKGATE_RUN_ID", self.run.to_string());
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
            env.set(name, self.planes.forward.as_str());
            env.set(&name.to_ascii_lowercase(), self.planes.forward.as_str());
        }
        let mut direct = "localhost,127.0.0.1,::1,sidecar".to_owned();
        direct.extend(self.spec.companions.iter().map(|companion| format!(",{}", companion.name)));
        for name in ["NO_PROXY", "no_proxy"] {
            env.set(name, direct.as_str());
        }
        env.set("SIDECAR_URL", self.planes.gateway.as_str()); // S0.17
        if let Some(socket) = self.planes.socket {
            env.set("LOCKGATE_SOCKET", socket);
        }
    }

    fn tools(&self, env: &mut Variables) {
        env.set_all(&self.tools.environment);
    }

    /// Points programs to the sidecar's certificate authority.
    fn trust_bundle(&self, env: &mut Variables) {
        if !self.additions.opens_tls {
            return;
        }
        let [bundle, authority] = match &self.additions.trusted {
            Some(directory) => trusted(directory).map(|path| path.display().to_string()),
            None => [BUNDLE, AUTHORITY].map(str::to_owned),
        };
        BUNDLE_VARIABLES.iter().for_each(|name| env.set(name, bundle.as_str()));
        EXTRA_VARIABLES.iter().for_each(|name| env.set(name, authority.as_str()));
    }

    /// Passes the caller's variables that the policy names, and sets the policy's own and those of credentials.
    fn passed_and_set(&self, env: &mut Variables) -> Result<(), Error> {
        for name in &self.spec.env.pass {
            // A variable that the caller has not set stays unset.
            if let Some((_, value)) = self.caller.environment.iter().find(|(n, _)| n == name.as_str()) {
                let text = value.to_str().ok_or_else(|| Error::Refused {
                    what: format!("the variable {name} of the caller's environment is not text"),
                    remedy: None,
                })?;
                env.set(name, text);
            }
        }
        env.set_all(&self.spec.env.set);
        // Last: a placeholder replaces a passed variable, which would hold the credential itself.
        env.set_all(&self.additions.environment);
        Ok(())
    }
}

/// Variables by name; a later value replaces an earlier one.
#[derive(Default)]
struct Variables(BTreeMap<String, String>);

impl Variables {
    fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    fn set_all(&mut self, variables: &[(String, String)]) {
        variables.iter().for_each(|(name, value)| self.set(name, value.as_str()));
    }
}

/// Returns the directory of a user's own programs in a home, by the XDG Base Directory Specification.
#[must_use]
pub fn programs_of(home: &Path) -> PathBuf {
    home.join(".local/bin")
}

/// Returns the search path: tools, then the image's path or the caller's system directories, then the default ones, then the home's
/// programs.
fn search_path(caller: &Caller, tools: &[PathBuf], image: Option<&RootImage>, home: &Path) -> String {
    let own = match image {
        Some(image) => {
            image.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_str())
        }
        None => caller.variable("PATH"),
    };
    let own = own.unwrap_or_default().split(':');
    // A relative entry would depend on the command's directory.
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

/// Whether a text has the form of a terminal's name, so that a variable of that name passes nothing else of the caller's.
fn is_terminal_name(text: &str) -> bool {
    (1..=32).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b))
}

/// Returns the Java runtime that an environment names.
pub(crate) fn java_home(environment: &[(String, String)]) -> Option<&Path> {
    environment.iter().find(|(name, _)| name == "JAVA_HOME").map(|(_, home)| Path::new(home))
}
