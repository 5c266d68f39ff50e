//! The identity of this process: ids, capabilities, seccomp, namespaces, limits, session, and the processes it can see.
//! It reads and reports; nothing is changed.

use std::fs;

use serde_json::{Map, Value, json};

use crate::Probe;
use crate::report::Report;

pub(crate) const PROBES: &[Probe] = &[
    Probe { name: "identity", usage: "", run: |_| Some(identity()) },
    Probe { name: "environment", usage: "", run: |_| Some(environment()) },
    Probe { name: "processes", usage: "", run: |_| Some(Report::done(visible())) },
    Probe { name: "see", usage: "TEXT (a process whose command line holds it)", run: see },
];

fn identity() -> Report {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(|text| text.trim().to_owned())
    };
    // SAFETY: these only read attributes of the calling process.
    let (ruid, euid, rgid, egid, session, dumpable) = unsafe {
        (
            libc::getuid(),
            libc::geteuid(),
            libc::getgid(),
            libc::getegid(),
            libc::getsid(0),
            libc::prctl(libc::PR_GET_DUMPABLE),
        )
    };
    Report::done(json!({
        "uid": ruid, "euid": euid, "gid": rgid, "egid": egid, "pid": std::process::id(), "session": session,
        "groups": field("Groups"), "dumpable": dumpable,
        "capabilities": {
            "inheritable": field("CapInh"), "permitted": field("CapPrm"), "effective": field("CapEff"),
            "bounding": field("CapBnd"), "ambient": field("CapAmb"),
        },
        "no_new_privs": field("NoNewPrivs"), "seccomp": field("Seccomp"), "filters": field("Seccomp_filters"),
        "hostname": fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim(),
        "uid_map": fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
        "terminal": fs::File::open("/dev/tty").is_ok(),
        "namespaces": namespaces(), "limits": limits(), "directory": std::env::current_dir().ok(),
    }))
}

fn namespaces() -> Value {
    let mut found = Map::new();
    for entry in fs::read_dir("/proc/self/ns").into_iter().flatten().flatten() {
        if let Ok(target) = fs::read_link(entry.path()) {
            found.insert(entry.file_name().to_string_lossy().into_owned(), target.to_string_lossy().into());
        }
    }
    found.into()
}

fn limits() -> Value {
    let mut found = Map::new();
    let kinds = [
        ("nofile", libc::RLIMIT_NOFILE),
        ("nproc", libc::RLIMIT_NPROC),
        ("core", libc::RLIMIT_CORE),
        ("fsize", libc::RLIMIT_FSIZE),
        ("memlock", libc::RLIMIT_MEMLOCK),
        ("as", libc::RLIMIT_AS),
    ];
    for (name, kind) in kinds {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place for the answer.
        if unsafe { libc::getrlimit(kind, &mut limit) } == 0 {
            found.insert(name.to_owned(), json!({ "soft": limit.rlim_cur, "hard": limit.rlim_max }));
        }
    }
    found.into()
}

fn environment() -> Report {
    let variables: Map<String, Value> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into()))
        .collect();
    Report::done(variables)
}

/// Returns every process under `/proc`, with its state and command line.
fn visible() -> Vec<Value> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        found.push(json!({ "pid": pid, "state": state.map(String::from), "command": line.trim() }));
    }
    found
}

fn see(arguments: &[String]) -> Option<Report> {
    let [text] = arguments else { return None };
    let own = std::process::id();
    let matches: Vec<Value> = visible()
        .into_iter()
        .filter(|process| {
            process["pid"] != own && process["command"].as_str().is_some_and(|line| line.contains(text))
        })
        .collect();
    Some(if matches.is_empty() { Report::absent(Value::Null) } else { Report::done(matches) })
}
