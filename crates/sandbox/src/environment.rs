//! Builds the environment of a command: the sandbox's own variables and those that the policy names, and no other of the caller's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use policy::agreed::{FORWARD_PORT, GATEWAY_PORT, SANDBOX_NAME, SIDECAR_NAME, plane_url};
use policy::{Backend, RunId, RunSpec};

use crate::caller::Caller;
use crate::error::Error;
use crate::host::Host;
use crate::host_path::SystemPath;
use crate::image::RootImage;
use crate::plan::additions::Additions;
use crate::terminal_name;
use crate::tool::Brought;

/// The default search path, appended to the system directories of the caller's own.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where a user's own programs lie in a home.
const PROGRAMS: &str = ".local/bin";
/// The directories below which entries of the caller's search path exist inside.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store"];
/// The stores of the systems whose search path consists of links, and on which alone links are followed: an entry may be on a file system
/// that answers late or never.
const STORES: &[&str] = &["/nix/store", "/gnu/store"];

/// The files inside that hold the further authorities, the run's own first: alone, and together with those of the host.
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

/// Variables that stop package managers from acting on their own. They retry denied requests (pip for 8 s, Yarn 4 for 10, Cargo for 11, npm and
/// pnpm for 70), although those stay denied. Each keeps one retry, without a delay if that can be set.
const UNASKED: &[(&str, &str)] = &[
    ("PIP_RETRIES", "1"),
    ("UV_HTTP_RETRIES", "1"),
    ("CARGO_NET_RETRY", "1"),
    ("npm_config_fetch_retries", "1"),
    // In milliseconds.
    ("npm_config_fetch_retry_mintimeout", "100"),
    // From version 11 on pnpm reads none of npm's.
    ("pnpm_config_fetch_retries", "1"),
    ("pnpm_config_fetch_retry_mintimeout", "100"),
    // Yarn from version 2 on.
    ("YARN_HTTP_RETRY", "1"),
    ("BUNDLE_RETRY", "1"),
    // npm would ask for a newer version of itself, and be denied.
    ("npm_config_update_notifier", "false"),
];

/// Variables by which programs go on without a call that the sandbox refuses, where they would fail for the lack of it.
const WITHOUT_REFUSED_CALLS: &[(&str, &str)] = &[
    // fakeroot overlooks EPERM of a real chown(2) alone, and an id that is not mapped is EINVAL.
    ("FAKEROOTDONTTRYCHOWN", "1"),
    // Whatever was built with the address sanitizer looks for leaks at its end, by ptrace(2).
    ("LSAN_OPTIONS", "detect_leaks=0"),
    // Open MPI reads the memory of its processes by process_vm_readv(2), and tries again for ever. The first is for versions before 5.
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "emulated"),
    ("OMPI_MCA_smsc", "^cma"),
];

