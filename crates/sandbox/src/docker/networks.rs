//! Makes and removes an engine's networks: those of runs, the pool's, and the one by which sidecars reach the outside.

use std::collections::HashMap;
use std::time::Duration;

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest};

use super::engine::{Engine, PAUSES};
use super::engine_error::{CONFLICT, EngineRefusal, FORBIDDEN, INTERNAL, NOT_FOUND, error_text, status};
use super::names::{EGRESS, POOL_NETWORK, labels, network_name, own_label};
use super::podman;
use crate::plan::Plan;
use crate::plan::engine::EngineKind;
use crate::run_network::{NETWORKS, RunNetwork};

impl Engine {
    /// Makes the network of a run. Nothing on it reaches this machine, other machines, or other runs (S0.14, S1.4).
    pub(super) async fn make_network(&self, plan: &Plan, first: u32) -> Result<RunNetwork, String> {
        for number in 0..NETWORKS {
            let network = RunNetwork::numbered(first % NETWORKS + number);
            match self.make_internal(&network_name(&plan.run), network, &[], labels(plan)).await {
                Ok(()) => return Ok(network),
                Err(refusal) if is_overlap(&refusal.text) => {}
                Err(refusal) => return Err(refusal.text),
            }
        }
        Err(format!(
            "each of the {NETWORKS} networks of 198.18.0.0/15 that runs may have overlaps with another at this engine; see them with \
             `docker network ls`, and remove what has these addresses"
        ))
    }

    /// Makes a network that leads nowhere, and on which this machine has no address: with one, every service of this machine that
    /// listens on all addresses would be reachable. What is sent past the routes to this machine all the same, the agent's container drops
    /// (`network_filter.rs`). Returns an engine's refusal with its status.
    async fn make_internal(
        &self,
        name: &str,
        network: RunNetwork,
        more: &[(&str, &str)],
        labels: HashMap<String, String>,
    ) -> Result<(), EngineRefusal> {
        if self.kind == EngineKind::Podman {
            return podman::make_internal(&self.socket, name, &network.subnet(), labels).await;
        }
        let subnet = IpamConfig { subnet: Some(network.subnet()), ..IpamConfig::default() };
        let options = [("inhibit_ipv4", "true")].iter().chain(more);
        let option =
            |(name, value): &(&str, &str)| (format!("com.docker.network.bridge.{name}"), (*value).to_owned());
        let request = NetworkCreateRequest {
            name: name.into(),
            driver: Some("bridge".into()),
            internal: Some(true),
            enable_ipv6: Some(false),
            ipam: Some(Ipam { config: Some(vec![subnet]), ..Ipam::default() }),
            options: Some(options.map(option).collect()),
            labels: Some(labels),
            ..NetworkCreateRequest::default()
        };
        let made = self.api.create_network(request).await;
        made.map(drop).map_err(|error| EngineRefusal::of(&error))
    }

    /// Makes the network by which sidecars reach the outside; they cannot reach each other on it.
    pub(super) async fn make_egress(&self) -> Result<(), String> {
        let subnet = IpamConfig { subnet: Some(RunNetwork::of_sidecars().subnet()), ..IpamConfig::default() };
        let request = NetworkCreateRequest {
            name: EGRESS.into(),
            driver: Some("bridge".into()),
            ipam: Some(Ipam { config: Some(vec![subnet]), ..Ipam::default() }),
            options: Some(HashMap::from([("com.docker.network.bridge.enable_icc".into(), "false".into())])),
            labels: Some(own_label()),
            ..NetworkCreateRequest::default()
        };
        self.make_once(EGRESS, RunNetwork::of_sidecars(), || async {
            let made = self.api.create_network(request).await;
            made.map(drop).map_err(|error| EngineRefusal::of(&error))
        })
        .await
    }

    /// Makes the network of waiting sidecars. Nothing on it reaches this machine, other machines, or each other.
    pub(super) async fn make_pool_network(&self) -> Result<(), String> {
        let (name, network) = (POOL_NETWORK, RunNetwork::of_pool());
        let apart = [("enable_icc", "false")];
        self.make_once(name, network, || self.make_internal(name, network, &apart, own_label())).await
    }

    /// Makes a network that all runs share, unless the engine has it.
    async fn make_once<W>(
        &self,
        name: &str,
        network: RunNetwork,
        make: impl FnOnce() -> W,
    ) -> Result<(), String>
    where
        W: Future<Output = Result<(), EngineRefusal>>,
    {
        if self.has_network(name).await.unwrap_or(false) {
            return Ok(());
        }
        match make().await {
            Ok(()) => Ok(()),
            // Another run was first: an engine makes only one network with the same addresses.
            Err(refusal) if refusal.status == Some(CONFLICT) || is_overlap(&refusal.text) => {
                match self.await_network(name).await {
                    true => Ok(()),
                    false => Err(format!(
                        "{}: another network at this engine has addresses of {}, which `{name}` needs; remove it, or give it others",
                        refusal.text,
                        network.subnet()
                    )),
                }
            }
            Err(refusal) => Err(refusal.text),
        }
    }

    /// Waits for a network that another run makes. Returns whether it is there.
    async fn await_network(&self, name: &str) -> bool {
        for pause in [10, 50, 100, 500, 1000, 2000] {
            if self.has_network(name).await.unwrap_or(false) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self.has_network(name).await.unwrap_or(false)
    }

    /// Removes the network of a run. Tries again while the engine still disconnects a container.
    pub(super) async fn remove_network(&self, name: &str) -> Result<(), String> {
        let mut last = String::new();
        for pause in PAUSES {
            match self.api.remove_network(name).await {
                Ok(()) => return Ok(()),
                Err(error) if status(&error) == Some(NOT_FOUND) => return Ok(()),
                Err(error) if matches!(status(&error), Some(FORBIDDEN | CONFLICT | INTERNAL)) => {
                    last = error_text(&error);
                }
                Err(error) => return Err(error_text(&error)),
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        Err(last)
    }
}

/// Whether a network was refused because another has its addresses.
fn is_overlap(text: &str) -> bool {
    let text = text.to_lowercase();
    text.contains("overlap") || text.contains("already used") || text.contains("already being used")
}
