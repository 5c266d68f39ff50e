//! Turns profiles/seccomp/*.toml into `$OUT_DIR/seccomp.rs`: two statics, `AGENT` and `SIDECAR`, that rustc
//! compiles to filters.
//!
//! A profile is checked here as a whole, so that a mistake names its file and its call; what a profile means
//! is decided by `sys::seccomp`. The table below holds every call of the x86-64 kernel that libc knows and
//! the kernel implements. It must never grow numbers: a call that libc lacks gets its number in the profile.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde::Deserialize;

/// The profiles, from the crate's directory, and the static each becomes.
const PROFILES: [(&str, &str, &str); 2] = [
    ("agent.toml", "AGENT", "What the command in a sandbox may ask of the kernel."),
    ("sidecar.toml", "SIDECAR", "What the sidecar may ask of the kernel once it serves."),
];
const DIRECTORY: &str = "../../profiles/seccomp";

fn main() -> Result<(), Problem> {
    let directory = cargo_path("CARGO_MANIFEST_DIR")?.join(DIRECTORY);
    println!("cargo::rerun-if-changed=build.rs");
    let mut pages = Vec::new();
    for (file, item, about) in PROFILES {
        let path = directory.join(file);
        println!("cargo::rerun-if-changed={}", path.display());
        pages.push((read(&path)?, path, item, about));
    }
    let mut numbers = Numbers::of_libc();
    for (config, path, ..) in &pages {
        numbers.learn(config).map_err(|problem| problem.in_file(path))?;
    }
    let mut code = String::new();
    for (config, path, item, about) in &pages {
        let rules = rules(config, &numbers).map_err(|problem| problem.in_file(path))?;
        print(&mut code, item, about, &rules);
    }
    let out = cargo_path("OUT_DIR")?.join("seccomp.rs");
    fs::write(&out, code).map_err(|error| Problem::new("", error).in_file(&out))
}

/// A directory that Cargo tells a build script by this variable.
fn cargo_path(variable: &str) -> Result<PathBuf, Problem> {
    env::var_os(variable)
        .map(PathBuf::from)
        .ok_or_else(|| Problem::new(variable, "is not set; run this by cargo"))
}

fn read(path: &Path) -> Result<ProfileConfig, Problem> {
    let text = fs::read_to_string(path).map_err(|error| Problem::new("", error).in_file(path))?;
    toml::from_str(&text).map_err(|error| Problem::new("", error).in_file(path))
}

