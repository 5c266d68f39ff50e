//! The escape table's system calls, each made with arguments that do no harm: the kernel's own code answers them
//! with `EFAULT`, `EINVAL` or `EBADF`, a filter with `EPERM`, `ENOSYS` or a signal. So `done` here means "the call
//! got past the filter". Every attempt is made in a child of its own; none changes anything outside it.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::Probe;
use crate::child::{self, End};
use crate::report::{Outcome, Report, errno_name};

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "syscall", usage: "NAME (one row of the escape table)", run: one },
    Probe { name: "syscalls", usage: "(the whole escape table)", run: |_| Some(all()) },
    Probe { name: "arguments", usage: "(calls that depend on an argument)", run: |_| Some(arguments()) },
];

/// Which processes pass the kernel's own permission check, and can serve as the positive control.
#[derive(Clone, Copy)]
enum Needs {
    /// Any process: the arguments are checked before the capability.
    Nobody,
    /// A capability in a new user namespace.
    Namespace,
    /// A capability of the machine.
    Machine,
}

/// Name, number, possible controls, arguments.
type Row = (&'static str, i64, Needs, [i64; 6]);

/// An address no process maps.
const BAD: i64 = 1;
const NO: i64 = -1;
const INIT: i64 = 1;
const NEW: i64 = libc::SIGCHLD as i64;
/// `UFFD_USER_MODE_ONLY`, userfaultfd(2), which the kernel grants without a capability.
const UFFD_USER: i64 = 1;
/// `FAN_REPORT_FID`, fanotify_init(2), which the kernel grants without a capability.
const FAN_FID: i64 = 0x200;
/// x32 calls carry this bit, `__X32_SYSCALL_BIT` in asm/unistd.h.
const X32: i64 = 0x4000_0000;

#[rustfmt::skip]
const TABLE: &[Row] = {
    use Needs::{Machine, Namespace, Nobody};
    &[
        ("mount", libc::SYS_mount, Nobody, [BAD, BAD, BAD, 0, 0, 0]),
        ("umount2", libc::SYS_umount2, Nobody, [BAD, NO, 0, 0, 0, 0]),
        ("pivot_root", libc::SYS_pivot_root, Namespace, [BAD, BAD, 0, 0, 0, 0]),
        ("chroot", libc::SYS_chroot, Nobody, [BAD, 0, 0, 0, 0, 0]),
        ("fsopen", libc::SYS_fsopen, Namespace, [BAD, NO, 0, 0, 0, 0]),
        ("fsconfig", libc::SYS_fsconfig, Nobody, [NO, 0, 0, 0, 0, 0]),
        ("fsmount", libc::SYS_fsmount, Namespace, [NO, 0, 0, 0, 0, 0]),
        ("fspick", libc::SYS_fspick, Namespace, [NO, BAD, 0, 0, 0, 0]),
        ("move_mount", libc::SYS_move_mount, Namespace, [NO, BAD, NO, BAD, 0, 0]),
        ("open_tree", libc::SYS_open_tree, Nobody, [NO, BAD, 0, 0, 0, 0]),
        ("mount_setattr", libc::SYS_mount_setattr, Nobody, [NO, BAD, 0, BAD, 0, 0]),
        ("setns", libc::SYS_setns, Nobody, [NO, 0, 0, 0, 0, 0]),
        ("unshare-user", libc::SYS_unshare, Nobody, [libc::CLONE_NEWUSER as i64, 0, 0, 0, 0, 0]),
        ("unshare-all", libc::SYS_unshare, Nobody, [(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET
            | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS | libc::CLONE_NEWPID | libc::CLONE_NEWCGROUP) as i64, 0, 0, 0, 0, 0]),
        ("unshare-net", libc::SYS_unshare, Namespace, [libc::CLONE_NEWNET as i64, 0, 0, 0, 0, 0]),
        ("unshare-mount", libc::SYS_unshare, Namespace, [libc::CLONE_NEWNS as i64, 0, 0, 0, 0, 0]),
        ("clone-user", libc::SYS_clone, Nobody, [libc::CLONE_NEWUSER as i64 | NEW, 0, 0, 0, 0, 0]),
        ("clone-pid", libc::SYS_clone, Namespace, [libc::CLONE_NEWPID as i64 | NEW, 0, 0, 0, 0, 0]),
        ("clone3", libc::SYS_clone3, Nobody, [BAD, 0, 0, 0, 0, 0]),
        ("bpf", libc::SYS_bpf, Nobody, [0x7fff_ffff, BAD, 0, 0, 0, 0]),
        ("perf_event_open", libc::SYS_perf_event_open, Nobody, [BAD, 0, NO, NO, NO, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, Nobody, [UFFD_USER, 0, 0, 0, 0, 0]),
        ("io_uring_setup", libc::SYS_io_uring_setup, Nobody, [1, BAD, 0, 0, 0, 0]),
        ("io_uring_enter", libc::SYS_io_uring_enter, Nobody, [NO, 0, 0, 0x7fff_ffff, 0, 0]),
        ("io_uring_register", libc::SYS_io_uring_register, Nobody, [NO, 0x07ff_ffff, 0, 0, 0, 0]),
        ("keyctl", libc::SYS_keyctl, Nobody, [0x7fff, 0, 0, 0, 0, 0]),
        ("add_key", libc::SYS_add_key, Nobody, [BAD, BAD, 0, 0, 0, 0]),
        ("request_key", libc::SYS_request_key, Nobody, [BAD, BAD, 0, 0, 0, 0]),
        ("ptrace", libc::SYS_ptrace, Nobody, [libc::PTRACE_TRACEME as i64, 0, 0, 0, 0, 0]),
        ("process_vm_readv", libc::SYS_process_vm_readv, Nobody, [1, BAD, 0, BAD, 0, NO]),
        ("process_vm_writev", libc::SYS_process_vm_writev, Nobody, [1, BAD, 0, BAD, 0, NO]),
        ("kcmp", libc::SYS_kcmp, Nobody, [0, 0, 99, 0, 0, 0]),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, Nobody, [NO, NO, NO, 0, 0, 0]),
        ("init_module", libc::SYS_init_module, Machine, [BAD, 0, BAD, 0, 0, 0]),
        ("finit_module", libc::SYS_finit_module, Machine, [NO, BAD, NO, 0, 0, 0]),
        ("delete_module", libc::SYS_delete_module, Machine, [BAD, 0, 0, 0, 0, 0]),
        ("kexec_load", libc::SYS_kexec_load, Machine, [0, 0, BAD, NO, 0, 0]),
        ("kexec_file_load", libc::SYS_kexec_file_load, Machine, [NO, NO, 0, BAD, NO, 0]),
        ("reboot", libc::SYS_reboot, Machine, [0, 0, 0, 0, 0, 0]),
        ("swapon", libc::SYS_swapon, Nobody, [BAD, NO, 0, 0, 0, 0]),
        ("swapoff", libc::SYS_swapoff, Machine, [BAD, 0, 0, 0, 0, 0]),
        ("acct", libc::SYS_acct, Machine, [BAD, 0, 0, 0, 0, 0]),
        ("quotactl", libc::SYS_quotactl, Nobody, [0xff, 0, 0, 0, 0, 0]),
        ("quotactl_fd", libc::SYS_quotactl_fd, Nobody, [NO, 0, 0, 0, 0, 0]),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, Machine, [NO, BAD, 0, 0, 0, 0]),
        ("iopl", libc::SYS_iopl, Nobody, [99, 0, 0, 0, 0, 0]),
        ("ioperm", libc::SYS_ioperm, Nobody, [0x7fff_ffff, 0x7fff_ffff, 1, 0, 0, 0]),
        ("modify_ldt", libc::SYS_modify_ldt, Nobody, [0, 0, 0, 0, 0, 0]),
        ("clock_settime", libc::SYS_clock_settime, Nobody, [0, BAD, 0, 0, 0, 0]),
        ("settimeofday", libc::SYS_settimeofday, Nobody, [BAD, 0, 0, 0, 0, 0]),
        ("adjtimex", libc::SYS_adjtimex, Nobody, [BAD, 0, 0, 0, 0, 0]),
        ("clock_adjtime", libc::SYS_clock_adjtime, Nobody, [0, BAD, 0, 0, 0, 0]),
        ("sethostname", libc::SYS_sethostname, Namespace, [BAD, NO, 0, 0, 0, 0]),
        ("setdomainname", libc::SYS_setdomainname, Namespace, [BAD, NO, 0, 0, 0, 0]),
        ("syslog", libc::SYS_syslog, Machine, [10, 0, 0, 0, 0, 0]),
        ("fanotify_init", libc::SYS_fanotify_init, Nobody, [FAN_FID, 0, 0, 0, 0, 0]),
        ("uselib", libc::SYS_uselib, Nobody, [BAD, 0, 0, 0, 0, 0]),
        ("x32-getpid", X32 | libc::SYS_getpid, Nobody, [0, 0, 0, 0, 0, 0]),
        // Of init, which the command could have wait for ever. The kernel finds fault with the arguments; the last keeps what is.
        ("sched_setscheduler-init", libc::SYS_sched_setscheduler, Nobody, [INIT, NO, 0, 0, 0, 0]),
        ("sched_setparam-init", libc::SYS_sched_setparam, Nobody, [INIT, 0, 0, 0, 0, 0]),
        ("sched_setattr-init", libc::SYS_sched_setattr, Nobody, [INIT, BAD, 0, 0, 0, 0]),
        ("sched_setaffinity-init", libc::SYS_sched_setaffinity, Nobody, [INIT, 8, BAD, 0, 0, 0]),
        ("ioprio_set-init", libc::SYS_ioprio_set, Nobody, [1, INIT, 0xffff, 0, 0, 0]),
        ("setpriority-init", libc::SYS_setpriority, Machine, [0, INIT, 0, 0, 0, 0]),
        // By any descriptor of a file system, of all of it. The last are commands of a later kernel.
        ("ioctl-set-encryption-policy", libc::SYS_ioctl, Nobody, [NO, 0x800c_6613, BAD, 0, 0, 0]),
        ("ioctl-add-encryption-key", libc::SYS_ioctl, Nobody, [NO, 0xc050_6617, BAD, 0, 0, 0]),
        ("ioctl-remove-encryption-key", libc::SYS_ioctl, Nobody, [NO, 0xc040_6618, BAD, 0, 0, 0]),
        ("ioctl-remove-encryption-key-of-all", libc::SYS_ioctl, Nobody, [NO, 0xc040_6619, BAD, 0, 0, 0]),
        ("ioctl-btrfs-snapshot", libc::SYS_ioctl, Nobody, [NO, 0x5000_9417, BAD, 0, 0, 0]),
        ("ioctl-btrfs-destroy-by-number", libc::SYS_ioctl, Nobody, [NO, 0x5000_943f, BAD, 0, 0, 0]),
        ("ioctl-btrfs-later", libc::SYS_ioctl, Nobody, [NO, 0x94ff, BAD, 0, 0, 0]),
        ("ioctl-bcachefs-later", libc::SYS_ioctl, Nobody, [NO, 0xbcff, BAD, 0, 0, 0]),
    ]
};