/// The variable by which Go asks no repository for the state that it writes into programs. Where a placeholder is in the place of `.git`,
/// Go takes it for a repository, asks git, and fails.
const WITHOUT_REPOSITORY: (&str, &str) = ("GOFLAGS", "-buildvcs=false");

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
    pub(crate) host: &'a Host,
    pub(crate) run: &'a RunId,
    pub(crate) home: &'a Path,
    pub(crate) planes: &'a Planes,
    pub(crate) tools: &'a Brought,
    pub(crate) additions: &'a Additions,
    /// Whether a placeholder will be in the place of the workspace's `.git`.
    pub(crate) holds_git: bool,
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
        let named = |name| self.caller.variable(name).filter(|value| terminal_name::is_one(value));
        if let Some(name) = named("TERM") {
            let is_here = self.image().is_none() && self.spec.backend == Backend::Linux;
            env.set("TERM", if is_here { terminal_name::on_this_machine(name, self.caller) } else { name });
        }
        if let Some(abilities) = named("COLORTERM") {
            env.set("COLORTERM", abilities);
        }
        env.set("PATH", self.search_path());
        UNASKED.iter().for_each(|(name, value)| env.set(name, *value));
        if self.spec.backend != Backend::Process {
            WITHOUT_REFUSED_CALLS.iter().for_each(|(name, value)| env.set(name, *value));
        }
        if self.holds_git {
            env.set(WITHOUT_REPOSITORY.0, WITHOUT_REPOSITORY.1);
        }
    }

    /// Returns the search path: tools, then the image's path or the caller's system directories, then the default ones, then the home's
    /// programs.
    fn search_path(&self) -> String {
        let own = match self.image() {
            Some(image) => {
                image.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_str())
            }
            None => self.caller.variable("PATH"),
        };
        let links = Links::of(self.host);
        // A relative entry would depend on the command's directory.
        let own = own.unwrap_or_default().split(':').filter(|entry| entry.starts_with('/'));
        let own = own.filter_map(|entry| match self.image() {
            Some(_) => Some(entry.to_owned()),
            None => inside(entry, links),
        });
        let mut entries: Vec<String> = Vec::new();
        let programs = programs_of(self.home).display().to_string();
        let tools = self.tools.search.iter().map(|p| p.display().to_string());
        let usual = own.chain(SEARCH.split(':').map(str::to_owned));
        for entry in tools.chain(usual).chain([programs]) {
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        entries.join(":")
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
        // The loopback by all its names. Under `process` it is this machine's, as is the host name.
        let mut direct = match self.spec.backend {
            Backend::Process => format!("localhost,127.0.0.1,::1,{SIDECAR_NAME}"),
            _ => format!("localhost,127.0.0.1,::1,0.0.0.0,{SANDBOX_NAME},{SIDECAR_NAME}"),
        };
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

    /// Points programs to the further authorities.
    fn trust_bundle(&self, env: &mut Variables) {
        if self.additions.authorities.is_empty() {
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
                let text = value.to_str().ok_or_else(|| Error::Impossible {
                    what: format!("the variable {name} of the caller's environment is not UTF-8"),
                    remedy: format!("give it another value, as --env {name}=VALUE, or do not pass it"),
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
    home.join(PROGRAMS)
}

/// Whether entries of the caller's search path that are links are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    Followed,
    Unread,
}

impl Links {
    fn of(host: &Host) -> Self {
        let is_store = |path: &SystemPath| match path {
            SystemPath::Tree(path) | SystemPath::Link(path, _) => {
                STORES.iter().any(|store| path == Path::new(store))
            }
        };
        if host.system.iter().any(is_store) { Self::Followed } else { Self::Unread }
    }
}

/// Returns the place inside of an entry of the caller's search path: its own, or the one that it is a link to, as
/// `/run/current-system/sw/bin` is on NixOS.
fn inside(entry: &str, links: Links) -> Option<String> {
    let is_shown = |path: &Path| SYSTEM.iter().any(|shown| path.starts_with(shown));
    // By `..` an entry may lead out of there.
    let leads_up = entry.split('/').any(|part| part == "..");
    if !leads_up && is_shown(Path::new(entry)) {
        return Some(entry.to_owned());
    }
    if !leads_up && links == Links::Unread {
        return None;
    }
    let target = Path::new(entry).canonicalize().ok().filter(|target| is_shown(target))?;
    // An entry with a colon would be two.
    target.into_os_string().into_string().ok().filter(|target| !target.contains(':'))
}

/// Returns the folders of Java runtimes that an environment leads to: the one that it names, and each with its programs on the search path
/// where no system has them.
pub(crate) fn java_homes(environment: &[(String, String)]) -> Vec<&Path> {
    let value =
        |wanted: &str| environment.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_str());
    let is_usual =
        |path: &Path| SEARCH.split(':').any(|usual| path == Path::new(usual)) || path.ends_with(PROGRAMS);
    let search = value("PATH").unwrap_or_default().split(':').map(Path::new);
    let own = search.filter(|entry| entry.is_absolute() && entry.ends_with("bin") && !is_usual(entry));
    value("JAVA_HOME").map(Path::new).into_iter().chain(own.filter_map(Path::parent)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_search_path_that_is_a_link_is_taken_for_what_it_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let link = |name: &str, target: &str| {
            let path = folder.path().join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            path.display().to_string()
        };
        let usr = std::fs::canonicalize("/usr/bin").unwrap().display().to_string();
        assert_eq!(inside(&link("system", "/usr"), Links::Followed).as_deref(), Some("/usr"));
        assert_eq!(inside(&format!("{}/bin", link("current", "/usr")), Links::Followed), Some(usr));
        // On other systems nothing is read.
        assert_eq!(inside(&link("unread", "/usr"), Links::Unread), None);
        assert_eq!(inside("/usr/none", Links::Unread).as_deref(), Some("/usr/none"));
        assert_eq!(inside("/usr/../tmp/none", Links::Unread), None);
        assert_eq!(inside("/usr/../tmp", Links::Followed), None);
        assert_eq!(inside("/usr/..none", Links::Unread).as_deref(), Some("/usr/..none"));
        assert_eq!(inside(&link("state", "/var"), Links::Followed), None);
        assert_eq!(inside(&link("nowhere", "/usr/none"), Links::Followed), None);
        assert_eq!(inside(&folder.path().display().to_string(), Links::Followed), None);
        // As it is, whatever it leads to.
        assert_eq!(inside("/usr/none", Links::Followed).as_deref(), Some("/usr/none"));
        assert_eq!(inside("/nix/var/nix/profiles/default/none", Links::Followed), None);
    }

    #[test]
    fn a_java_runtime_is_sought_where_a_variable_or_the_search_path_leads_beyond_the_usual_folders() {
        let homes = |java: &str, path: &str| {
            let of = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            let environment = [of("JAVA_HOME", java), of("PATH", path)];
            java_homes(&environment).into_iter().map(Path::to_owned).collect::<Vec<_>>()
        };
        let path = format!("/home/me/.asdf/shims:/home/me/17/bin:{SEARCH}:/home/agent/.local/bin:tools/bin");
        assert_eq!(homes("/srv/21", &path), ["/srv/21", "/home/me/17"].map(PathBuf::from));
        assert!(java_homes(&[]).is_empty());
    }

    #[test]
    fn links_are_followed_where_there_is_a_store() {
        let host = |system: &[&str]| Host {
            system: system.iter().map(|path| SystemPath::Tree(path.into())).collect(),
            memory: policy::ByteSize::from_mib(16384),
            limits: Err(crate::host::LimitsUnavailable { why: String::new(), remedy: String::new() }),
            landlock: Err(rustix::io::Errno::NOSYS),
            memory_attributes: false,
            makes_links: false,
            root_lacks: Vec::new(),
            bundle: None,
        };
        assert_eq!(Links::of(&host(&["/usr", "/nix/store"])), Links::Followed);
        assert_eq!(Links::of(&host(&["/gnu/store"])), Links::Followed);
        assert_eq!(Links::of(&host(&["/usr", "/opt"])), Links::Unread);
    }
}
