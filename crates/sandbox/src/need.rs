//! What a failed step needs, of the machine or the command line: told from the kernel's error, carried in a message, and put as a remedy.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::plan::inside::{HOME, OURS};
use crate::process_files;

/// What a remedy ends with that is one of several.
pub const DOCTOR_TELLS: &str = "; `lockgate doctor` tells what is missing";
/// What a notice ends with whose remedy is told elsewhere.
pub const SEE_DOCTOR: &str = " (lockgate doctor)";

/// A requirement of a step, of the machine or the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Another directory to start in.
    OtherDirectory,
    /// The caller's own further groups, in place of the image's.
    OwnGroups,
    /// A `/proc` without mounts over it.
    UncoveredProc,
    /// Unprivileged user namespaces.
    UserNamespaces,
    /// More namespaces than this machine allows.
    MoreNamespaces,
    /// A root that is no chroot's: user_namespaces(7).
    RootOfAMount,
    /// More processes than this user may have.
    MoreProcesses,
    /// A `/proc` to which the maps of ids can be written.
    WritableProc,
    /// More pseudo-terminals than this machine allows.
    MoreTerminals,
    /// A kernel that was built with namespaces.
    KernelWithNamespaces,
    /// A start in the pid namespace that what is started belongs to.
    OwnPidNamespace,
    /// A system call that the kernel, or a filter of system calls, does not have.
    NewerKernel,
    /// Mounts in namespaces of a run's own.
    Mounts,
    /// The process file system.
    ProcessFiles,
    /// The module `overlay`.
    OverlayModule,
    /// Overlays in a user namespace, with extended attributes on tmpfs files.
    Overlay,
    /// The modules that redirect packets.
    Redirect,
    /// Netlink in a network namespace of a run's own.
    Netlink,
    /// A place inside at which something can be made.
    PlaceOfItsOwn,
    /// A place inside at which nothing is.
    FreePlace,
    /// A place inside that no symbolic link leads to.
    PlaceWithoutLinks,
    /// A workspace at a path on which an image has no symbolic link.
    WorkspaceWithoutLinks,
    /// More room on the disk to which something is copied.
    RoomOnDisk,
    /// More room on the disk on which a workspace's changes are kept apart.
    RoomForChanges,
    /// More room for the run's own files.
    MoreRoom,
}

impl Need {
    /// All, in the order of their declaration. The last one gives the length.
    const ALL: [Self; Self::MoreRoom as usize + 1] = [
        Self::OtherDirectory,
        Self::OwnGroups,
        Self::UncoveredProc,
        Self::UserNamespaces,
        Self::MoreNamespaces,
        Self::RootOfAMount,
        Self::MoreProcesses,
        Self::WritableProc,
        Self::MoreTerminals,
        Self::KernelWithNamespaces,
        Self::OwnPidNamespace,
        Self::NewerKernel,
        Self::Mounts,
        Self::ProcessFiles,
        Self::OverlayModule,
        Self::Overlay,
        Self::Redirect,
        Self::Netlink,
        Self::PlaceOfItsOwn,
        Self::FreePlace,
        Self::PlaceWithoutLinks,
        Self::WorkspaceWithoutLinks,
        Self::RoomOnDisk,
        Self::RoomForChanges,
        Self::MoreRoom,
    ];

    /// Returns what the kernel's refusal to make namespaces says that they need.
    pub(crate) fn of_namespaces(error: &io::Error) -> Option<Self> {
        Some(match Errno::from_io_error(error)? {
            Errno::NOSYS => Self::NewerKernel,
            // clone(2), and fork(2) where the first process there has ended.
            Errno::INVAL | Errno::NOMEM if process_files::children_are_elsewhere() => Self::OwnPidNamespace,
            Errno::INVAL => Self::KernelWithNamespaces,
            Errno::NOSPC | Errno::USERS => Self::MoreNamespaces,
            Errno::PERM if is_in_a_chroot() => Self::RootOfAMount,
            Errno::PERM | Errno::ACCESS => Self::UserNamespaces,
            // clone(2)
            Errno::AGAIN => Self::MoreProcesses,
            Errno::ROFS => Self::WritableProc,
            Errno::NOENT => Self::ProcessFiles,
            _ => return None,
        })
    }

