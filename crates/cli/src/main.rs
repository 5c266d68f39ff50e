//! The `lockgate` command: dispatches to the modules of `command`.

mod arguments;
mod command;
mod exit;
mod output;
mod progress;
mod stderr;

use rustix::fs::Mode;
use rustix::process::umask;
use sandbox::Ahead;

use crate::arguments::{Arguments, Command};

fn main() -> std::process::ExitCode {
    if let Err(error) = exit::refuse_small_stack() {
        return exit::code(Err(error));
    }
    // Before the first fork: the caller may have ignored SIGCHLD.
    sandbox::reset_sigchld();
    sandbox::ignore_sigxfsz();
    // What this program makes is its own to use, also where the caller's umask shuts out the owner.
    umask(umask(Mode::RWXG | Mode::RWXO) - Mode::RWXU);
    // Every process of a run inherits it, and one with a deadline could start none: sched(7).
    let _ = sandbox::leave_real_time();
    // A file that its user may not read, or that has capabilities, makes its process undumpable, and no copy of that could map ids.
    let _ = sandbox::dumpable();
    // The network namespace takes longest, so it is made while arguments and files are read.
    let ahead = Arguments::begins_a_run().then(Ahead::begin).flatten();
    let arguments = Arguments::read();
    let done = match arguments.command {
        Command::EngineAgent { network, uid, gid } => {
            let first = sandbox::FirstSteps { network, user: uid.zip(gid) };
            return exit::status(sandbox::run_engine_agent(first));
        }
        Command::EngineSidecar => return exit::status(runtime::run_engine_sidecar()),
        Command::EngineAccepts { address, ports } => {
            return exit::status(sandbox::probe_ports(address, &ports));
        }
        Command::Run(run) => command::run::run(*run, ahead),
        Command::Demo => command::demo::demo(),
        Command::DemoAgent => command::demo_agent::agent(),
        Command::DemoUpstream => command::demo::upstream(),
        Command::Policy(policy) => command::policy::policy(policy),
        Command::Sidecar(sidecar) => command::sidecar::sidecar(sidecar),
        Command::Diff { run, stat, paths } => command::changes::diff(run.as_deref(), stat, &paths),
        Command::Apply { run, paths } => command::changes::apply(run.as_deref(), &paths),
        Command::Discard { run } => command::changes::discard(run.as_deref()),
        Command::Doctor { json } => command::doctor::doctor(output::Form::of(json)),
        Command::Runs(runs) => command::runs::runs(runs),
        Command::Audit(audit) => command::audit::audit(audit),
        Command::Image(image) => command::image::image(image),
        Command::Creds(creds) => command::creds::creds(creds),
        Command::Keys(keys) => command::creds::keys(keys),
        Command::Config(config) => command::config::config(config),
        Command::Version => command::version::version(),
        Command::Completion { shell } => command::completion::completion(shell),
    };
    exit::code(done)
}
