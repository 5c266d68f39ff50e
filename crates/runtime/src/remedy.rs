//! Remedies: what a person can do about an error of this crate.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use credential::{EnvelopeError, VaultError};
use egress::GateError;
use policy::shell_word;
use rustix::io::Errno;

use crate::error::Error;
use crate::given_file::NotTaken;
use crate::key;
use crate::settings::MANAGED;
use crate::still_there::{Act, StillThere};
use crate::stranger::Stranger;
use crate::streams::{BrokenNull, NULL_DEVICE};

impl Error {
    /// Returns what the person can do about it, if that is known.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        if let Some(limit) = reached_limit(self) {
            return Some(limit.into());
        }
        match self {
            Self::Settings(error) => error.hint.clone(),
            Self::ReadSettings { path, source } => of_settings(path, source.kind()),
            Self::ReadLayer { path, source } => of_layer(path, source),
            Self::NotAPolicy { .. } => Some(
                "a policy is a file of text, of at most 1 MiB; `lockgate run --no-project -- CMD` leaves out what lies in a project"
                    .into(),
            ),
            Self::Approval { path, of, .. } => Some(format!(
                "remove {} and approve again: `lockgate policy approve --workspace {}`",
                shell_word(&path.to_string_lossy()),
                shell_word(&of.parent().unwrap_or(of).to_string_lossy())
            )),

            Self::NoStateDirectory => {
                Some("set HOME, or name a place with XDG_STATE_HOME; runs are recorded there".into())
            }
            Self::NoDataDirectory => {
                Some("set HOME, or name a place with XDG_DATA_HOME; images are kept there".into())
            }
            Self::State { source, .. } => Some(of_state(source).into()),
            Self::Write { source, .. } => Some(of_write(source).into()),

            Self::GoesOn { run, .. } => Some(format!("lockgate runs stop {run} ends it")),
            Self::BeingApplied(..) => Some("wait until that has ended, or end it with Ctrl-C".into()),
            Self::LeftBehind { what, run, why } => Some(of_what_is_left(*what, run, why)),
            Self::Record { run, .. } => Some(format!("lockgate runs rm {run} removes the run")),
            Self::NoRun { .. } => Some("lockgate runs ls names them".into()),
            Self::NothingKept { .. } => {
                Some("lockgate run --workspace-mode overlay -- CMD keeps them apart".into())
            }
            Self::Changes { .. } => Some(
                "see that the workspace is still there and may be read; lockgate discard drops what is kept, unread".into(),
            ),
            Self::TakeOver { .. } => Some("what was done before it stays; mend that and apply again".into()),
            Self::TakeOverEnded { .. } => Some("what was done before it stays; apply again to go on".into()),
            Self::WrittenBy { .. } => Some("apply it once that run is over, or leave it out with --path".into()),

            Self::NoCredential(missing) => Some(missing.remedy()),
            Self::OrganisationBesidePlatform { platform, .. } => {
                Some(format!("leave the organisation out (--org, `org`, LOCKGATE_ORG), or unset {platform}"))
            }
            Self::HalfPlatform { set, lacks } => {
                Some(format!("set {lacks} as well, or unset {set} to use a vault of this machine"))
            }
            Self::Vault(error) => of_vault(error),
            Self::VaultKey { .. } => Some(
                "a key is 32 octets in base64 or hexadecimal, such as `openssl rand -base64 32` makes; several are separated by \
                 commas, and the first one encrypts"
                    .into(),
            ),
            Self::VaultKeyGone { removals, .. } => Some(format!(
                "set CONNECTION_ENCRYPTION_KEY to the key they were sealed with, or put that file back. Without the key their values \
                 are lost: remove them (`{}`), and set them again",
                removals.join("`, `")
            )),
            Self::KeyFile { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("name the public key of whoever signed the audit, as in --key \"$(cat audit.pub)\"".into())
            }
            Self::KeyFile { path, .. } => {
                let needed = if path.ends_with(key::PRIVATE) { "" } else { "; what was sealed with it needs it" };
                Some(format!("put that file back as it was, or see whose it is and whether it may be read{needed}"))
            }
            Self::KeyOfOthers { path, .. } => Some(format!(
                "if it is yours, make it so: chown \"$(id -u)\" {}; if it is not, move it away",
                shell_word(&path.to_string_lossy())
            )),
            Self::KeyShared { path, .. } => Some(of_shared_key(path)),

            Self::NoCommand { remedy, .. } => Some((*remedy).to_owned()),
            Self::Expose { remedy, .. } | Self::StateOfOthers { remedy, .. } => Some(remedy.clone()),
            Self::Companion { remedy, .. } | Self::SidecarFailed { remedy, .. } => remedy.clone(),
            Self::Image(error) => error.remedy(),
            Self::Sandbox(error) => error.remedy(),
            Self::Gate(error) => of_gate(error).map(str::to_owned),
            Self::Files(egress::FilesError::Bundle { .. }) => Some(
                "name a file of certificates in PEM, or unset SSL_CERT_FILE to trust this machine's".into(),
            ),
            Self::SidecarUntold { .. } => {
                Some("see what killed or stopped the sidecar (memory, a signal), and run it again".into())
            }
            Self::SidecarLost => Some(
                "see what ended it: somebody's signal, memory that ran out (`dmesg`), or a limit of processor time (`ulimit -H -t`), \
                 which counts for it too"
                    .into(),
            ),
            Self::Unprotected { .. } => Some(
                "see that it says what you wrote, for the command may have written into the new one; then start the run again".into(),
            ),
            Self::Inbound { .. } => Some("name another `host_port` in that [[inbound]]".into()),
            Self::Plumbing { source, .. } => of_plumbing(source),

            Self::ParseSettings { .. }
            | Self::AlreadyEnded { .. }
            | Self::Stop { .. }
            | Self::ReadValue { .. }
            | Self::Value { .. }
            | Self::Files(egress::FilesError::Addresses(_))
            | Self::SandboxLost
            | Self::Unwritten { .. }
            | Self::Interrupted { .. } => None,
        }
    }
}