    /// Returns what the errno of a fork(2) says that it needs.
    pub(crate) fn of_fork(errno: i32) -> Option<Self> {
        (Errno::from_raw_os_error(errno) == Errno::AGAIN).then_some(Self::MoreProcesses)
    }

    /// Returns what the kernel's refusal to map ids says that they need, where a namespace of users could be made. What it says of the maps
    /// themselves, as `EINVAL`, says nothing of that: user_namespaces(7).
    pub(crate) fn of_maps(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::NOENT | Errno::ROFS => {
                Self::of_namespaces(error)
            }
            _ => None,
        }
    }

    /// Returns what the kernel's refusal of a mount says that it needs, where namespaces could be made.
    pub(crate) fn of_mounts(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::NOSYS => Some(Self::NewerKernel),
            Errno::PERM | Errno::ACCESS => Some(Self::Mounts),
            // Each mount has a namespace until it is attached: fsmount(2), open_tree(2).
            Errno::NOSPC => Some(Self::MoreNamespaces),
            _ => None,
        }
    }

    /// Returns what the kernel's refusal to redirect packets says that it needs, where namespaces could be made.
    pub(crate) fn of_redirect(errno: Option<Errno>) -> Self {
        match errno {
            Some(Errno::NOSYS) => Self::NewerKernel,
            Some(Errno::PERM | Errno::ACCESS) => Self::Netlink,
            _ => Self::Redirect,
        }
    }

    /// Returns the remedy, for who has not asked `lockgate doctor` yet.
    pub(crate) fn remedy(self) -> String {
        let further = if self.has_other_remedies() { DOCTOR_TELLS } else { "" };
        format!("{}{further}", self.means())
    }

    /// Whether the remedy is one of several: `lockgate doctor` tells which it takes.
    fn has_other_remedies(self) -> bool {
        matches!(
            self,
            Self::UncoveredProc
                | Self::UserNamespaces
                | Self::MoreNamespaces
                | Self::Mounts
                | Self::Overlay
                | Self::Redirect
        )
    }

    /// Returns what meets the requirement.
    pub(crate) fn means(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::OtherDirectory => "name another: --workdir DIR, or `workdir` in the policy file",
            Self::OwnGroups => {
                "the image's further groups took the place of yours: name a group in the image's `User` (`app:app`), and yours \
                 stay; or start in a folder that you can enter without them"
            }
            Self::PlaceOfItsOwn => {
                return Cow::Owned(format!(
                    "there it is this machine's own: choose a place below {HOME}, or one that nothing has"
                ));
            }
            Self::FreePlace => {
                "nothing is written over what is there: take it away, or copy to a place outside the workspace, where each run \
                 has its own"
            }
            Self::PlaceWithoutLinks => {
                "a part of that path is a symbolic link, and none is followed: name a place without one"
            }
            Self::WorkspaceWithoutLinks => {
                "the workspace is shown at its own path, and there the image has a symbolic link: start in a folder at a path that \
                 has none there, or use another image"
            }
            Self::RoomOnDisk => {
                "that place is in a folder of this machine that is shown inside, and its disk is full: make room there, take away what was \
                 copied so far, or copy to a place that is in no such folder"
            }
            Self::RoomForChanges => {
                "that place is in the workspace, whose changes are kept apart with the run's records, and their disk is full: make room \
                 there, name a folder on another disk with XDG_STATE_HOME, or copy to a place outside the workspace"
            }
            Self::MoreRoom => {
                "what a run has of its own is in memory, within `limits.disk` and half of `limits.memory`: raise them (`--disk`, \
                 `--memory`), or use --mount, which copies nothing, in place of --copy"
            }
            Self::UncoveredProc => {
                "in a container, start it with an unmasked /proc (`--security-opt systempaths=unconfined`); in a service of \
                 systemd's, without `ProtectKernelTunables=` and `ProtectKernelLogs=`"
            }
            Self::UserNamespaces => return Cow::Owned(allow_user_namespaces(Path::new(SETTINGS))),
            Self::MoreNamespaces => {
                "allow more namespaces: `sysctl -a --pattern user.max_.*_namespaces` lists the limits; none may be 0, and each folder that \
                 a run is shown takes a mount namespace while it begins; or leave some of the namespaces that this is nested in"
            }
            Self::RootOfAMount => {
                "the kernel gives a process in a chroot no user namespace: give it the root of a mount in place of that, by \
                 pivot_root(8) in `unshare --mount`, or with `bwrap` or `systemd-nspawn`"
            }
            Self::MoreProcesses => MORE_PROCESSES,
            Self::WritableProc => {
                "ids are mapped by files of /proc, and that is mounted read-only here: `mount -o remount,rw /proc`; a container \
                 has it writable that starts with `--security-opt systempaths=unconfined`"
            }
            Self::MoreTerminals => {
                "allow more terminals: `sysctl kernel.pty.max`; or have none inside: `terminal = \"never\"` in the policy"
            }
            Self::KernelWithNamespaces => {
                "it takes Linux 5.12 or later, with namespaces of every kind: CONFIG_USER_NS, CONFIG_PID_NS, CONFIG_NET_NS, \
                 CONFIG_IPC_NS, CONFIG_UTS_NS, CONFIG_CGROUPS"
            }
            Self::OwnPidNamespace => {
                "what is started here belongs to another pid namespace than who starts it, and none can be made there: \
                 `unshare --pid` takes `--fork` as well"
            }
            Self::NewerKernel => return newer_kernel(),
            Self::Mounts => allow_mounts(sys::seccomp::is_installed()),
            Self::ProcessFiles => {
                "a run needs the process file system, of its own pid namespace: `mount -t proc proc /proc`, `unshare --mount-proc`, \
                 `bwrap --proc /proc`"
            }
            Self::OverlayModule => "this kernel has no overlayfs loaded: `modprobe overlay`",
            Self::Overlay => {
                "images need overlayfs in user namespaces, and attributes on the files that are written over them: in memory these \
                 take Linux 6.6 or later"
            }
            Self::Redirect => {
                "the kernel needs nf_tables with nft_tproxy, or with nft_redir and nf_nat: `modprobe nft_tproxy`"
            }
            Self::Netlink => {
                "a profile of AppArmor's or SELinux's, or a filter, forbids a run to set up its own network: have it allow netlink \
                 (in AppArmor's, `network netlink,`)"
            }
        })
    }

    /// Encodes a requirement as one character of a message: a letter for its place in [`Self::ALL`]. Both ends are one binary.
    pub(crate) fn sign(need: Option<Self>) -> char {
        need.map_or('-', |need| char::from(b'A' + need as u8))
    }

    /// Decodes a requirement.
    pub(crate) fn of_sign(sign: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|need| sign.chars().eq([Self::sign(Some(*need))]))
    }
}

