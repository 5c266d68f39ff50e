//! Installs what comes from the distribution: a table of programs, and apt-get for those that are missing.
//!
//! The installation must never start a service: nginx, haproxy, unbound, sshd, dockerd and docker-registry would take ports or
//! routes of the machine, and the tests start their own.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Rights, program};
use crate::bounded::Bounded;

const APT_LIMIT: Duration = Duration::from_secs(15 * 60);

/// invoke-rc.d(8) runs this file to ask whether a service may start; 101 forbids it.
const START_POLICY: &str = "/usr/sbin/policy-rc.d";
const START_NOTHING: &str =
    "#!/bin/sh\n# Written by `cargo xtask setup` for the length of one installation.\nexit 101\n";

/// A package, how to see that it is installed, and what it is for.
struct Need {
    package: &'static str,
    sign: Sign,
    purpose: &'static str,
}

enum Sign {
    Program(&'static str),
    File(&'static str),
    /// Python's module that makes virtual environments, in a folder named after Python's version.
    EnsurePip,
}

const fn need(package: &'static str, sign: Sign, purpose: &'static str) -> Need {
    Need { package, sign, purpose }
}

const NEEDS: &[Need] = &[
    need("bubblewrap", Sign::Program("bwrap"), "the peer of the start-up benchmark"),
    need("nginx-light", Sign::Program("nginx"), "a peer of the splice benchmark"),
    need(
        "libnginx-mod-stream",
        Sign::File("/usr/lib/nginx/modules/ngx_stream_module.so"),
        "nginx `ssl_preread`",
    ),
    need("haproxy", Sign::Program("haproxy"), "a peer of the splice benchmark"),
    need("unbound", Sign::Program("unbound"), "the peer of the DNS benchmark"),
    need("openssh-client", Sign::Program("ssh"), "git over ssh from inside a sandbox"),
    need("openssh-server", Sign::Program("sshd"), "the SSH host of the test network"),
    need("dnsutils", Sign::Program("dig"), "DNS queries of every kind"),
    need("nftables", Sign::Program("nft"), "looking at rule sets from outside"),
    need("iproute2", Sign::Program("ip"), "the links of the test network"),
    // The distribution's own: a version manager's is in a home directory, which no sandbox sees.
    need("python3", Sign::File("/usr/bin/python3"), "Python clients"),
    need("python3-venv", Sign::EnsurePip, "Python clients"),
    need("git", Sign::Program("git"), "git clients"),
    need("curl", Sign::Program("curl"), "HTTP clients"),
    need("openssl", Sign::Program("openssl"), "TLS clients"),
    need("nodejs", Sign::Program("node"), "Node clients"),
    need("npm", Sign::Program("npm"), "Node clients"),
    need("gh", Sign::Program("gh"), "GitHub's own client"),
    need("openjdk-17-jdk-headless", Sign::Program("javac"), "Java clients"),
    need("strace", Sign::Program("strace"), "counting system calls, and failing them"),
    need("fakeroot", Sign::Program("fakeroot"), "packages that are built inside"),
    need("libopenmpi-dev", Sign::Program("mpicc"), "processes that share their memory"),
    need("qemu-system-x86", Sign::Program("qemu-system-x86_64"), "guests of other kernels"),
    need("xz-utils", Sign::Program("xz"), "the modules of their kernels"),
    need("tmux", Sign::Program("tmux"), "terminals that can be resized"),
    need("ntfs-3g", Sign::Program("ntfs-3g"), "a file system with short names, and one without modes"),
    need("mergerfs", Sign::Program("mergerfs"), "a file system that takes orders"),
    need("mmdebstrap", Sign::Program("mmdebstrap"), "the Debian image of containers"),
    // Its list of dpkg, because the package `busybox` has the same program, but it needs libraries that the image lacks.
    need(
        "busybox-static",
        Sign::File("/var/lib/dpkg/info/busybox-static.list"),
        "the small image of containers",
    ),
    need("crun", Sign::Program("crun"), "running containers"),
    need(
        "uidmap",
        Sign::Program("newuidmap"),
        "subordinate ids, which keep the owners of an image's files without root",
    ),
    need("docker.io", Sign::Program("dockerd"), "engines for the docker backend"),
    need("rootlesskit", Sign::Program("rootlesskit"), "Docker's engine without root"),
    need("podman", Sign::Program("podman"), "Podman's service, for the docker backend"),
    need("runc", Sign::Program("runc"), "its containers: crun 1.8 refuses control groups of both versions"),
    need("netavark", Sign::File("/usr/lib/podman/netavark"), "its networks"),
    need("aardvark-dns", Sign::File("/usr/lib/podman/aardvark-dns"), "the names its sidecars ask for"),
    need("slirp4netns", Sign::Program("slirp4netns"), "the way out of its networks without root"),
    need("docker-registry", Sign::Program("docker-registry"), "the registry that images come from"),
    need("postgresql-client", Sign::Program("psql"), "PostgreSQL clients"),
    need("redis-tools", Sign::Program("redis-cli"), "Redis clients"),
];

impl Sign {
    fn shows(&self) -> bool {
        match self {
            Self::Program(name) => program(name).is_some(),
            Self::File(path) => Path::new(path).exists(),
            Self::EnsurePip => ensure_pip_beneath(Path::new("/usr/lib")),
        }
    }
}

fn ensure_pip_beneath(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .any(|entry| entry.path().join("ensurepip/__init__.py").exists())
}

/// Installs what is missing, or lists it where that is not possible.
pub(super) fn prepare(rights: Rights) -> Result<Vec<String>> {
    let missing = || NEEDS.iter().filter(|need| !need.sign.shows()).collect::<Vec<_>>();
    let wanted = missing();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    if rights == Rights::Root && program("apt-get").is_some() {
        install(&wanted.iter().map(|need| need.package).collect::<Vec<_>>())?;
    }
    Ok(list(&missing()))
}

fn list(missing: &[&Need]) -> Vec<String> {
    if missing.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = missing.iter().map(|need| need.package).collect();
    let each = missing.iter().map(|need| format!("missing: {} ({})", need.package, need.purpose));
    let mend = format!("to install: sudo apt-get install {} (or your distribution's own)", names.join(" "));
    each.chain([mend]).collect()
}

fn install(packages: &[&str]) -> Result<()> {
    let apt = |args: &[&str]| {
        Bounded::new("apt-get", args, APT_LIMIT).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    let _quiet = QuietServices::begin(Path::new(START_POLICY))?;
    apt(&["update", "--quiet"])?;
    apt(&[&["install", "--yes", "--quiet", "--no-install-recommends"], packages].concat())
}

/// While it lives, no service that is installed starts. A policy that the machine already has stays.
struct QuietServices<'a> {
    policy: &'a Path,
    ours: bool,
}

impl<'a> QuietServices<'a> {
    fn begin(policy: &'a Path) -> Result<Self> {
        // A set-up that was killed may have left our file behind: take it over, and remove it at the end.
        let ours = match fs::read_to_string(policy) {
            Ok(text) => text == START_NOTHING,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if ours {
            let written = fs::write(policy, START_NOTHING)
                .and_then(|()| fs::set_permissions(policy, fs::Permissions::from_mode(0o755)));
            written.with_context(|| format!("failed to write {}", policy.display()))?;
        }
        Ok(Self { policy, ours })
    }
}

impl Drop for QuietServices<'_> {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = fs::remove_file(self.policy)
        {
            let shown = self.policy.display();
            eprintln!("remove {shown} by hand, or no service will start after an installation: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_listed_with_its_purpose_and_the_command() {
        let (one, two) = (need("a", Sign::File("/x"), "first"), need("b", Sign::Program("x"), "second"));
        let expected = [
            "missing: a (first)",
            "missing: b (second)",
            "to install: sudo apt-get install a b (or your distribution's own)",
        ];
        assert_eq!(list(&[&one, &two]), expected);
        assert!(list(&[]).is_empty());
    }

    #[test]
    fn signs_show_what_is_there() {
        assert!(Sign::Program("sh").shows());
        assert!(Sign::File("/etc/passwd").shows());
        assert!(!Sign::File("/etc/no-such-file").shows());
        let folder = tempfile::tempdir().unwrap();
        assert!(!ensure_pip_beneath(folder.path()));
        fs::create_dir_all(folder.path().join("python3.99/ensurepip")).unwrap();
        fs::write(folder.path().join("python3.99/ensurepip/__init__.py"), "").unwrap();
        assert!(ensure_pip_beneath(folder.path()));
    }

    #[test]
    fn services_are_kept_quiet_for_the_length_of_an_installation() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy-rc.d");
        let quiet = QuietServices::begin(&policy).unwrap();
        let answer = Bounded::new(policy.to_str().unwrap(), &[], Duration::from_secs(5)).output().unwrap();
        assert_eq!(answer.status.code(), Some(101));
        // As if this set-up had been killed and its file left behind.
        std::mem::forget(quiet);
        drop(QuietServices::begin(&policy).unwrap());
        assert!(!policy.exists());
    }

    #[test]
    fn a_policy_of_the_machine_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy-rc.d");
        fs::write(&policy, "#!/bin/sh\nexit 0\n").unwrap();
        drop(QuietServices::begin(&policy).unwrap());
        assert_eq!(fs::read_to_string(&policy).unwrap(), "#!/bin/sh\nexit 0\n");
    }
}