/// Calls that are allowed with some arguments, with descriptors and paths that the kernel's own code finds fault with first (`EBADF`,
/// `EFAULT`). So an `EINVAL` is a filter's.
const ARGUMENTS: &[(&str, i64, [i64; 6])] = &[
    ("fcntl F_GETFD", libc::SYS_fcntl, [NO, libc::F_GETFD as i64, 0, 0, 0, 0]),
    ("fcntl F_DUPFD_QUERY", libc::SYS_fcntl, [NO, 1027, 0, 0, 0, 0]),
    ("fcntl F_GETDELEG", libc::SYS_fcntl, [NO, 1039, BAD, 0, 0, 0]),
    ("fcntl F_SETLEASE", libc::SYS_fcntl, [NO, libc::F_SETLEASE as i64, 0, 0, 0, 0]),
    ("fcntl F_NOTIFY", libc::SYS_fcntl, [NO, libc::F_NOTIFY as i64, 0, 0, 0, 0]),
    ("fcntl F_SETDELEG", libc::SYS_fcntl, [NO, 1040, BAD, 0, 0, 0]),
    ("fcntl of a later kernel", libc::SYS_fcntl, [NO, 1041, BAD, 0, 0, 0]),
    ("ioctl FICLONE", libc::SYS_ioctl, [NO, 0x4004_9409, NO, 0, 0, 0]),
    ("ioctl FICLONERANGE", libc::SYS_ioctl, [NO, 0x4020_940d, BAD, 0, 0, 0]),
    ("ioctl FIDEDUPERANGE", libc::SYS_ioctl, [NO, 0xc018_9436, BAD, 0, 0, 0]),
    ("ioctl FS_IOC_GETFSLABEL", libc::SYS_ioctl, [NO, 0x8100_9431, BAD, 0, 0, 0]),
    ("ioctl FS_IOC_GET_ENCRYPTION_POLICY_EX", libc::SYS_ioctl, [NO, 0xc009_6616, BAD, 0, 0, 0]),
    ("renameat2 RENAME_EXCHANGE", libc::SYS_renameat2, [NO, BAD, NO, BAD, 2, 0]),
    ("renameat2 RENAME_WHITEOUT", libc::SYS_renameat2, [NO, BAD, NO, BAD, 4, 0]),
    ("renameat2 RENAME_WHITEOUT, above an int", libc::SYS_renameat2, [NO, BAD, NO, BAD, 1 << 40 | 4, 0]),
];

