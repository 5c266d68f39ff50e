//! A client of an engine's API: makes a run's containers and volumes, finds them by their labels, and removes them.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, EndpointIpamConfig, EndpointSettings, NetworkConnectRequest, VolumeCreateRequest,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveVolumeOptions, WaitContainerOptionsBuilder,
};
use bollard::{ClientVersion, Docker};
use futures_util::StreamExt;
use policy::RunId;
use policy::agreed::SIDECAR_NAME;
use tokio::net::UnixStream;

use super::engine_error::{BAD_REQUEST, CONFLICT, INTERNAL, NOT_FOUND, error_text, status};
use super::names::{ALL, LABEL_RUN, network_name, of_label};
use super::podman;
use crate::error::Error;
use crate::plan::engine::{EngineAt, EngineKind};
use crate::run_network::Visit;

/// How long a request may take, in seconds: starting a container on a busy machine is slow.
const PATIENCE: u64 = 60;
/// How long a removal that is already under way may take.
const REMOVAL: Duration = Duration::from_secs(5);
/// How long a container may take to end after its process has.
const ENDING: Duration = Duration::from_secs(10);

/// The pauses between attempts to remove something, in milliseconds.
pub(super) const PAUSES: [u64; 8] = [5, 10, 20, 50, 100, 200, 500, 1000];
/// The newest version of the API this client speaks, and the oldest it accepts.
const NEWEST: ClientVersion = ClientVersion { major_version: 1, minor_version: 47 };
const OLDEST: ClientVersion = ClientVersion { major_version: 1, minor_version: 41 };

/// A connection to an engine.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(super) api: Docker,
    pub(super) kind: EngineKind,
    pub(super) socket: PathBuf,
}

impl Engine {
    /// Connects, and agrees on a version by a request that is needed anyway: an engine starts programs to answer `info` or
    /// `version`, which takes longer than all the rest.
    pub(super) async fn find<T, W>(
        socket: &Path,
        question: impl Fn(Self) -> W,
    ) -> Result<(Self, EngineAt, Result<T, bollard::errors::Error>), Error>
    where
        W: Future<Output = Result<T, bollard::errors::Error>>,
    {
        let path = socket.to_str().ok_or_else(|| unusable(socket, "its path is not text"))?;
        let fail = |error: bollard::errors::Error| unusable(socket, &error_text(&error));
        let about = std::fs::metadata(socket).map_err(|error| unusable(socket, &error.to_string()))?;
        let api = Docker::connect_with_unix(path, PATIENCE, &OLDEST).map_err(fail)?;
        let kind = podman::kind_of(socket).await.map_err(|error| unusable(socket, &error.to_string()))?;
        let mut engine = Self { api, kind, socket: socket.into() };
        let mut answer = question(engine.clone()).await;
        if answer.as_ref().is_err_and(|error| status(error) == Some(BAD_REQUEST)) {
            // A newer engine no longer knows that version; an older one does not know it yet.
            let api = Docker::connect_with_unix(path, PATIENCE, &NEWEST).map_err(fail)?;
            engine.api = api.negotiate_version().await.map_err(fail)?;
            let version = engine.api.client_version();
            if version < OLDEST {
                let why = format!("it speaks version {version} of the API, and {OLDEST} is needed");
                return Err(unusable(socket, &why));
            }
            answer = question(engine.clone()).await;
        }
        if let Err(error) = &answer
            && status(error).is_none()
        {
            return Err(unusable(socket, &error_text(error)));
        }
        let minor_version = engine.api.client_version().minor_version;
        // The socket of an engine without root belongs to the user who started it. So may that of an engine with root, as systemd makes
        // it. A Podman for which a user listens is that user's, and is not asked: its answer takes long.
        let listener = listener_of(socket).await;
        let is_users = listener.is_some_and(|(uid, _)| uid != 0);
        let rootless = about.uid() != 0
            && match kind {
                EngineKind::Podman => {
                    let fail = |error: io::Error| unusable(socket, &error.to_string());
                    is_users || podman::is_rootless(socket).await.map_err(fail)?
                }
                EngineKind::Docker => engine.is_rootless().await.map_err(fail)?,
            };
        let user = listener.filter(|_| is_users).unwrap_or((about.uid(), about.gid()));
        Ok((engine, EngineAt { socket: socket.into(), minor_version, rootless, user, kind }, answer))
    }