/// Returns what helps where a system call is not known: a filter, or the kernel, does not have it.
fn newer_kernel() -> Cow<'static, str> {
    if !sys::seccomp::is_installed() {
        return "this kernel is too old: Linux 5.12 or later".into();
    }
    if is_in_a_run() {
        return NO_RUN_WITHIN.into();
    }
    Cow::Owned(format!(
        "a filter of system calls is in force here, a container's or a service's, and forbids what a sandbox is made of: \
         start outside it, or have it allow namespaces and mounts (in a container, {CONTAINER_FLAGS})"
    ))
}

/// What starts a container in which runs can be made: with a filter that allows it, and with a `/proc` that nothing covers.
const CONTAINER_FLAGS: &str = "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`";

/// Returns what else it takes where a filter is in force, as in a container.
pub(crate) fn also_in_a_container() -> String {
    match sys::seccomp::is_installed() {
        true => format!("; a container takes {CONTAINER_FLAGS} as well"),
        false => String::new(),
    }
}

/// Returns what helps where mounts are refused. A filter refuses what each kernel has.
fn allow_mounts(is_filtered: bool) -> &'static str {
    if is_filtered {
        "a filter of system calls is in force here and may forbid that: in a container, start it with `--security-opt seccomp=unconfined`, \
         and where AppArmor is in use with `--security-opt apparmor=unconfined`; in a service of systemd's, with \
         `SystemCallFilter=@mount`"
    } else {
        "in a container, start it with `--security-opt apparmor=unconfined`; elsewhere, see what forbids mounts in a user \
         namespace: AppArmor, SELinux"
    }
}