// ---- The page as it is written ------------------------------------------------------------------------------------

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileConfig {
    allow: Vec<AllowConfig>,
    conditional: Vec<ConditionalConfig>,
    refuse: Vec<RefuseConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowConfig {
    purpose: String,
    calls: Vec<AllowedConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedConfig {
    name: String,
    number: Option<u32>,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionalConfig {
    name: String,
    number: Option<u32>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    errno: Errno,
    when: Vec<Vec<TestConfig>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TestConfig {
    arg: u8,
    mask: Option<u64>,
    #[serde(default)]
    long: bool,
    is: Option<Vec<u64>>,
    not: Option<Vec<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RefuseConfig {
    #[serde(default)]
    reason: String,
    #[serde(default)]
    errno: Errno,
    calls: Vec<RefusedConfig>,
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum RefusedConfig {
    Name(String),
    Numbered { name: String, number: u32 },
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Errno {
    #[default]
    Eperm,
    Einval,
    Enosys,
    /// The call does nothing and returns 0.
    None,
}

impl Errno {
    const fn number(self) -> i32 {
        match self {
            Self::Eperm => libc::EPERM,
            Self::Einval => libc::EINVAL,
            Self::None => 0,
            Self::Enosys => libc::ENOSYS,
        }
    }
}

impl RefusedConfig {
    fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::Numbered { name, .. } => name,
        }
    }

    const fn number(&self) -> Option<u32> {
        match self {
            Self::Name(_) => None,
            Self::Numbered { number, .. } => Some(*number),
        }
    }
}

impl ProfileConfig {
    /// Every call the page names, with the number it gives.
    fn named(&self) -> impl Iterator<Item = (&str, Option<u32>)> {
        let allowed = self.allow.iter().flat_map(|group| &group.calls);
        let refused = self.refuse.iter().flat_map(|group| &group.calls);
        allowed
            .map(|call| (call.name.as_str(), call.number))
            .chain(self.conditional.iter().map(|call| (call.name.as_str(), call.number)))
            .chain(refused.map(|call| (call.name(), call.number())))
    }
}

// ---- The rules it means -------------------------------------------------------------------------------------------

/// Rust source of one verdict, by number.
type Rules = BTreeMap<u32, String>;

/// Every known call gets a rule: what the page says, or EPERM. Only what is newer than the page has none.
fn rules(config: &ProfileConfig, numbers: &Numbers) -> Result<Rules, Problem> {
    let mut rules = Rules::new();
    let mut add = |name: &str, reason: &str, verdict: String| {
        if reason.trim().is_empty() {
            return Err(Problem::new(name, "has no reason beside it"));
        }
        match rules.insert(numbers.find(name)?, verdict) {
            None => Ok(()),
            Some(_) => Err(Problem::new(name, "is on the page twice")),
        }
    };
    for group in &config.allow {
        for call in &group.calls {
            if group.purpose.trim().is_empty() {
                return Err(Problem::new(&call.name, "is in a group without a purpose"));
            }
            add(&call.name, &call.reason, "Verdict::Always(Action::Allow)".to_owned())?;
        }
    }
    for call in &config.conditional {
        add(&call.name, &call.reason, allow_if(call)?)?;
    }
    for group in &config.refuse {
        for call in &group.calls {
            add(call.name(), &group.reason, always(group.errno))?;
        }
    }
    for &number in numbers.0.values() {
        rules.entry(number).or_insert_with(|| always(Errno::Eperm));
    }
    Ok(rules)
}

fn always(errno: Errno) -> String {
    format!("Verdict::Always(Action::Errno({}))", errno.number())
}

fn allow_if(call: &ConditionalConfig) -> Result<String, Problem> {
    let problem = |what: &str| Err(Problem::new(&call.name, what));
    if call.when.is_empty() {
        return problem("has no alternative in `when`");
    }
    let mut any = String::new();
    for alternative in &call.when {
        if alternative.is_empty() {
            return problem("has an alternative without a test");
        }
        let tests: Result<String, _> = alternative.iter().map(condition).collect();
        match tests {
            Ok(tests) => any += &format!("&[{tests}], "),
            Err(what) => return problem(what),
        }
    }
    let otherwise = call.errno.number();
    Ok(format!("Verdict::AllowIf {{ any: &[{any}], otherwise: Action::Errno({otherwise}) }}"))
}

fn condition(test: &TestConfig) -> Result<String, &'static str> {
    let whole = if test.long { u64::MAX } else { u32::MAX.into() };
    let mask = test.mask.unwrap_or(whole);
    let (expect, values) = match (&test.is, &test.not) {
        (Some(values), None) => ("OneOf", values),
        (None, Some(values)) => ("NoneOf", values),
        _ => return Err("has a test that needs either `is` or `not`"),
    };
    if test.arg > 5 {
        return Err("has a test of an argument above 5");
    }
    if mask == 0 || mask & !whole != 0 {
        return Err("has a test whose mask is empty, or wider than an int without `long = true`");
    }
    if values.is_empty() || values.iter().any(|value| value & !mask != 0) {
        return Err("has a test without values, or with one that its mask hides");
    }
    let argument = test.arg;
    Ok(format!(
        "Condition {{ argument: {argument}, mask: {mask:#x}, expect: Expect::{expect}(&{values:?}) }}, "
    ))
}

fn print(code: &mut String, item: &str, about: &str, rules: &Rules) {
    let unknown = libc::ENOSYS;
    let list: String = rules
        .iter()
        .map(|(number, verdict)| format!("        Rule {{ number: {number}, verdict: {verdict} }},\n"))
        .collect();
    // Writing to a String cannot fail.
    let _ = write!(
        code,
        "/// {about}\npub(crate) static {item}: sys::seccomp::Filter = {{\n    \
         use sys::seccomp::{{Action, Condition, Expect, Filter, Profile, Rule, Verdict}};\n    \
         Filter::compile(&Profile {{ unknown: Action::Errno({unknown}), rules: &[\n{list}    ] }})\n}};\n\n"
    );
}

// ---- Names and numbers --------------------------------------------------------------------------------------------

/// The number of every known call, by name.
struct Numbers(BTreeMap<String, u32>);

impl Numbers {
    fn find(&self, name: &str) -> Result<u32, Problem> {
        let unknown = || Problem::new(name, "is no known call; a new one needs its `number`");
        self.0.get(name).copied().ok_or_else(unknown)
    }

    /// Takes in the numbers a page gives for calls that libc lacks.
    fn learn(&mut self, config: &ProfileConfig) -> Result<(), Problem> {
        for (name, number) in config.named() {
            let Some(number) = number else { continue };
            if self.0.contains_key(name) {
                return Err(Problem::new(name, "has a number already; leave it out here"));
            }
            if let Some((other, _)) = self.0.iter().find(|(_, known)| **known == number) {
                return Err(Problem::new(name, format_args!("has the number of `{other}`")));
            }
            self.0.insert(name.to_owned(), number);
        }
        Ok(())
    }
}

/// What is wrong with a profile, and where.
struct Problem {
    file: String,
    name: String,
    what: String,
}

impl Problem {
    fn new(name: &str, what: impl fmt::Display) -> Self {
        Self { file: String::new(), name: name.to_owned(), what: what.to_string() }
    }

    fn in_file(self, path: &Path) -> Self {
        Self { file: path.display().to_string(), ..self }
    }
}

/// Cargo shows a build script's error in its `Debug` form.
impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, name, what } = self;
        if !file.is_empty() {
            write!(f, "{file}: ")?;
        }
        if !name.is_empty() {
            write!(f, "`{name}` ")?;
        }
        f.write_str(what)
    }
}

macro_rules! of_libc {
    ($($constant:ident)*) => {
        impl Numbers {
            fn of_libc() -> Self {
                Self([$((stringify!($constant), libc::$constant)),*]
                    .into_iter()
                    .filter_map(|(constant, number)| Some((constant.strip_prefix("SYS_")?, number)))
                    .filter_map(|(name, number)| Some((name.to_owned(), u32::try_from(number).ok()?)))
                    .collect())
            }
        }
    };
}

of_libc! {
    SYS_read SYS_write SYS_open SYS_close SYS_stat SYS_fstat SYS_lstat SYS_poll SYS_lseek SYS_mmap
    SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_ioctl
    SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_access SYS_pipe SYS_select SYS_sched_yield SYS_mremap
    SYS_msync SYS_mincore SYS_madvise SYS_shmget SYS_shmat SYS_shmctl SYS_dup SYS_dup2 SYS_pause
    SYS_nanosleep SYS_getitimer SYS_alarm SYS_setitimer SYS_getpid SYS_sendfile SYS_socket SYS_connect
    SYS_accept SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_shutdown SYS_bind SYS_listen
    SYS_getsockname SYS_getpeername SYS_socketpair SYS_setsockopt SYS_getsockopt SYS_clone SYS_fork SYS_vfork
    SYS_execve SYS_exit SYS_wait4 SYS_kill SYS_uname SYS_semget SYS_semop SYS_semctl SYS_shmdt SYS_msgget
    SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_truncate SYS_ftruncate
    SYS_getdents SYS_getcwd SYS_chdir SYS_fchdir SYS_rename SYS_mkdir SYS_rmdir SYS_creat SYS_link SYS_unlink
    SYS_symlink SYS_readlink SYS_chmod SYS_fchmod SYS_chown SYS_fchown SYS_lchown SYS_umask SYS_gettimeofday
    SYS_getrlimit SYS_getrusage SYS_sysinfo SYS_times SYS_ptrace SYS_getuid SYS_syslog SYS_getgid SYS_setuid
    SYS_setgid SYS_geteuid SYS_getegid SYS_setpgid SYS_getppid SYS_getpgrp SYS_setsid SYS_setreuid
    SYS_setregid SYS_getgroups SYS_setgroups SYS_setresuid SYS_getresuid SYS_setresgid SYS_getresgid
    SYS_getpgid SYS_setfsuid SYS_setfsgid SYS_getsid SYS_capget SYS_capset SYS_rt_sigpending
    SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_sigsuspend SYS_sigaltstack SYS_utime SYS_mknod SYS_uselib
    SYS_personality SYS_ustat SYS_statfs SYS_fstatfs SYS_sysfs SYS_getpriority SYS_setpriority
    SYS_sched_setparam SYS_sched_getparam SYS_sched_setscheduler SYS_sched_getscheduler
    SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_mlock SYS_munlock
    SYS_mlockall SYS_munlockall SYS_vhangup SYS_modify_ldt SYS_pivot_root SYS__sysctl SYS_prctl
    SYS_arch_prctl SYS_adjtimex SYS_setrlimit SYS_chroot SYS_sync SYS_acct SYS_settimeofday SYS_mount
    SYS_umount2 SYS_swapon SYS_swapoff SYS_reboot SYS_sethostname SYS_setdomainname SYS_iopl SYS_ioperm
    SYS_init_module SYS_delete_module SYS_quotactl SYS_nfsservctl SYS_gettid SYS_readahead SYS_setxattr
    SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr SYS_llistxattr
    SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr SYS_tkill SYS_time SYS_futex
    SYS_sched_setaffinity SYS_sched_getaffinity SYS_io_setup SYS_io_destroy SYS_io_getevents SYS_io_submit
    SYS_io_cancel SYS_lookup_dcookie SYS_epoll_create SYS_remap_file_pages SYS_getdents64 SYS_set_tid_address
    SYS_restart_syscall SYS_semtimedop SYS_fadvise64 SYS_timer_create SYS_timer_settime SYS_timer_gettime
    SYS_timer_getoverrun SYS_timer_delete SYS_clock_settime SYS_clock_gettime SYS_clock_getres
    SYS_clock_nanosleep SYS_exit_group SYS_epoll_wait SYS_epoll_ctl SYS_tgkill SYS_utimes SYS_mbind
    SYS_set_mempolicy SYS_get_mempolicy SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive
    SYS_mq_notify SYS_mq_getsetattr SYS_kexec_load SYS_waitid SYS_add_key SYS_request_key SYS_keyctl
    SYS_ioprio_set SYS_ioprio_get SYS_inotify_init SYS_inotify_add_watch SYS_inotify_rm_watch
    SYS_migrate_pages SYS_openat SYS_mkdirat SYS_mknodat SYS_fchownat SYS_futimesat SYS_newfstatat
    SYS_unlinkat SYS_renameat SYS_linkat SYS_symlinkat SYS_readlinkat SYS_fchmodat SYS_faccessat SYS_pselect6
    SYS_ppoll SYS_unshare SYS_set_robust_list SYS_get_robust_list SYS_splice SYS_tee SYS_sync_file_range
    SYS_vmsplice SYS_move_pages SYS_utimensat SYS_epoll_pwait SYS_signalfd SYS_timerfd_create SYS_eventfd
    SYS_fallocate SYS_timerfd_settime SYS_timerfd_gettime SYS_accept4 SYS_signalfd4 SYS_eventfd2
    SYS_epoll_create1 SYS_dup3 SYS_pipe2 SYS_inotify_init1 SYS_preadv SYS_pwritev SYS_rt_tgsigqueueinfo
    SYS_perf_event_open SYS_recvmmsg SYS_fanotify_init SYS_fanotify_mark SYS_prlimit64 SYS_name_to_handle_at
    SYS_open_by_handle_at SYS_clock_adjtime SYS_syncfs SYS_sendmmsg SYS_setns SYS_getcpu SYS_process_vm_readv
    SYS_process_vm_writev SYS_kcmp SYS_finit_module SYS_sched_setattr SYS_sched_getattr SYS_renameat2
    SYS_seccomp SYS_getrandom SYS_memfd_create SYS_kexec_file_load SYS_bpf SYS_execveat SYS_userfaultfd
    SYS_membarrier SYS_mlock2 SYS_copy_file_range SYS_preadv2 SYS_pwritev2 SYS_pkey_mprotect SYS_pkey_alloc
    SYS_pkey_free SYS_statx SYS_rseq SYS_pidfd_send_signal SYS_io_uring_setup SYS_io_uring_enter
    SYS_io_uring_register SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
    SYS_pidfd_open SYS_clone3 SYS_close_range SYS_openat2 SYS_pidfd_getfd SYS_faccessat2 SYS_process_madvise
    SYS_epoll_pwait2 SYS_mount_setattr SYS_quotactl_fd SYS_landlock_create_ruleset SYS_landlock_add_rule
    SYS_landlock_restrict_self SYS_memfd_secret SYS_process_mrelease SYS_futex_waitv
    SYS_set_mempolicy_home_node SYS_fchmodat2 SYS_mseal
}
