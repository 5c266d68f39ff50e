//! The peer of `benches/hudsucker`: a proxy on the library of that name, which terminates TLS as the product does, or forwards
//! plain HTTP. It is started like the product's own sidecar, with files in the same places.

use std::fs;

use anyhow::Result;

use super::proxies::{Origin, Plane, Way};
use super::sample::Role;
use super::server::{Server, free_port};
use super::{Bench, machine};

pub(super) const PEER: &str = "hudsucker";

/// Returns the way through the peer, if it is installed: over TLS with a secret, over plain HTTP without one.
pub(super) fn way(
    bench: &Bench,
    origin: &Origin,
    secret: Option<&str>,
    skipped: &mut Vec<String>,
) -> Result<Option<Way>> {
    let Some(program) = machine::find(PEER) else {
        skipped.push(format!("{PEER} is not installed; `cargo install --path benches/{PEER}` does"));
        return Ok(None);
    };
    let folder = &bench.folder;
    let (name, plane) = match secret {
        Some(_) => ("hudsucker-tls", Plane::Tunnel),
        None => ("hudsucker-plain", Plane::Plain),
    };
    let at = |what: &str| folder.join(format!("{name}-{what}"));
    let (authority, file) = (at("ca.pem"), at("secret"));
    let dial = free_port()?;
    let mut args = [
        "--listen".to_owned(),
        dial.to_string(),
        "--address".into(),
        origin.address.ip().to_string(),
        "--authority".into(),
        origin.authority.to_string_lossy().into_owned(),
        "--ca".into(),
        authority.to_string_lossy().into_owned(),
    ]
    .to_vec();
    if let Some(secret) = secret {
        fs::write(&file, secret)?;
        args.extend(["--secret".into(), file.to_string_lossy().into_owned()]);
    }
    let server = Server::start(name, &program, &args, folder)?.await_port(dial, folder)?;
    let authority = Some(authority);
    Ok(Some(Way { name: PEER, role: Role::Peer, dial, plane, authority, server: Some(server) }))
}
