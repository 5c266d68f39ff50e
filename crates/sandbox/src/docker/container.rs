//! The requests for the two containers of a run: pure functions of the plan.
//!
//! Bind mounts are requested as `Mounts` only, never also as `Binds`: two fields with one meaning can contradict each other. Everything
//! that confines the agent is stated, even if it is an engine's default.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountType, MountVolumeOptions, NetworkingConfig, ResourcesUlimits,
};
use policy::agreed::{SANDBOX_NAME, SIDECAR_NAME};
use policy::{ByteSize, Inbound, MountMode, WorkspaceMode};

use super::engine::endpoint;
use super::names::{
    BINARY, EGRESS, LABEL_POOL, LABEL_VERSION, OWN, POOL_NETWORK, binary_at, labels, network_name,
};
use super::network_filter::Beginning;
use super::{copies, overlay, published};
use crate::plan::Plan;
use crate::plan::engine::EngineKind;
use crate::plan::limits::LimitsPlan;
use crate::rlimit;
use crate::run_network::RunNetwork;
use crate::step::{Step, Visible};

/// A protected path, mounted over itself, and how it may be used.
pub(super) type Protected = (PathBuf, MountMode);

/// The directory of the run's authority.
const TRUST: &str = "/.lockgate-etc";
/// The argument by which our binary knows that it is the agent's init.
pub const INSIDE_AGENT: &str = "engine-agent";
/// The argument by which our binary knows that it is the sidecar.
pub const INSIDE_SIDECAR: &str = "engine-sidecar";
/// The threads of our own init, beside those of the command.
pub(super) const OWN_PROCESSES: i64 = 2;

/// The limit of open files.
pub(super) const OPEN_FILES: u64 = 8192;

