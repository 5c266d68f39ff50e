//! `probe NAME [ARGS…]`: makes one attempt from wherever it runs and prints one JSON object with its result.
//! It runs inside sandboxes, and outside as the positive control. It judges nothing, keeps nothing, bounds every loop and wait, and exits 0
//! whenever it could report (2 on a usage error).

mod canary;
mod child;
mod confinement;
mod connect;
mod dns;
mod families;
mod files;
mod fuzz_requests;
mod http;
mod identity;
mod limits;
mod netlink;
mod processes;
mod report;
mod syscalls;
mod terminal;
mod tls;
mod unix;

use std::process::ExitCode;

use report::Report;

/// One attempt by name. The function receives the arguments after the name, and returns `None` if they are wrong.
pub(crate) struct Probe {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The arguments, for the list.
    pub(crate) usage: &'static str,
    /// The attempt.
    pub(crate) run: fn(&[String]) -> Option<Report>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    match arguments.split_first() {
        Some((name, _)) if name == "--list" => {
            probes().for_each(|probe| println!("{} {}", probe.name, probe.usage));
            ExitCode::SUCCESS
        }
        Some((name, rest)) => attempt(name, rest),
        None => misuse("probe NAME [ARGS…]; `probe --list` names them"),
    }
}

fn attempt(name: &str, arguments: &[String]) -> ExitCode {
    let Some(probe) = probes().find(|probe| probe.name == name) else {
        return misuse(&format!("no probe is called `{name}`; `probe --list` names them"));
    };
    let Some(report) = (probe.run)(arguments) else {
        return misuse(&format!("probe {} {}", probe.name, probe.usage));
    };
    println!("{}", report.object(name));
    ExitCode::SUCCESS
}

fn misuse(message: &str) -> ExitCode {
    eprintln!("usage: {message}");
    ExitCode::from(2)
}

fn probes() -> impl Iterator<Item = &'static Probe> {
    [
        files::PROBES,
        canary::PROBES,
        confinement::PROBES,
        identity::PROBES,
        syscalls::PROBES,
        processes::PROBES,
        limits::PROBES,
        connect::PROBES,
        http::PROBES,
        fuzz_requests::PROBES,
        dns::PROBES,
        tls::PROBES,
        families::PROBES,
        netlink::PROBES,
        unix::PROBES,
        terminal::PROBES,
    ]
    .into_iter()
    .flatten()
}
