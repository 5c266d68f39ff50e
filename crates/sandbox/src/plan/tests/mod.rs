//! Plans as they are printed, what is refused, and that every plan has its steps in order.

mod order;
mod printed;
mod refusals;

use std::path::PathBuf;

use policy::{ByteSize, Layers, Origin, RunId, RunSpec};

use super::additions::Additions;
use super::engine::{EngineAt, EngineImage, EngineKind, EngineRun};
use super::{Plan, plan};
use crate::caller::Caller;
use crate::error::Error;
use crate::host::{Host, LimitsUnavailable};
use crate::host_path::SystemPath;
use crate::mounted::MountsOnceRead;

pub(super) fn planned(config: &str) -> Result<Plan, Error> {
    planned_with(config, &Additions::default())
}

fn planned_with(config: &str, additions: &Additions) -> Result<Plan, Error> {
    let caller = Caller::new(1000, 1000, "/home/me/project")
        .with_home("/home/me")
        .with_env([("PATH", "/home/me/bin:/usr/bin:/opt/x/bin"), ("TOKEN", "t")]);
    plan(&compile(config), &run(), &caller, &machine(), additions, &MountsOnceRead::default())
}

fn compile(config: &str) -> RunSpec {
    let mut layers = Layers::default();
    layers.push(Origin::Flags, toml::from_str(config).unwrap());
    layers.compile().unwrap()
}

fn run() -> RunId {
    "abcdefghjkmn".parse().unwrap()
}

/// A machine that has all but control groups.
fn machine() -> Host {
    Host {
        system: vec![SystemPath::Tree("/usr".into()), SystemPath::Link("/bin".into(), "usr/bin".into())],
        memory: ByteSize::from_mib(16384),
        limits: Err(LimitsUnavailable { why: "there are none".into(), remedy: "make some".into() }),
        landlock: Ok(7),
        memory_attributes: true,
        makes_links: true,
        root_lacks: Vec::new(),
        bundle: Some("/etc/ssl/certs/bundle.pem".into()),
    }
}

fn at_engine(kind: EngineKind, volumes: &[&str]) -> Additions {
    let at = EngineAt {
        socket: "/nonesuch/engine".into(),
        minor_version: 41,
        rootless: false,
        user: (0, 0),
        kind,
    };
    let volumes = volumes.iter().map(PathBuf::from).collect();
    let engine = EngineRun {
        at,
        image: "x".into(),
        config: EngineImage { volumes, ..EngineImage::default() },
        owner: (1000, 1000),
        pool: 0,
        ports: Vec::new(),
        published: Vec::new(),
        slots: PathBuf::new(),
    };
    Additions { engine: Some(engine), ..Additions::default() }
}