/// Returns the request for the agent's container. `place` is where it has our own binary.
pub(super) fn agent(
    plan: &Plan,
    image: &str,
    volume: &str,
    place: &str,
    network: RunNetwork,
    protected: &[Protected],
) -> ContainerCreateBody {
    let mut host = walls();
    host.network_mode = Some(network_name(&plan.run));
    // Its only resolver. The engine's own, in front of it, knows only the two containers on this network.
    host.dns = Some(vec![network.sidecar().to_string()]);
    host.dns_search = Some(vec![".".into()]);
    host.extra_hosts = Some(vec![format!("{SIDECAR_NAME}:{}", network.sidecar())]);
    host.readonly_rootfs = Some(true);
    host.tmpfs = Some(private_directories(plan));
    host.mounts = Some(mounts(plan, own_volume(volume, place), protected));
    // A connection crosses one bridge and loses no packet: if nobody answers at once, nobody will.
    let sysctls = [("net.ipv6.conf.all.disable_ipv6", "1"), ("net.ipv4.tcp_syn_retries", "1")];
    host.sysctls = Some(sysctls.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    limit(&mut host, plan);
    let endpoints = HashMap::from([(network_name(&plan.run), endpoint(network.agent(), &["agent"]))]);
    let (uid, gid) = (plan.identity.uid.inside, plan.identity.gid.inside);
    if keeps_user(plan) {
        host.userns_mode = Some(format!("keep-id:uid={uid},gid={gid}"));
    }
    let kind = plan.engine.as_ref().map_or(EngineKind::Docker, |engine| engine.at.kind);
    let Beginning { user, capabilities, arguments } = Beginning::of(kind, (uid, gid), network);
    // For its first steps, before it has read anything. It gives all of them up there.
    host.cap_add = Some(capabilities);
    let cmd = std::iter::once(INSIDE_AGENT.to_owned()).chain(arguments).collect();
    ContainerCreateBody {
        image: Some(image.to_owned()),
        user: Some(user),
        entrypoint: Some(vec![binary_at(place)]),
        cmd: Some(cmd),
        working_dir: Some("/".into()),
        env: Some(nothing_of_the_image(plan)),
        networking_config: Some(NetworkingConfig { endpoints_config: Some(endpoints) }),
        host_config: Some(host),
        ..body(labels(plan))
    }
}

/// Returns an empty value for each variable of the image. Our init must not see them; the command gets them from its launch.
fn nothing_of_the_image(plan: &Plan) -> Vec<String> {
    let said = plan.engine.iter().flat_map(|engine| &engine.config.environment);
    said.map(|(name, _)| format!("{name}=")).collect()
}

/// Returns the request for a member of the pool: a sidecar's container on the pool's network, which the engine removes at its end.
pub(super) fn member(image: &str, volume: &str) -> ContainerCreateBody {
    let labels = [(LABEL_POOL, "1"), (LABEL_VERSION, env!("CARGO_PKG_VERSION"))];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut member = any_sidecar(image, volume, labels);
    if let Some(host) = &mut member.host_config {
        host.network_mode = Some(POOL_NETWORK.into());
        host.auto_remove = Some(true);
    }
    member
}

/// Returns the request for a run's own sidecar container, with the published ports.
pub(super) fn sidecar(plan: &Plan, image: &str, volume: &str, published: &[Inbound]) -> ContainerCreateBody {
    let mut sidecar = any_sidecar(image, volume, labels(plan));
    if let (Some(host), false) = (&mut sidecar.host_config, published.is_empty()) {
        (sidecar.exposed_ports, host.port_bindings) = published::bindings(published);
    }
    sidecar
}

/// Returns what all sidecars' containers have. The sidecar needs its capabilities before it has read anything of the agent's: for
/// addresses, low ports and another identity. It gives all of them up before it serves.
fn any_sidecar(image: &str, volume: &str, labels: HashMap<String, String>) -> ContainerCreateBody {
    let mut host = walls();
    host.network_mode = Some(EGRESS.into());
    host.cap_add = Some(["NET_ADMIN", "NET_BIND_SERVICE", "SETUID", "SETGID"].map(String::from).to_vec());
    host.readonly_rootfs = Some(true);
    host.mounts = Some(vec![own_volume(volume, OWN)]);
    // It is on two networks, and must not route between them.
    host.sysctls = Some(HashMap::from([("net.ipv4.ip_forward".into(), "0".into())]));
    // S1.32
    let memory = ByteSize::from_mib(1536).bytes() as i64;
    (host.memory, host.memory_swap) = (Some(memory), Some(memory));
    (host.nano_cpus, host.pids_limit) = (Some(2_000_000_000), Some(64));
    ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![BINARY.into()]),
        cmd: Some(vec![INSIDE_SIDECAR.into()]),
        host_config: Some(host),
        ..body(labels)
    }
}

/// Returns what all containers have: standard streams that only their maker is attached to.
pub(super) fn body(labels: HashMap<String, String>) -> ContainerCreateBody {
    ContainerCreateBody {
        hostname: Some(SANDBOX_NAME.into()),
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        env: Some(Vec::new()),
        // An image's health check would run beside our init, unconfined.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
        labels: Some(labels),
        ..ContainerCreateBody::default()
    }
}

/// Returns the confinement of all containers.
pub(super) fn walls() -> HostConfig {
    HostConfig {
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(vec!["no-new-privileges".into()]),
        privileged: Some(false),
        auto_remove: Some(false),
        publish_all_ports: Some(false),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        // Without a log nobody else reads their streams, and they fill no disk.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        // Our own process is PID 1: it reaps and passes signals on. With the engine's init as PID 1 the command could kill ours.
        init: Some(false),
        ulimits: Some(vec![ulimit("core", rlimit::CORE), ulimit("nofile", OPEN_FILES)]),
        ..HostConfig::default()
    }
}

fn ulimit(name: &str, most: u64) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.into()), soft: Some(most as i64), hard: Some(most as i64) }
}