/// The settings of the kernel, sysctl(8).
const SETTINGS: &str = "/proc/sys";

/// What helps where one process or thread more is one too many.
pub const MORE_PROCESSES: &str = "allow this user more processes (`ulimit -u`, and `pids.max` of its control groups, `TasksMax=` of its unit), or end \
                                  some";

/// Returns how unprivileged user namespaces are allowed here: a kernel has only some of the settings that forbid them.
fn allow_user_namespaces(settings: &Path) -> String {
    let forbidding =
        [("kernel.unprivileged_userns_clone", "0"), ("kernel.apparmor_restrict_unprivileged_userns", "1")];
    let forbids = |(name, value): &(&str, &str)| {
        let told = std::fs::read_to_string(settings.join(name.replace('.', "/"))).unwrap_or_default();
        told.trim() == *value
    };
    let set: Vec<String> = forbidding
        .into_iter()
        .filter(forbids)
        .map(|(name, value)| format!("{name}={}", if value == "0" { 1 } else { 0 }))
        .collect();
    let container = format!("a container's filter of system calls may forbid them ({CONTAINER_FLAGS})");
    match set.is_empty() {
        true => format!(
            "user namespaces are forbidden here: {container}, and so may a profile of AppArmor's or SELinux's policy (`dmesg` tells); a process \
             in a chroot has none either: pivot_root(8), `bwrap` or `systemd-nspawn` in place of that"
        ),
        false => format!("allow unprivileged user namespaces: `sysctl {}`; {container}", set.join(" ")),
    }
}

/// What helps where a run is begun inside another.
pub const NO_RUN_WITHIN: &str = "inside a sandbox of Lockgate's no other can be made: run the command as it is, for it is shut in there \
                                 already; or run this outside";

/// Whether this is inside a run. `LOCKGATE` is set as well where a run shuts nothing in, with `process`.
#[must_use]
pub fn is_in_a_run() -> bool {
    Path::new(OURS).exists()
}

/// Whether the root of this process is known to be a chroot's: no mount has it for its place.
fn is_in_a_chroot() -> bool {
    sys::kernel_file::read("/proc/self/mountinfo").is_ok_and(|mounts| !has_a_mount_at_its_root(&mounts))
}

