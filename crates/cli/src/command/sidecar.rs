//! `lockgate sidecar`: the sidecar alone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use egress::Notice;
use policy::{Layers, Merged, RunConfig, RunSpec};
use runtime::{BoundAddresses, Settings, SettingsRequest, SidecarEvent, Standalone, StateDirectory};
use sandbox::{Caller, Signals};

use super::{audit_file, hint};
use crate::arguments::{Sidecar, Spec};
use crate::exit::{Done, Usage};
use crate::output;

/// What is written may be no file that is read, or written as something else.
fn refuse_same_files(arguments: &Sidecar, caller: &Caller) -> Result<(), anyhow::Error> {
    let real = |path: &PathBuf| {
        let path = caller.resolve(path);
        path.canonicalize().unwrap_or(path)
    };
    let named = [
        ("--policy", Some(&arguments.policy)),
        ("--gateway-socket", arguments.gateway_socket.as_ref()),
        ("--ca", arguments.ca.as_ref()),
        ("--env-file", arguments.env_file.as_ref()),
        ("--audit", arguments.audit.as_ref()),
    ];
    // A device may well be named twice.
    let is_file = |path: &Path| path.is_file() || !path.exists();
    let all = named.into_iter().filter_map(|(flag, path)| Some((flag, real(path?))));
    let all: Vec<_> = all.filter(|(_, path)| is_file(path)).collect();
    for (at, (flag, path)) in all.iter().enumerate() {
        if let Some((other, _)) = all[..at].iter().find(|(_, before)| before == path) {
            let what = format!("{other} and {flag} name the same file, {}", path.display());
            return Err(Usage::error(what, "give each a file of its own"));
        }
    }
    Ok(())
}

/// Where it listens for one thing, it can for no other.
fn refuse_same_places(arguments: &Sidecar) -> Result<(), anyhow::Error> {
    let named = [
        ("--forward", Some(arguments.forward)),
        ("--gateway", arguments.gateway),
        // Over TCP as well.
        ("--dns", arguments.dns),
        ("--transparent", arguments.transparent),
    ];
    // Each port 0 is another free one.
    let is_one = |place: &SocketAddr| place.port() != 0;
    let all: Vec<_> =
        named.into_iter().filter_map(|(flag, place)| Some((flag, place.filter(is_one)?))).collect();
    for (at, (flag, place)) in all.iter().enumerate() {
        if let Some((other, _)) = all[..at].iter().find(|(_, before)| before == place) {
            let what = format!("{other} and {flag} name the same place, {place}");
            return Err(Usage::error(what, "give each a port of its own; port 0 takes a free one"));
        }
    }
    Ok(())
}

/// Refuses a folder in place of a file that is to be written, and a file in a folder that is not there.
fn refuse_missing_folders(arguments: &Sidecar, caller: &Caller) -> Result<(), anyhow::Error> {
    let named = [
        ("--ca", &arguments.ca),
        ("--env-file", &arguments.env_file),
        ("--gateway-socket", &arguments.gateway_socket),
    ];
    for (flag, path) in named {
        let Some(path) = path.as_ref().map(|path| caller.resolve(path)) else { continue };
        let why = match path.parent() {
            _ if path.is_dir() => "it is a folder",
            Some(folder) if !folder.is_dir() => "there is no such folder",
            _ => continue,
        };
        let what = format!("{flag} {}: {why}", path.display());
        return Err(Usage::error(what, "name a file in a folder that you may write to"));
    }
    Ok(())
}

/// What would change its answers, and takes a sandbox of the run's.
fn refuse_what_takes_a_sandbox(spec: &RunSpec) -> Result<(), anyhow::Error> {
    let refused = |what: String, hint: &str| Err(Usage::error(what, hint));
    if let Some(name) = spec.policy.providers().flat_map(|it| it.exposed()).next() {
        let what = format!(
            "the policy exposes `{name}`, and a sidecar alone has no sandbox to put a credential into"
        );
        return refused(what, "leave `expose` out; --env-file gets the placeholders");
    }
    if let Some(companion) = spec.companions.first() {
        let what = format!(
            "the policy has companion `{}`, and a sidecar alone starts and reaches none",
            companion.name
        );
        return refused(what, "leave `companion` out, and allow the service's own host and address");
    }
    if let Some(inbound) = spec.inbound.first() {
        let what = format!(
            "the policy opens port {} to a command (`inbound`), and a sidecar alone has none",
            inbound.host_port
        );
        return refused(what, "leave `inbound` out");
    }
    Ok(())
}