/// What to do about a configuration file that cannot be read.
fn of_settings(path: &Path, kind: io::ErrorKind) -> Option<String> {
    match kind {
        io::ErrorKind::PermissionDenied => Some(format!(
            "see whose {} and its folder are, and whether you may read the one (chmod u+r) and enter the other \
             (chmod u+x)",
            path.display()
        )),
        io::ErrorKind::InvalidFilename => {
            Some("a path has 4095 octets at most, and a name 255: work in a folder nearer to the root".into())
        }
        io::ErrorKind::InvalidData => {
            Some("a policy is a file of text, of at most 1 MiB: name one that is".into())
        }
        io::ErrorKind::NotFound if path.is_symlink() => {
            Some("it is a link that leads nowhere: put back what it leads to, or name another file".into())
        }
        io::ErrorKind::NotFound if path.parent().is_some_and(|folder| !folder.is_dir()) => {
            Some("see how its name is written: its folder is not there either".into())
        }
        io::ErrorKind::NotFound => Some(format!(
            "see how its name is written; `lockgate policy init --policy {}` begins a policy there",
            shell_word(&path.to_string_lossy())
        )),
        _ => None,
    }
}

/// What to do about a policy of the machine or the person that cannot be read. If there were none it would be left out, so something
/// has its name or that of a folder above it.
fn of_layer(path: &Path, error: &io::Error) -> Option<String> {
    if let Some(stranger) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return Some(of_stranger(path, *stranger));
    }
    let is_managed = path == Path::new(MANAGED);
    let path = path.display();
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_managed => Some(format!(
            "this machine's policy holds for everybody, so everybody must be able to read it: have root say \
             `chmod a+rx /etc/lockgate` and `chmod a+r {path}`"
        )),
        io::ErrorKind::PermissionDenied => Some(format!(
            "see whose {path} is, and whether you may read it; HOME and XDG_CONFIG_HOME may be another user's still, as \
             after `su -m`: set HOME to your own"
        )),
        _ if Errno::from_io_error(error) == Some(Errno::LOOP) => {
            Some(format!("its links lead in a circle: put the policy at {path}, or take the link away"))
        }
        io::ErrorKind::NotFound => {
            Some(format!("put the policy there, or take away the link that leads nowhere: {path}"))
        }
        io::ErrorKind::NotADirectory => Some(format!(
            "something above it is a file and no folder: move it away, or put the policy at {path}"
        )),
        io::ErrorKind::InvalidData => {
            Some(format!("a policy is a file of text, of at most 1 MiB; take away what has its name: {path}"))
        }
        _ => None,
    }
}