/// Whether one of these mounts is at `/`: proc_pid_mountinfo(5), where the fifth field is relative to the process's own root.
fn has_a_mount_at_its_root(mounts: &str) -> bool {
    mounts.lines().any(|line| line.split(' ').nth(4) == Some("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_told_by_what_would_help() {
        let error = |errno: Errno| io::Error::from(errno);
        for (errno, need, says) in [
            (Errno::INVAL, Need::KernelWithNamespaces, "CONFIG_USER_NS"),
            (Errno::NOSPC, Need::MoreNamespaces, "user.max_"),
            (Errno::USERS, Need::MoreNamespaces, "user.max_"),
            (Errno::PERM, Need::UserNamespaces, "user namespaces"),
            (Errno::ACCESS, Need::UserNamespaces, "user namespaces"),
            (Errno::NOENT, Need::ProcessFiles, "mount -t proc"),
            (Errno::AGAIN, Need::MoreProcesses, "ulimit -u"),
            (Errno::ROFS, Need::WritableProc, "remount,rw"),
        ] {
            assert_eq!(Need::of_namespaces(&error(errno)), Some(need), "{errno}");
            assert!(need.remedy().contains(says), "{}", need.remedy());
        }
        assert_eq!(Need::of_mounts(&error(Errno::ACCESS)), Some(Need::Mounts));
        assert!(Need::Mounts.remedy().contains("apparmor=unconfined"));
        assert!(
            allow_mounts(true).contains("seccomp=unconfined") && !allow_mounts(false).contains("seccomp")
        );
        assert_eq!(Need::of_mounts(&error(Errno::INVAL)), None);
        assert_eq!(Need::of_mounts(&error(Errno::NOSPC)), Some(Need::MoreNamespaces));
        assert_eq!(Need::of_maps(&error(Errno::INVAL)), None);
        assert_eq!(Need::of_maps(&error(Errno::ACCESS)), Some(Need::UserNamespaces));
        for need in [Need::of_namespaces(&error(Errno::NOSYS)), Need::of_mounts(&error(Errno::NOSYS))] {
            assert_eq!(need, Some(Need::NewerKernel));
        }
        // A filter alone shuts nothing in: only a run of Lockgate's is a sandbox that is known to.
        let (is_filtered, is_within) = (sys::seccomp::is_installed(), is_in_a_run());
        let remedy = Need::NewerKernel.remedy();
        assert_eq!(remedy.contains("shut in"), is_filtered && is_within, "{remedy}");
        assert_eq!(remedy.contains("start outside it"), is_filtered && !is_within, "{remedy}");
    }

    #[test]
    fn a_chroot_has_no_mount_at_its_root() {
        let proc = "40 39 0:37 / /proc rw,relatime - proc proc rw\n";
        assert!(!has_a_mount_at_its_root(proc) && !has_a_mount_at_its_root(""));
        let root = "29 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n";
        assert!(has_a_mount_at_its_root(&format!("{root}{proc}")));
    }

    #[test]
    fn every_need_is_understood_as_it_was_sent() {
        for (place, need) in Need::ALL.into_iter().enumerate() {
            assert_eq!(need as usize, place, "{need:?}");
            let sign = Need::sign(Some(need));
            assert!(sign.is_ascii_graphic() && sign != Need::sign(None), "{need:?}");
            assert_eq!(Need::of_sign(&sign.to_string()), Some(need));
        }
        for none in ["-", "", "AA", "~"] {
            assert_eq!(Need::of_sign(none), None, "{none}");
        }
    }

    #[test]
    fn only_settings_that_forbid_are_named() {
        let settings = tempfile::tempdir().unwrap();
        std::fs::create_dir(settings.path().join("kernel")).unwrap();
        let told = |files: &[(&str, &str)]| {
            for (file, text) in files {
                std::fs::write(settings.path().join("kernel").join(file), text).unwrap();
            }
            allow_user_namespaces(settings.path())
        };
        let (debian, ubuntu) = ("unprivileged_userns_clone", "apparmor_restrict_unprivileged_userns");
        let neither = told(&[]);
        // A chroot whose root is a mount is not told from a root.
        assert!(
            neither.contains("AppArmor") && neither.contains("chroot") && !neither.contains("sysctl"),
            "{neither}"
        );
        let one = told(&[(ubuntu, "1\n")]);
        assert!(one.contains("`sysctl kernel.apparmor_restrict_unprivileged_userns=0`"), "{one}");
        let both = told(&[(debian, "0\n")]);
        assert!(both.contains("`sysctl kernel.unprivileged_userns_clone=1 kernel.apparmor"), "{both}");
        let other = told(&[(debian, "1\n")]);
        assert!(!other.contains("userns_clone"), "{other}");
    }
}