/// Returns what a policy file says of a sandbox: whoever brings one holds it, or nobody does. The addresses of names are those of its DNS.
fn not_held(layers: &Layers, file: &str, dns: Option<SocketAddr>) -> Vec<String> {
    const HELD: [&str; 8] =
        ["presets", "org", "providers", "web_search", "provider", "proxy", "llm", "egress"];
    let is_held = |field: &str| HELD.contains(&field) || field == "name_addresses" && dns.is_some();
    let mut others: Vec<String> = Vec::new();
    for row in layers.origins().into_iter().filter(|row| row.origin == file) {
        let mut parts = row.field.split('.');
        let name = match (parts.next(), parts.next()) {
            (Some("env"), Some("variable")) | (None, _) => continue,
            (Some("env"), Some(part)) => format!("env.{part}"),
            (Some(field), _) if is_held(field) => continue,
            (Some(field), _) => field.to_owned(),
        };
        if !others.contains(&name) {
            others.push(name);
        }
    }
    others
}

/// Names the layers beside a policy file that add rules, which whoever named one file may not expect.
fn tell_other_layers(layers: &Layers, file: &str) {
    let adds = |field: &str| match field.split('.').next() {
        Some("presets" | "providers" | "provider" | "web_search") => true,
        Some("egress") => matches!(field, "egress.allow" | "egress.default"),
        _ => false,
    };
    let mut others: Vec<String> = Vec::new();
    let is_beside = |row: &Merged| row.origin != file && !row.is_default() && adds(&row.field);
    for row in layers.origins().into_iter().filter(is_beside) {
        let other = format!("{} ({})", row.origin, row.field);
        if !others.contains(&other) {
            others.push(other);
        }
    }
    if !others.is_empty() {
        output::tell(&format!("note: beside {file}, these say what is allowed: {}", others.join(", ")));
    }
}

/// Tells what is denied or fails as it happens, for who looks after the sidecar.
fn tell_notice(notice: &Notice) {
    // It names the file of `--policy` already.
    let hint = notice.hint.as_ref().map(|hint| format!("\n  {}", hint::told(hint, &Spec::default())));
    output::tell(&format!("{}{}", notice.line(), hint.unwrap_or_default()));
}

/// Tells what a sidecar does.
struct Telling {
    /// Whether denials and faults are left to the audit.
    quiet: bool,
    /// The gateway's socket, as it is shown.
    socket: Option<String>,
}

impl Telling {
    fn tell(&self, heard: SidecarEvent<'_>) {
        match heard {
            SidecarEvent::Fault(_) | SidecarEvent::Notice(_) | SidecarEvent::NoMoreDenials if self.quiet => {}
            SidecarEvent::Fault(why) => output::tell(&format!("note: {why}")),
            SidecarEvent::Missing(missing) => output::tell(&format!(
                "note: cannot find {missing}; what needs it fails until it is stored\n  {}",
                missing.remedy()
            )),
            SidecarEvent::Notice(notice) => tell_notice(notice),
            SidecarEvent::NoMoreDenials => {
                output::tell("further denials and failures are not shown here; --audit keeps them all");
            }
            SidecarEvent::Ending(left) => {
                let left = left.as_secs() + 1;
                output::tell(&format!(
                    "no more connections are taken; what is under way has {left} s, and a second signal ends it"
                ));
            }
            SidecarEvent::Listening(places) => self.tell_places(&places),
            SidecarEvent::Used(models) => output::tell(&output::models(models)),
        }
    }

    fn tell_places(&self, places: &BoundAddresses) {
        let BoundAddresses { forward, gateway, dns, transparent } = places;
        let gateway = gateway.map(|address| format!("http://{address}"));
        let gateway = gateway.into_iter().chain(self.socket.clone());
        let gateway: String = gateway.map(|place| format!(", gateway at {place}")).collect();
        let dns = dns.map(|address| format!(", DNS at {address}")).unwrap_or_default();
        let transparent =
            transparent.map(|address| format!(", redirected connections at {address}")).unwrap_or_default();
        output::tell(&format!("proxy at http://{forward}{gateway}{dns}{transparent}; end it with Ctrl-C"));
    }
}