/// What to do about a policy that somebody else may have written.
fn of_stranger(path: &Path, stranger: Stranger) -> String {
    let word = shell_word(&path.to_string_lossy());
    match stranger {
        Stranger::Owner(_) => format!(
            "HOME and XDG_CONFIG_HOME may be another user's still, as after `su -m` and `sudo -E`: use those of your own (`sudo -H`); \
             if it is yours, make it so: chown \"$(id -u)\" {word}; in a container, copy it in as root's"
        ),
        Stranger::Writer(_) => format!(
            "see what it says, then chmod go-w {word}; if that changes nothing, its file system keeps no modes: keep it on another"
        ),
    }
}

/// What to do about a state directory that cannot be used.
fn of_state(error: &io::Error) -> &'static str {
    if is_about_room(error) {
        "free some space, or name another place with XDG_STATE_HOME; runs are recorded there"
    } else if Errno::from_io_error(error) == Some(Errno::NOLCK) {
        "its file system has no locks: name a place on one that has them with XDG_STATE_HOME; runs are recorded there"
    } else if error.kind() == io::ErrorKind::Unsupported {
        "name a place on another file system, as ext4, xfs or btrfs, with XDG_STATE_HOME; runs are recorded there"
    } else {
        "see whose it is and whether it may be written, or name another place with XDG_STATE_HOME; runs are recorded there"
    }
}

/// What to do about a file that was asked for and cannot be written.
fn of_write(error: &io::Error) -> &'static str {
    if NotTaken::in_error(error).is_some() {
        "take it away, or name a file that is not there yet, on a file system that keeps modes and owners"
    } else if is_about_room(error) {
        "free some space, or name a file elsewhere"
    } else {
        "name a file in a folder that you may write to"
    }
}

/// What to do where something of a killed run remains.
fn of_what_is_left(what: Act, run: &str, why: &StillThere) -> String {
    if let StillThere::ProcessAlive = why {
        return "use the state directory that the run uses, or wait until it has ended".into();
    }
    let again = "say it again; if that changes nothing, see that there is space where the state directory is, and that the \
                 engine answers";
    match what {
        Act::Remove => format!(
            "{again}; lockgate runs rm --force {run} removes the run with the changes that it keeps, and gives up what it left"
        ),
        Act::Apply | Act::Discard => again.into(),
    }
}

/// What to do about a vault that cannot be used.
fn of_vault(error: &VaultError) -> Option<String> {
    match error {
        VaultError::Decrypt { id, owner, source, .. } => undecrypted(id, owner.as_deref(), source),
        VaultError::WrongKeys { source, .. } => of_vault(source),
        _ => None,
    }
}

