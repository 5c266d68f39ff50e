//! The plan of a companion: an image's root, a network of its own, the same walls, and nothing of this machine inside.

use std::path::Path;

use policy::{Backend, RunId, RunSpec, Wiring};

use super::identity::Identity;
use super::{
    Additions, FORWARD_PORT, GATEWAY_PORT, GATEWAY_SOCKET, Plan, container, home, linux, plan_limits,
    trust_authority,
};
use crate::caller::Caller;
use crate::environment::{self, Planes};
use crate::error::Error;
use crate::host::Host;

/// Makes the plan of a companion. Of `spec` its limits, environment and image count; `run` is a name of its own.
///
/// # Errors
/// When something asked for cannot be done on this host; the error names it and what would help.
pub fn plan_companion(
    spec: &RunSpec,
    probe: &[String],
    run: &RunId,
    caller: &Caller,
    host: &Host,
    additions: &Additions,
) -> Result<Plan, Error> {
    let image = additions
        .image
        .as_ref()
        .ok_or_else(|| Error::Refused { what: "a companion needs an image".into(), remedy: None })?;
    let mut notices = Vec::new();
    let limits = plan_limits(spec, host, &mut notices)?;
    let identity = Identity::of(spec, run, caller, additions)?;
    let home = home(Backend::Container, caller, Some(image));
    let root = (image, home.as_path(), additions.written.as_deref());
    let mut steps = container::root(spec, host, root, &mut notices)?;
    // It has no link, whatever the run has: only its sidecar and the command's reach it.
    linux::finish(&mut steps, Wiring::Redirect, host);
    if additions.opens_tls {
        trust_authority(&mut steps, None);
    }
    let planes = Planes {
        forward: format!("http://sidecar:{FORWARD_PORT}"),
        gateway: format!("http://sidecar:{GATEWAY_PORT}"),
        socket: Some(GATEWAY_SOCKET),
    };
    let environment = environment::build(spec, caller, run, &home, &planes, (&[], &[]), additions)?;
    let root = Path::new("/");
    Ok(Plan {
        run: run.clone(),
        backend: Backend::Container,
        wiring: Wiring::Redirect,
        engine: None,
        identity,
        limits,
        // There is none: it works in its image.
        workspace: root.into(),
        open: Vec::new(),
        directory: spec.directory.clone().unwrap_or_else(|| root.into()),
        home,
        steps,
        probe: probe.to_vec(),
        environment,
        notices,
    })
}
