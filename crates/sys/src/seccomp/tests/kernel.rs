//! A filter on a real process: each test forks a child, which installs it, tries calls and reports.

use std::io;

use super::super::{Action, Condition, Expect, Filter, Profile, Rule, Verdict, install};

const EPERM: Action = Action::Errno(libc::EPERM as u16);
const ENOSYS: Action = Action::Errno(libc::ENOSYS as u16);

const fn rule(number: libc::c_long, verdict: Verdict<'static>) -> Rule<'static> {
    Rule { number: number as u32, verdict }
}

const fn allow(number: libc::c_long) -> Rule<'static> {
    rule(number, Verdict::Always(Action::Allow))
}

const fn refuse(number: libc::c_long) -> Rule<'static> {
    rule(number, Verdict::Always(EPERM))
}

/// A few rules in the manner of the agent's profile: enough for a child to report, and each kind of decision.
static FILTER: Filter = Filter::compile(&Profile {
    unknown: ENOSYS,
    rules: &[
        allow(libc::SYS_read),
        allow(libc::SYS_write),
        allow(libc::SYS_mmap),
        allow(libc::SYS_rt_sigaction),
        allow(libc::SYS_getpid),
        rule(
            libc::SYS_socket,
            Verdict::AllowIf {
                any: &[&[
                    Condition { argument: 0, mask: 0xffff_ffff, expect: Expect::OneOf(&[1]) },
                    Condition { argument: 1, mask: 0xf, expect: Expect::OneOf(&[1, 2]) },
                ]],
                otherwise: EPERM,
            },
        ),
        allow(libc::SYS_exit),
        refuse(libc::SYS_uname),
        allow(libc::SYS_prctl),
        refuse(libc::SYS_mount),
        allow(libc::SYS_exit_group),
        refuse(libc::SYS_unshare),
        rule(libc::SYS_clone3, Verdict::Always(ENOSYS)),
    ],
});

/// How a child ended.
#[derive(Debug, PartialEq)]
enum End {
    Exit(i32),
    Signal(i32),
}

/// Runs `child` in a process of its own. It may make system calls and nothing else: the parent has other
/// threads, whose locks the child would find taken for ever.
fn in_child(child: impl FnOnce() -> i32) -> End {
    // SAFETY: the child only makes system calls, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", io::Error::last_os_error());
    if pid == 0 {
        let code = child();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` outlives the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    if libc::WIFEXITED(status) {
        End::Exit(libc::WEXITSTATUS(status))
    } else {
        End::Signal(libc::WTERMSIG(status))
    }
}

fn under_filter(child: impl FnOnce() -> i32) -> End {
    in_child(|| if install(&FILTER).is_ok() { child() } else { 99 })
}

/// Makes a call and tells its error number, or 0.
fn errno(number: libc::c_long, arguments: [libc::c_ulong; 3]) -> i32 {
    let [first, second, third] = arguments;
    // SAFETY: the tests pass no pointers but null, which the kernel refuses before anything happens.
    let result = unsafe { libc::syscall(number, first, second, third) };
    if result >= 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
}

#[test]
fn each_decision_reaches_the_caller() {
    let newuser = libc::CLONE_NEWUSER as libc::c_ulong;
    let cloexec = libc::SOCK_CLOEXEC as libc::c_ulong;
    let cases: [(&str, libc::c_long, [libc::c_ulong; 3], i32); 12] = [
        ("allowed", libc::SYS_getpid, [0; 3], 0),
        ("refused", libc::SYS_uname, [0; 3], libc::EPERM),
        ("refused", libc::SYS_unshare, [newuser, 0, 0], libc::EPERM),
        ("refused", libc::SYS_mount, [0; 3], libc::EPERM),
        ("refused as unknown", libc::SYS_clone3, [0; 3], libc::ENOSYS),
        ("unknown, in a gap", libc::SYS_getuid, [0; 3], libc::ENOSYS),
        ("unknown, above all", 4000, [0; 3], libc::ENOSYS),
        ("conditions hold", libc::SYS_socket, [1, 1 | cloexec, 0], 0),
        ("conditions hold for the int", libc::SYS_socket, [1 | 1 << 40, 2, 0], 0),
        ("one condition fails", libc::SYS_socket, [1, 5, 0], libc::EPERM),
        ("the other condition fails", libc::SYS_socket, [2, 1, 0], libc::EPERM),
        ("a skipped call", -1, [0; 3], libc::ENOSYS),
    ];
    for (what, number, arguments, expected) in cases {
        let end = under_filter(|| errno(number, arguments));
        assert_eq!(end, End::Exit(expected), "{what}: call {number} {arguments:x?}");
        // The control: without the filter the outcome is another, unless no kernel has the call or the user
        // may not.
        let fails_anyway = [4000, -1, libc::SYS_unshare].contains(&number);
        if expected != 0 && !fails_anyway {
            assert_ne!(in_child(|| errno(number, arguments)), End::Exit(expected), "{what}: proves nothing");
        }
    }
}

#[test]
fn an_x32_call_kills_the_process() {
    let x32_getpid = 0x4000_0000 + libc::SYS_getpid;
    assert_eq!(under_filter(|| errno(x32_getpid, [0; 3])), End::Signal(libc::SIGSYS));
}

/// `getpid` of the i386 table, by its own gate. The same number is `writev` on x86-64.
#[cfg(target_arch = "x86_64")]
#[test]
fn an_i386_call_kills_the_process() {
    let end = under_filter(|| {
        // SAFETY: takes no arguments and touches no memory; the gate may clobber r8 to r11.
        unsafe {
            std::arch::asm!("int 0x80", inout("eax") 20 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        0
    });
    assert_eq!(end, End::Signal(libc::SIGSYS));
}

/// seccomp(2): mode 2 is a filter, and `no_new_privs` stays set.
#[test]
fn the_filter_is_on_and_privileges_are_off() {
    let end = under_filter(|| {
        // SAFETY: neither option takes a pointer.
        let (mode, privileges) = unsafe {
            (libc::prctl(libc::PR_GET_SECCOMP), libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0))
        };
        mode * 10 + privileges
    });
    assert_eq!(end, End::Exit(21));
}