/// Sets the limits (S1.30, S1.31, S4.13). `memory_swap` is memory and swap together, so it equals memory.
fn limit(host: &mut HostConfig, plan: &Plan) {
    let LimitsPlan::Engine(limits) = &plan.limits else { return };
    let memory = i64::try_from(limits.memory.bytes()).unwrap_or(i64::MAX);
    (host.memory, host.memory_swap) = (Some(memory), Some(memory));
    host.nano_cpus = Some(i64::from(limits.cpus.milli()) * 1_000_000);
    host.pids_limit = Some(i64::from(limits.pids) + OWN_PROCESSES);
}

/// Whether the engine is asked to map its user to the command's: if the command is shown files of that user. A companion is shown none,
/// and its user maps to nobody outside.
fn keeps_user(plan: &Plan) -> bool {
    plan.engine.as_ref().is_some_and(|engine| engine.at.keeps_user()) && plan.shown().next().is_some()
}

/// Returns the run's private directories as tmpfs mounts, as large as `limits.disk` and half of the memory allow.
fn private_directories(plan: &Plan) -> HashMap<String, String> {
    // An engine that keeps its user mounts them as root of the user namespace outside the container.
    let (uid, gid) =
        if keeps_user(plan) { (0, 0) } else { (plan.identity.uid.inside, plan.identity.gid.inside) };
    // It then binds them with fewer flags, which the kernel refuses for mounts of another namespace, so `noexec` is left out.
    let noexec = if keeps_user(plan) { "" } else { "noexec," };
    let mut all = HashMap::new();
    for step in &plan.steps {
        if let Step::PrivateDirectory { path, mode, size, inodes } = step {
            let options = format!(
                "rw,exec,nosuid,nodev,size={},nr_inodes={inodes},mode={mode:o},uid={uid},gid={gid}",
                size.bytes()
            );
            all.insert(path.display().to_string(), options);
        }
        if matches!(step, Step::TrustAuthorities(..)) {
            all.insert(
                TRUST.into(),
                format!("rw,nosuid,nodev,{noexec}size=16777216,mode=755,uid={uid},gid={gid}"),
            );
        }
    }
    all
}

/// Returns the mounts of the agent's container.
fn mounts(plan: &Plan, own: Mount, protected: &[Protected]) -> Vec<Mount> {
    // This container may be made before a sidecar's has filled the volume, and its image must not fill it.
    let volume_options = MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() };
    let mut all = vec![Mount { volume_options: Some(volume_options), ..own }];
    for step in &plan.steps {
        match step {
            Step::ShowWorkspace(path, mode) => {
                // A read-only workspace needs no protected paths.
                if *mode == WorkspaceMode::ReadWrite {
                    all.push(bind(path, path, MountMode::ReadWrite));
                    all.extend(protected.iter().map(|(path, mode)| bind(path, path, *mode)));
                } else {
                    all.push(bind(path, path, MountMode::ReadOnly));
                }
            }
            Step::Show(Visible { source: path, target, mode }) => {
                all.push(bind(path, target, *mode));
            }
            _ => {}
        }
    }
    all.extend(copies::copies(plan).map(|copy| bind(copy.source, &copy.place, MountMode::ReadOnly)));
    all.extend(overlay::overlays(plan).flat_map(|overlay| overlay.mounts(&plan.run)));
    all
}

/// Returns the mount of the volume with our own binary, which the sidecar's image fills once.
fn own_volume(volume: &str, place: &str) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume.into()),
        target: Some(place.into()),
        read_only: Some(true),
        ..Mount::default()
    }
}

fn bind(source: &Path, target: &Path, mode: MountMode) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target.display().to_string()),
        read_only: Some(mode == MountMode::ReadOnly),
        ..Mount::default()
    }
}

#[cfg(test)]
pub(super) mod fixture {
    use policy::{Backend, Limits};

    use super::*;
    use crate::plan::ids::{IdMapping, Identity, MappedId};