/// What to do about a record that cannot be decrypted. Its owner is named, or the credential of another one would be removed.
fn undecrypted(id: &str, owner: Option<&str>, error: &EnvelopeError) -> Option<String> {
    let whose = owner.map(|owner| format!(" --org {owner}")).unwrap_or_default();
    let anew = format!("remove the credential with `lockgate creds rm {id}{whose}`, and set it again");
    match error {
        EnvelopeError::UnknownKey { .. } => Some(format!(
            "give the key that it was encrypted with as well, behind a comma in CONNECTION_ENCRYPTION_KEY; a key that Lockgate made is \
             in `keys/vault.key` of its state directory. Where that key is lost, {anew}"
        )),
        EnvelopeError::Tampered => Some(format!("restore the file from a backup, or {anew}")),
        _ => None,
    }
}

/// What to do about a key file that others may read or write.
fn of_shared_key(path: &Path) -> String {
    let anew = if path.ends_with(key::PRIVATE) {
        "move it and audit.pub away to begin a new one: what was signed before is verified by that audit.pub alone"
    } else {
        "set a new key and run `lockgate keys rotate`"
    };
    let path = shell_word(&path.to_string_lossy());
    format!("chmod 600 {path}; where somebody may have read or changed it, {anew}")
}

/// What to do about a sidecar that could not serve.
fn of_gate(error: &GateError) -> Option<&'static str> {
    match error {
        GateError::Bind { address, source }
            if source.kind() == io::ErrorKind::PermissionDenied && is_of_dns(address) =>
        {
            Some(
                "a resolver asks at port 53: let it have that one in this network namespace (`sysctl \
                 net.ipv4.ip_unprivileged_port_start=53`), or start it with CAP_NET_BIND_SERVICE; docs/providers.md shows how",
            )
        }
        GateError::Bind { address, source } => bound_otherwise(address, source),
        GateError::Unwritten { source, .. } if is_about_room(source) => Some(
            "free some space; `lockgate audit verify FILE` says how far the records that are there reach",
        ),
        _ => None,
    }
}

/// Whether an address is one at which resolvers ask: a line of resolv.conf(5) has no port.
fn is_of_dns(address: &str) -> bool {
    const DOMAIN: u16 = 53;
    address.parse().is_ok_and(|address: SocketAddr| address.port() == DOMAIN)
}

/// What to do about a socket that cannot be bound.
fn bound_otherwise(address: &str, error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind::{AddrInUse, AddrNotAvailable, InvalidInput, PermissionDenied};
    Some(match error.kind() {
        AddrInUse if address.parse::<SocketAddr>().is_ok() => {
            "something is there already: end it, or name another place; port 0 takes a free one"
        }
        AddrInUse => "something is there already: end what serves there or remove it, or name another path",
        AddrNotAvailable => {
            "name an address of this machine's, as `ip address` shows them; 127.0.0.1 is for this machine alone"
        }
        // The library's own. The kernel's (EINVAL) is of an address that lacks its link, for one.
        InvalidInput if error.raw_os_error().is_none() => {
            "the path of a Unix socket has 107 octets at most: name a shorter one"
        }
        InvalidInput => {
            "name an address that can be bound as it is written; a link-local one (fe80::/10) cannot"
        }
        PermissionDenied => "name a port from 1024 up, or a path in a folder that you may write to",
        _ => return None,
    })
}

/// What to do about a socket or descriptor of the run that failed.
fn of_plumbing(error: &io::Error) -> Option<String> {
    // What a thread too many says, pthread_create(3).
    if error.kind() == io::ErrorKind::WouldBlock {
        return Some(format!(
            "{}; where it is no process that is too many, allow more address space, which a thread takes: `ulimit -v`",
            sandbox::MORE_PROCESSES
        ));
    }
    BrokenNull::is_cause_of(error)
        .then(|| format!("make it anew, as root: `rm -f {NULL_DEVICE}; mknod -m 666 {NULL_DEVICE} c 1 3`"))
}