/// Names the places that others than this machine's programs may reach.
fn tell_open_places(places: [Option<SocketAddr>; 3]) {
    for open in places.into_iter().flatten().filter(|it| !it.ip().is_loopback()) {
        output::tell(&format!(
            "note: whoever reaches {open} uses this policy, and the credentials it binds: keep others away from it"
        ));
    }
}

pub(crate) fn sidecar(arguments: Sidecar) -> Done {
    let mut caller = super::caller()?;
    refuse_same_files(&arguments, &caller)?;
    refuse_same_places(&arguments)?;
    refuse_missing_folders(&arguments, &caller)?;
    // Many a container has none, and needs none.
    let state = StateDirectory::of(&caller);
    let flags = RunConfig { org: arguments.org, ..RunConfig::default() };
    let named = caller.resolve(&arguments.policy).display().to_string();
    let request = SettingsRequest { policy: Some(arguments.policy), flags, ..SettingsRequest::default() };
    let Settings { layers, mut spec, .. } = Settings::load(&request, &caller, state.as_ref().ok())?;
    refuse_what_takes_a_sandbox(&spec)?;
    if arguments.dns.is_none() {
        spec.answer_for_no_name();
    }
    let not_held = not_held(&layers, &named, arguments.dns);
    if !not_held.is_empty() {
        output::tell(&format!("note: the sidecar alone does not hold: {}", not_held.join(", ")));
    }
    tell_other_layers(&layers, &named);
    spec.notices.iter().for_each(|notice| output::tell(&format!("note: {notice}")));
    spec.policy.keep_in(&named);
    let run = runtime::new_run_id()?;
    let audit = match &arguments.audit {
        Some(path) => Some(audit_file::open(path, &run, &state?)?),
        None => None,
    };
    // Where each start has a file of its own, those that came to nothing leave none.
    let own =
        audit.as_ref().map(|audit| audit.path.clone()).filter(|path| Some(path) != arguments.audit.as_ref());
    if spec.policy.may_open() && arguments.ca.is_none() {
        output::tell(
            "note: rules speak of paths or credentials, and without --ca no TLS is opened to see them",
        );
    }
    tell_open_places([Some(arguments.forward), arguments.gateway, arguments.transparent]);
    let socket = arguments.gateway_socket.as_ref().map(|path| output::path(path));
    let telling = Telling { quiet: arguments.quiet, socket };
    let standalone = Standalone {
        policy: spec.policy,
        spending: spec.spending,
        name_addresses: spec.name_addresses,
        organisation: spec.organisation,
        forward: arguments.forward,
        gateway: arguments.gateway,
        gateway_socket: arguments.gateway_socket,
        dns: arguments.dns,
        transparent: arguments.transparent,
        authority: arguments.ca,
        environment: arguments.env_file,
        audit,
        run,
        grace: arguments.grace,
    };
    let signals = Signals::block_forwarded(&[])?;
    let served = runtime::serve_standalone(standalone, &mut caller, &signals, |heard| telling.tell(heard));
    if let (Err(_), Some(path)) = (&served, own)
        && path.metadata().is_ok_and(|it| it.len() == 0)
    {
        let _ = std::fs::remove_file(path);
    }
    served?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use policy::{Asked, Host, Origin, Plane, Port, View};

    use super::*;

    #[test]
    fn the_addresses_of_names_are_held_where_there_is_dns() {
        let text = "name_addresses = \"22.0.0.0/16\"\ntimeout = \"1h\"\negress.default = \"open-internet\"";
        let mut layers = Layers::default();
        layers.push(Origin::Named("file".into()), toml::from_str(text).unwrap());
        let dns = "127.0.0.1:53".parse().unwrap();
        assert_eq!(not_held(&layers, "file", Some(dns)), ["timeout"]);
        assert_eq!(not_held(&layers, "file", None), ["name_addresses", "timeout"]);
        let mut spec = layers.compile().unwrap();
        let host = || Host::parse("22.0.7.7").unwrap();
        let asked = || Asked::connection(Plane::Forward, host(), Port::parse("443").unwrap(), View::Tls);
        spec.policy.decide(&asked()).unwrap_err();
        spec.answer_for_no_name();
        spec.policy.decide(&asked()).unwrap();
    }
}