    /// Whether a Docker engine says that it runs without root. Podman does not say it here.
    pub(super) async fn is_rootless(&self) -> Result<bool, bollard::errors::Error> {
        let options = self.api.info().await?.security_options.unwrap_or_default();
        Ok(options.iter().any(|option| option.split(',').any(|it| it == "name=rootless")))
    }

    /// Connects to an engine that was found before.
    pub(super) fn at(at: &EngineAt) -> Result<Self, bollard::errors::Error> {
        let version = ClientVersion { major_version: 1, minor_version: at.minor_version };
        let path = at.socket.to_str().unwrap_or_default();
        let api = Docker::connect_with_unix(path, PATIENCE, &version)?;
        Ok(Self { api, kind: at.kind, socket: at.socket.clone() })
    }

    /// Whether the engine answers a ping in this time.
    pub(super) async fn answers_within(&self, longest: Duration) -> bool {
        tokio::time::timeout(longest, podman::kind_of(&self.socket)).await.is_ok_and(|word| word.is_ok())
    }

    /// Connects a container to the network of a run.
    pub(super) async fn join(
        &self,
        run: &RunId,
        container: &str,
        address: std::net::Ipv4Addr,
    ) -> Result<(), String> {
        let request = NetworkConnectRequest {
            container: container.into(),
            endpoint_config: Some(endpoint(address, &[SIDECAR_NAME])),
        };
        self.api.connect_network(&network_name(run), request).await.map_err(|e| error_text(&e))
    }

    /// Connects a sidecar to the network of a companion, without an alias.
    pub(super) async fn visit(&self, container: &str, visit: &Visit) -> Result<(), String> {
        let endpoint_config = Some(endpoint(visit.address(), &[]));
        let request = NetworkConnectRequest { container: container.into(), endpoint_config };
        match self.api.connect_network(&network_name(&visit.run), request).await {
            // The companion has ended meanwhile, and its network went with it. Without the container, nothing can be started anyway.
            Err(error) if status(&error) == Some(NOT_FOUND) => Ok(()),
            joined => joined.map_err(|error| error_text(&error)),
        }
    }

    /// Makes a container, and returns its id, by which it is found whatever somebody renames it to. Asks Podman twice if the first
    /// failure is transient.
    pub(super) async fn make_container(
        &self,
        name: &str,
        mut body: ContainerCreateBody,
    ) -> Result<String, String> {
        if self.kind == EngineKind::Podman {
            podman::bound_processes(&mut body);
        }
        let options = Some(CreateContainerOptionsBuilder::default().name(name).build());
        let mut made = self.api.create_container(options.clone(), body.clone()).await;
        if made.as_ref().is_err_and(podman::is_in_passing) {
            made = self.api.create_container(options, body).await;
        }
        made.map(|made| made.id).map_err(|e| error_text(&e))
    }

    /// Makes the agent's container, adapted to its engine, and the volumes of the run that it uses.
    pub(super) async fn make_agent(
        &self,
        run: &RunId,
        own: &str,
        name: &str,
        mut body: ContainerCreateBody,
        mut volumes: Vec<VolumeCreateRequest>,
    ) -> Result<String, String> {
        if self.kind == EngineKind::Podman {
            let own = self.api.inspect_volume(own).await.map_err(|e| error_text(&e))?;
            let lays_directories = podman::lays_directories(podman::version(&self.socket).await.as_deref());
            volumes.extend(podman::adapt(&mut body, run, &own.mountpoint, lays_directories)?);
        }
        for volume in volumes {
            self.api.create_volume(volume).await.map_err(|e| error_text(&e))?;
        }
        self.make_container(name, body).await
    }

    /// Starts a container.
    pub(super) async fn start(&self, name: &str) -> Result<(), String> {
        self.api.start_container(name, None).await.map_err(|e| error_text(&e))
    }