/// Returns what to do about a limit of this process or machine that was reached, wherever in the chain of errors, and whatever file it was
/// at.
#[must_use]
pub fn reached_limit(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut reached = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    reached.find_map(|errno| match Errno::from_raw_os_error(errno) {
        Errno::MFILE => {
            Some("allow more open files: `ulimit -n 1024`; the hard limit may have to be raised first")
        }
        Errno::NFILE => Some("raise what this machine may open: `sysctl fs.file-max`"),
        Errno::FBIG => Some("raise the limit of a file's size: `ulimit -f`"),
        _ => None,
    })
}

/// Whether what failed is that there is no room.
fn is_about_room(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use sandbox::Caller;

    use crate::error::Error;
    use crate::images::Images;
    use crate::settings::MANAGED;
    use crate::state::StateDirectory;

    #[test]
    fn how_a_key_is_written_is_told_once() {
        let why = credential::EnvelopeError::NoKeys.to_string();
        let error = Error::VaultKey { place: "CONNECTION_ENCRYPTION_KEY".into(), why };
        let told = format!("{}\n{}", error.sentence(), error.remedy().unwrap());
        assert_eq!((told.matches("32 octets").count(), told.matches("openssl").count()), (1, 1), "{told}");
    }

    #[test]
    fn a_limit_that_was_reached_is_named_and_nothing_about_the_file() {
        for (errno, named) in
            [(Errno::MFILE, "ulimit -n"), (Errno::NFILE, "fs.file-max"), (Errno::FBIG, "ulimit -f")]
        {
            for error in [
                Error::State { path: "/s".into(), source: errno.into() },
                Error::Changes { path: "/s".into(), source: errno.into() },
                Error::Write { path: "/s".into(), source: errno.into() },
                sandbox::Error::Open { path: "/s".into(), source: errno.into() }.into(),
            ] {
                let remedy = error.remedy().unwrap();
                assert!(remedy.contains(named) && !remedy.contains("discard"), "{error}: {remedy}");
            }
        }
        let full = Error::State { path: "/s".into(), source: Errno::NOSPC.into() };
        assert!(full.remedy().unwrap().contains("space"));
    }

    #[test]
    fn a_broken_null_device_and_a_folder_too_deep_are_no_matter_of_this_programs() {
        let source = std::io::Error::other(super::BrokenNull::Another);
        let null = Error::Plumbing { what: "use the standard streams", source }.remedy().unwrap();
        assert!(null.contains("mknod -m 666 /dev/null c 1 3"), "{null}");
        let limit = Error::Plumbing { what: "use the standard streams", source: Errno::MFILE.into() };
        assert!(limit.remedy().unwrap().contains("ulimit -n"));
        let thread = Error::Plumbing { what: "carry the standard streams", source: Errno::AGAIN.into() };
        let thread = thread.remedy().unwrap();
        assert!(thread.contains("ulimit -u") && thread.contains("ulimit -v"), "{thread}");
        let lockless = Error::State { path: "/s".into(), source: Errno::NOLCK.into() }.remedy().unwrap();
        assert!(lockless.contains("has no locks") && lockless.contains("XDG_STATE_HOME"), "{lockless}");
        let deep = Error::ReadSettings { path: "/a".into(), source: Errno::NAMETOOLONG.into() };
        assert!(deep.remedy().unwrap().contains("4095"));
    }

    #[test]
    fn a_key_that_others_may_know_is_replaced_as_keys_of_its_kind_are() {
        let of = |name: &str| {
            let error = Error::KeyShared { path: format!("/state/keys/{name}").into(), mode: 0o644 };
            error.remedy().unwrap()
        };
        // `keys rotate` is about credentials alone.
        let audit = of("audit.pk8");
        assert!(audit.contains("audit.pub away") && !audit.contains("rotate"), "{audit}");
        let vault = of("vault.key");
        assert!(vault.contains("lockgate keys rotate") && !vault.contains("audit"), "{vault}");
    }

    #[test]
    fn an_address_that_lacks_its_link_is_no_long_path() {
        let long = std::os::unix::net::SocketAddr::from_pathname("x".repeat(200)).unwrap_err();
        assert!(super::bound_otherwise("x", &long).unwrap().contains("107"), "{long}");
        let lacking = Errno::INVAL.into();
        assert!(super::bound_otherwise("[fe80::1]:80", &lacking).unwrap().contains("fe80"), "{lacking}");
    }

    #[test]
    fn a_place_that_no_variable_names_is_asked_for_by_its_own() {
        let (home, directory, environment) = (None, "/".into(), Vec::new());
        let caller = Caller { uid: 0, gid: 0, superuser: false, home, directory, environment };
        for (error, place, other) in [
            (StateDirectory::of(&caller).map(drop).unwrap_err(), "XDG_STATE_HOME", "XDG_DATA_HOME"),
            (Images::of(&caller).map(drop).unwrap_err(), "XDG_DATA_HOME", "XDG_STATE_HOME"),
        ] {
            let remedy = error.remedy().unwrap();
            assert!(error.to_string().contains(place) && remedy.contains(place), "{error}: {remedy}");
            assert!(!remedy.contains(other), "{error}: {remedy}");
        }
    }

    #[test]
    fn the_port_of_dns_is_no_port_to_choose_another_for() {
        let of = |address: &str| {
            let source = std::io::ErrorKind::PermissionDenied.into();
            Error::Gate(egress::GateError::Bind { address: address.into(), source }).remedy().unwrap()
        };
        for address in ["127.0.0.1:53", "[::1]:53"] {
            assert!(of(address).contains("ip_unprivileged_port_start"), "{}", of(address));
        }
        assert!(of("127.0.0.1:80").contains("from 1024 up"), "{}", of("127.0.0.1:80"));
    }

    #[test]
    fn a_policy_is_begun_only_where_one_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(at("none"), at("dangling")).unwrap();
        let here = folder.path().display();
        for (name, told) in [
            ("x", format!("`lockgate policy init --policy {here}/x` begins")),
            ("dangling", "leads nowhere".into()),
            ("none/x", "its folder is not there".into()),
        ] {
            let source = std::io::ErrorKind::NotFound.into();
            let remedy = Error::ReadSettings { path: at(name), source }.remedy().unwrap();
            assert!(remedy.contains(&told) && remedy.contains("init") == (name == "x"), "{name}: {remedy}");
        }
    }

    #[test]
    fn only_a_place_in_a_network_has_a_port() {
        for (address, has_port) in [("127.0.0.1:80", true), ("[::1]:80", true), ("gate", false)] {
            let remedy = super::bound_otherwise(address, &Errno::ADDRINUSE.into()).unwrap();
            assert_eq!(remedy.contains("port 0"), has_port, "{address}: {remedy}");
        }
    }

    #[test]
    fn settings_that_may_not_be_read_may_be_those_of_another_users_home() {
        let of_layer = |path: &str, source: std::io::Error| {
            let error = Error::ReadLayer { path: path.into(), source };
            error.remedy().unwrap_or_default()
        };
        let of = |kind: std::io::ErrorKind| of_layer("/root/.config/x", kind.into());
        let kind = std::io::ErrorKind::PermissionDenied;
        let other = Error::ReadSettings { path: "/w/lockgate.toml".into(), source: kind.into() };
        let other = other.remedy().unwrap_or_default();
        assert!(other.contains("/w/lockgate.toml") && !other.contains("HOME"), "{other}");
        let denied = of(std::io::ErrorKind::PermissionDenied);
        assert!(denied.contains("/root/.config/x") && denied.contains("HOME"), "{denied}");
        let managed = of_layer(MANAGED, kind.into());
        assert!(
            managed.contains("chmod a+r /etc/lockgate/policy.toml") && !managed.contains("HOME"),
            "{managed}"
        );
        assert!(of_layer(MANAGED, Errno::LOOP.into()).contains("in a circle"));
        assert_eq!(of(std::io::ErrorKind::Other), "");
    }
}