    /// A plan that shows, copies and protects.
    pub(in crate::docker) fn plan() -> Plan {
        let directory = |path: &str| Step::PrivateDirectory {
            path: path.into(),
            mode: 0o700,
            size: ByteSize::from_mib(8),
            inodes: 9,
        };
        let shown = Visible { source: "/data".into(), target: "/inside".into(), mode: MountMode::ReadOnly };
        Plan {
            run: "abcdefghjkmn".parse().unwrap(),
            backend: Backend::Docker,
            wiring: policy::Wiring::Redirect,
            name_addresses: policy::NameNetwork::default(),
            engine: None,
            identity: Identity {
                uid: MappedId { inside: 1000, outside: 1000 },
                gid: MappedId { inside: 1001, outside: 1001 },
                mapping: IdMapping::Callers,
                range: None,
                subordinate: None,
                owners_kept: false,
            },
            groups: Vec::new(),
            limits: LimitsPlan::Engine(Limits::default()),
            workspace: "/w".into(),
            open: Vec::new(),
            directory: "/w".into(),
            home: "/home/agent".into(),
            steps: vec![
                directory("/tmp"),
                Step::ShowWorkspace("/w".into(), WorkspaceMode::ReadWrite),
                Step::Show(shown),
                Step::Copy { source: "/fixtures".into(), target: "/home/agent/f".into() },
            ],
            probe: Vec::new(),
            environment: vec![("SECRET".into(), "lgph_x".into())],
            setup: Vec::new(),
            labels: vec!["task=T-1".parse().unwrap(), "run=mine".parse().unwrap()],
            notices: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::plan;
    use super::*;
    use crate::plan::engine::{EngineAt, EngineImage, EngineRun};

    #[test]
    fn the_agents_container_is_shut_in_and_says_each_thing_once() {
        let protected =
            [("/w/.git".into(), MountMode::ReadWrite), ("/w/.git/hooks".into(), MountMode::ReadOnly)];
        let body = agent(&plan(), "debian", "volume", "/.lockgate-x", RunNetwork::numbered(7), &protected);
        let host = body.host_config.unwrap();
        let begins = ["engine-agent", "198.18.7.2", "1000", "1001"].map(String::from).to_vec();
        assert_eq!((body.user.as_deref(), body.cmd, body.tty), (Some("0:0"), Some(begins), Some(false)));
        assert_eq!(body.entrypoint, Some(vec!["/.lockgate-x/lockgate".into()]));
        assert_eq!(body.env, Some(Vec::new()), "nothing that an engine would tell of a container");
        assert_eq!(host.cap_drop, Some(vec!["ALL".into()]));
        assert_eq!(host.cap_add.unwrap(), ["NET_ADMIN", "SETPCAP", "SETUID", "SETGID"]);
        assert_eq!(host.security_opt, Some(vec!["no-new-privileges".into()]));
        assert_eq!((host.readonly_rootfs, host.privileged), (Some(true), Some(false)));
        assert_eq!((host.memory, host.memory_swap), (Some(1536 << 20), Some(1536 << 20))); // S1.30
        assert_eq!((host.nano_cpus, host.pids_limit), (Some(2_000_000_000), Some(514))); // S1.31
        assert_eq!(host.network_mode.as_deref(), Some("lockgate-exec-abcdefghjkmn")); // S0.14
        assert_eq!(host.dns, Some(vec!["198.18.7.3".into()]));
        assert_eq!(host.extra_hosts, Some(vec!["sidecar:198.18.7.3".into()]), "S1.14");
        assert_eq!((host.binds, host.pid_mode, host.devices), (None, None, None));
        let own = host.mounts.as_ref().unwrap()[0].volume_options.as_ref().unwrap();
        assert_eq!(own.no_copy, Some(true), "an image is not to fill the volume with a binary of its own");
        let mounts: Vec<String> = host
            .mounts
            .unwrap()
            .into_iter()
            .map(|m| format!("{} {} {}", m.source.unwrap(), m.target.unwrap(), m.read_only.unwrap()))
            .collect();
        let expected = [
            "volume /.lockgate-x true",
            "/w /w false",
            "/w/.git /w/.git false",
            "/w/.git/hooks /w/.git/hooks true",
            "/data /inside true",
            "/fixtures /.lockgate-copies/0 true",
        ];
        assert_eq!(mounts, expected);
        let labels = body.labels.unwrap();
        let label = |name: &str| labels.get(&format!("dev.lockgate.{name}")).map(String::as_str);
        assert_eq!((label("label.task"), label("label.run")), (Some("T-1"), Some("mine"))); // S3.16, S4.9
        assert_eq!((label("run"), labels.len()), (Some("abcdefghjkmn"), 4), "none of theirs is one of ours");
        let tmp = &host.tmpfs.unwrap()["/tmp"];
        assert_eq!(tmp, "rw,exec,nosuid,nodev,size=8388608,nr_inodes=9,mode=700,uid=1000,gid=1001");
    }

    #[test]
    fn a_podman_without_root_makes_its_user_the_commands() {
        for (kind, rootless, userns, owner) in [
            (EngineKind::Podman, true, Some("keep-id:uid=1000,gid=1001"), "uid=0,gid=0"),
            (EngineKind::Podman, false, None, "uid=1000,gid=1001"),
            (EngineKind::Docker, true, None, "uid=1000,gid=1001"),
        ] {
            let at = EngineAt { socket: "/s".into(), minor_version: 41, rootless, user: (1000, 1000), kind };
            let engine = EngineRun {
                at,
                image: "debian".into(),
                config: EngineImage::default(),
                owner: (1000, 1001),
                pool: 0,
                ports: Vec::new(),
                published: Vec::new(),
                slots: PathBuf::new(),
            };
            let plan = Plan { engine: Some(engine), ..plan() };
            let asked = |plan: &Plan| {
                let body = agent(plan, "debian", "volume", "/.lockgate-x", RunNetwork::numbered(7), &[]);
                let host = body.host_config.unwrap();
                (host.userns_mode, host.tmpfs.unwrap()["/tmp"].clone())
            };
            let (asked_userns, tmp) = asked(&plan);
            assert_eq!(asked_userns.as_deref(), userns);
            assert!(tmp.ends_with(owner), "{kind:?}");
            // A companion is shown no files of the user.
            let mut companion = Plan { engine: plan.engine.clone(), ..plan };
            companion.steps.retain(|step| matches!(step, Step::PrivateDirectory { .. }));
            let (asked_userns, tmp) = asked(&companion);
            assert_eq!(asked_userns, None);
            assert!(tmp.ends_with("uid=1000,gid=1001"), "{kind:?}");
        }
    }

    #[test]
    fn the_sidecars_container_is_no_router_and_shows_nothing_of_the_machines() {
        let body = sidecar(&plan(), "lockgate-sidecar:1", "volume", &[]);
        let host = body.host_config.unwrap();
        assert_eq!(host.cap_drop, Some(vec!["ALL".into()]));
        assert_eq!(host.sysctls.unwrap()["net.ipv4.ip_forward"], "0");
        assert_eq!(host.network_mode.as_deref(), Some("lockgate-egress")); // S0.18
        let mounts = host.mounts.unwrap();
        assert!(mounts.iter().all(|mount| mount.typ == Some(MountType::VOLUME)), "{mounts:?}");
        assert_eq!((body.env, body.user), (Some(Vec::new()), None));
    }

    #[test]
    fn one_that_waits_is_any_sidecar_and_nobodys() {
        let (mut waits, run) = (member("i", "v"), sidecar(&plan(), "i", "v", &[]));
        let labels = waits.labels.take().unwrap();
        assert!(labels.contains_key(LABEL_POOL) && !labels.contains_key(crate::docker::names::LABEL_RUN));
        let host = waits.host_config.as_mut().unwrap();
        assert_eq!(host.network_mode.replace(EGRESS.into()).as_deref(), Some(POOL_NETWORK)); // S0.43
        assert_eq!(host.auto_remove.replace(false), Some(true));
        assert_eq!(waits, ContainerCreateBody { labels: None, ..run });
    }
}