    /// Removes a container in any state. A container that is gone is no error; a removal already under way is waited for. The engine
    /// is asked until it says that there is no such container: a removal under way may fail, and leaves the container listed until
    /// somebody asks again.
    pub(super) async fn remove_container(&self, name: &str) -> Result<(), String> {
        let mut last = String::new();
        for pause in PAUSES {
            let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            match self.api.remove_container(name, Some(options)).await {
                Ok(()) => return Ok(()),
                Err(error) => match status(&error) {
                    Some(NOT_FOUND) => return Ok(()),
                    Some(CONFLICT) => {
                        last = error_text(&error);
                        self.await_removal(name).await;
                    }
                    // Docker's answer while it still writes the container's files, and Podman's while the container ends.
                    Some(INTERNAL) => last = error_text(&error),
                    _ => return Err(error_text(&error)),
                },
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Err(last)
    }

    /// Removes a container whose process has ended, or is about to, after the engine has noticed: an earlier removal collides with
    /// the engine's own work on the end.
    pub(super) async fn remove_ended(&self, name: &str) -> Result<(), String> {
        if self.kind == EngineKind::Docker {
            let options = WaitContainerOptionsBuilder::default().condition("not-running").build();
            let mut ended = self.api.wait_container(name, Some(options));
            // Whatever the answer: the removal kills a container that still runs.
            let _ = tokio::time::timeout(ENDING, ended.next()).await;
        }
        self.remove_container(name).await
    }

    /// Waits until a removal under way has succeeded or failed.
    async fn await_removal(&self, name: &str) {
        let options = WaitContainerOptionsBuilder::default().condition("removed").build();
        let mut over = self.api.wait_container(name, Some(options));
        let _ = tokio::time::timeout(REMOVAL, over.next()).await;
    }

    /// Removes the volumes of a run, which only its container used.
    pub(super) async fn remove_volumes(&self, run: &RunId) -> Result<(), String> {
        let options =
            ListVolumesOptionsBuilder::default().filters(&of_label(&format!("{LABEL_RUN}={run}"))).build();
        let found = self.api.list_volumes(Some(options)).await.map_err(|e| error_text(&e))?;
        for volume in found.volumes.unwrap_or_default() {
            match self.api.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await {
                Err(error) if status(&error) != Some(NOT_FOUND) => return Err(error_text(&error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Finds a run's containers and networks, including a sidecar out of the pool, which has the pool's labels.
    pub(super) async fn objects(&self, run: &RunId) -> Result<RunObjects, bollard::errors::Error> {
        let label = format!("{LABEL_RUN}={run}");
        let (containers, networks, taken) =
            tokio::join!(self.labelled(&label, ALL), self.networks_labelled(&label), self.taken_by(run));
        let containers = containers?.into_iter().filter_map(|container| container.id).chain(taken?).collect();
        Ok(RunObjects { containers, networks: networks? })
    }

    /// Removes containers and then networks.
    pub(super) async fn remove_all(&self, objects: &RunObjects) -> Result<(), String> {
        let removed = objects.containers.iter().map(|id| self.remove_container(id));
        for removed in futures_util::future::join_all(removed).await {
            removed?;
        }
        for network in &objects.networks {
            self.remove_network(network).await?;
        }
        Ok(())
    }
}

/// The ids of a run's objects at an engine.
pub(super) struct RunObjects {
    pub(super) containers: Vec<String>,
    pub(super) networks: Vec<String>,
}

impl RunObjects {
    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.networks.is_empty()
    }
}

/// Returns the user and group who listen at a socket, unix(7): the engine's, or those of who listens for it, as systemd does.
async fn listener_of(socket: &Path) -> Option<(u32, u32)> {
    let credentials = UnixStream::connect(socket).await.ok()?.peer_cred().ok()?;
    Some((credentials.uid(), credentials.gid()))
}

pub(super) fn unusable(socket: &Path, why: &str) -> Error {
    let remedy = match rustix::fs::access(socket, rustix::fs::Access::WRITE_OK) {
        Err(rustix::io::Errno::ACCESS) => {
            "this user may not use it: join the group that the socket belongs to, or start an engine of your own without root; \
             backend `container` needs none"
        }
        _ => "start one, or name its socket in DOCKER_HOST as unix:///PATH; backend `container` needs none",
    };
    Error::Refused {
        what: format!("the engine at {} cannot be used: {why}", socket.display()),
        remedy: Some(remedy.into()),
    }
}

/// Returns an endpoint with aliases, at an address of the engine's choosing.
pub(super) fn endpoint_named(aliases: &[&str]) -> EndpointSettings {
    let aliases = Some(aliases.iter().map(|alias| (*alias).to_owned()).collect());
    EndpointSettings { aliases, ..EndpointSettings::default() }
}

/// Returns an endpoint with aliases, at this address.
pub(super) fn endpoint(address: std::net::Ipv4Addr, aliases: &[&str]) -> EndpointSettings {
    EndpointSettings {
        ipam_config: Some(EndpointIpamConfig {
            ipv4_address: Some(address.to_string()),
            ..EndpointIpamConfig::default()
        }),
        ..endpoint_named(aliases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an engine that gives these answers, one per connection, and returns the requests it got.
    async fn engine_that_says(
        listener: tokio::net::UnixListener,
        answers: Vec<(&'static str, &'static str)>,
    ) -> Vec<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut asked = Vec::new();
        for (status, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let line =
                String::from_utf8_lossy(&request[..length]).lines().next().unwrap_or_default().to_owned();
            asked.push(line.split('?').next().unwrap_or_default().to_owned());
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
            stream
                .write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes())
                .await
                .unwrap();
        }
        asked
    }

    /// Runs a Podman that says whether it is rootless.
    async fn podman_that_says(listener: tokio::net::UnixListener, is_rootless: bool) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let info = serde_json::json!({ "host": { "security": { "rootless": is_rootless } } }).to_string();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let body = if request.contains("/info") { info.as_str() } else { "OK" };
            let head = "HTTP/1.1 200 OK\r\nLibpod-API-Version: 4.3.1\r\nConnection: close\r\n";
            let length = body.len();
            // Nobody may wait for an answer: who listens here can be seen without one.
            let _ =
                stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).await;
        }
    }

    #[test]
    fn a_podman_of_roots_whose_socket_is_a_users_is_not_taken_for_one_without_root() {
        let is_root = rustix::process::geteuid().is_root();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // Who is not root can listen for an engine without root alone.
        for (says, rootless) in [(false, !is_root), (true, true)] {
            let folder = tempfile::tempdir().unwrap();
            let socket = folder.path().join("engine");
            let at = runtime.block_on(async {
                let listener = tokio::net::UnixListener::bind(&socket).unwrap();
                if is_root {
                    std::os::unix::fs::chown(&socket, Some(1001), Some(5)).unwrap();
                }
                tokio::select! {
                    found = Engine::find(&socket, |_| async { Ok(()) }) => found.map(|(_, at, _)| at).unwrap(),
                    () = podman_that_says(listener, says) => unreachable!(),
                }
            });
            assert_eq!((at.kind, at.rootless), (EngineKind::Podman, rootless));
            let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            assert_eq!(at.user, if is_root { (1001, 5) } else { own });
        }
    }

    // L01. Docker 20.10 under load: a removal under way fails, and nobody else asks again.
    #[test]
    fn a_container_is_gone_when_the_engine_says_that_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = runtime.block_on(async {
            let listener = tokio::net::UnixListener::bind(&socket).unwrap();
            let at = EngineAt {
                socket,
                minor_version: 41,
                rootless: false,
                user: (0, 0),
                kind: EngineKind::Docker,
            };
            let failed = r#"{"StatusCode":0,"Error":{"Message":"unable to remove filesystem"}}"#;
            let answers = vec![
                ("409 Conflict", r#"{"message":"removal of container it is already in progress"}"#),
                ("200 OK", failed),
                ("500 Internal Server Error", r#"{"message":"directory not empty"}"#),
                ("404 Not Found", r#"{"message":"No such container: it"}"#),
            ];
            let engine = Engine::at(&at).unwrap();
            let (removed, asked) =
                tokio::join!(engine.remove_container("it"), engine_that_says(listener, answers));
            assert_eq!(removed, Ok(()));
            asked
        });
        let delete = "DELETE /containers/it";
        assert_eq!(asked, [delete, "POST /containers/it/wait", delete, delete]);
    }
}