/// Reports one object: name → errno.
fn arguments() -> Report {
    let errno = |number, arguments| {
        let value = child::syscall(number, arguments);
        errno_name(i32::try_from(-value).unwrap_or(0))
    };
    let table = ARGUMENTS.iter().map(|&(name, number, arguments)| (name, errno(number, arguments).into()));
    Report::done(table.map(|(name, errno): (_, Value)| (name.to_owned(), errno)).collect::<Map<_, _>>())
}

fn one(arguments: &[String]) -> Option<Report> {
    let [name] = arguments else { return None };
    let (_, outcome, errno, detail) = everything().find(|(row, ..)| row == name)?;
    Some(Report { outcome, errno, detail })
}

/// Tries every row, and reports one object: name → result. The outcome is `done` if any call got past the filter.
fn all() -> Report {
    let rows: Vec<_> = everything().collect();
    let any = rows.iter().any(|(_, outcome, ..)| *outcome == Outcome::Done);
    let mut table = Map::new();
    for (name, outcome, errno, detail) in rows {
        let errno = errno.map(errno_name);
        table.insert(name.to_owned(), json!({ "outcome": outcome.word(), "errno": errno, "detail": detail }));
    }
    if any { Report::done(table) } else { Report::refused(table) }
}

/// One row's name, its outcome, the errno, and its possible controls.
type Tried = (&'static str, Outcome, Option<i32>, Value);

fn everything() -> impl Iterator<Item = Tried> {
    let table = TABLE.iter().map(|&(name, number, needs, arguments)| {
        let end = attempt(move || child::syscall(number, arguments));
        tried(name, needs, end)
    });
    table.chain(std::iter::once_with(|| tried("i386-getpid", Needs::Nobody, attempt(int80))))
}

fn tried(name: &'static str, needs: Needs, end: End) -> Tried {
    let control = match needs {
        Needs::Nobody => "anyone",
        Needs::Namespace => "namespace",
        Needs::Machine => "machine",
    };
    let (outcome, errno, how) = match end {
        End::Value(value @ 0..) => (Outcome::Done, None, json!(value)),
        End::Value(negative) => {
            let errno = i32::try_from(-negative).unwrap_or(0);
            let outcome = match errno {
                libc::EPERM | libc::EACCES => Outcome::Refused,
                libc::ENOSYS => Outcome::Absent,
                // Any other answer comes from the kernel's check of the arguments: the filter let the call through.
                _ => Outcome::Done,
            };
            (outcome, Some(errno), json!(errno_name(errno)))
        }
        End::Signal(signal) if signal == libc::SIGSYS => (Outcome::Refused, None, json!("SIGSYS")),
        End::Signal(signal) => (Outcome::Error, None, json!(format!("signal {signal}"))),
        End::Silent => (Outcome::Error, None, json!("no answer")),
    };
    (name, outcome, errno, json!({ "answer": how, "control": control }))
}

fn attempt(call: impl FnOnce() -> i64) -> End {
    let call = || {
        let own = std::process::id();
        let value = call();
        // `clone` returns in its new child too; that one has nothing to report.
        if std::process::id() != own {
            // SAFETY: ends the extra child at once.
            unsafe { libc::_exit(0) };
        }
        value
    };
    child::attempt(Duration::from_secs(5), call).unwrap_or(End::Silent)
}

/// `getpid` by the 32-bit entry of the kernel: number 20 in the i386 table.
#[cfg(target_arch = "x86_64")]
fn int80() -> i64 {
    let mut value: i64 = 20;
    // SAFETY: the call takes no arguments and touches no memory; the 32-bit entry may clobber r8 to r11.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") value, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    // The 32-bit entry leaves a 32-bit answer.
    i64::from(value as i32)
}

/// Other machines have no 32-bit entry of this kind.
#[cfg(not(target_arch = "x86_64"))]
fn int80() -> i64 {
    -i64::from(libc::ENOSYS)
}
