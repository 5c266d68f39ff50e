//! Makes and removes an engine's networks: those of runs, the pool's, and the one by which sidecars reach the outside.

use std::collections::HashMap;
use std::time::Duration;

use bollard::models::{Ipam, IpamConfig, NetworkCreateRequest};
use bollard::query_parameters::ListNetworksOptions;

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
        self.make_once(EGRESS, RunNetwork::of_sidecars(self.kind), async |network| {
            let subnet = IpamConfig { subnet: Some(network.subnet()), ..IpamConfig::default() };
            let apart = ("com.docker.network.bridge.enable_icc".into(), "false".into());
            let request = NetworkCreateRequest {
                name: EGRESS.into(),
                driver: Some("bridge".into()),
                ipam: Some(Ipam { config: Some(vec![subnet]), ..Ipam::default() }),
                options: Some(HashMap::from([apart])),
                labels: Some(own_label()),
                ..NetworkCreateRequest::default()
            };
            let made = self.api.create_network(request).await;
            made.map(drop).map_err(|error| EngineRefusal::of(&error))
        })
        .await
    }

    /// Makes the network of waiting sidecars. Nothing on it reaches this machine, other machines, or each other.
    pub(super) async fn make_pool_network(&self) -> Result<(), String> {
        self.make_once(POOL_NETWORK, RunNetwork::of_pool(self.kind), async |network| {
            self.make_internal(POOL_NETWORK, network, &[("enable_icc", "false")], own_label()).await
        })
        .await
    }

    /// Makes a network that all runs share, with the first of these addresses that nobody has, unless the engine has the network.
    async fn make_once(
        &self,
        name: &str,
        choices: impl Iterator<Item = RunNetwork>,
        make: impl AsyncFn(RunNetwork) -> Result<(), EngineRefusal>,
    ) -> Result<(), String> {
        if self.has_network(name).await.unwrap_or(false) {
            return Ok(());
        }
        let (mut subnets, mut said) = (Vec::new(), String::new());
        for network in choices {
            match make(network).await {
                Ok(()) => return Ok(()),
                // Perhaps another run was first: an engine makes only one network with the same addresses.
                Err(refusal) if refusal.status == Some(CONFLICT) || is_overlap(&refusal.text) => {
                    match self.await_network(name, network).await {
                        Holder::Shared => return Ok(()),
                        // It may be the shared one, and the engine would make a second of its name.
                        Holder::Unseen => {
                            return Err(format!(
                                "{}: the engine does not show who has {}, which `{name}` needs; try again, or see which addresses it has set aside",
                                refusal.text,
                                network.subnet()
                            ));
                        }
                        Holder::Another => subnets.push(network.subnet()),
                    }
                    said = refusal.text;
                }
                Err(refusal) => return Err(refusal.text),
            }
        }
        Err(format!(
            "{said}: `{name}` needs one of {}, and others, at this engine or on this machine, have addresses of each; remove one of \
             those, or give it others",
            subnets.join(", ")
        ))
    }

    /// Waits until the engine shows who has the addresses that it refused: the network that another run makes, or a different one.
    async fn await_network(&self, name: &str, network: RunNetwork) -> Holder {
        for pause in [10, 50, 100, 500, 1000, 2000] {
            let is_taken = self.shows(network).await;
            match self.has_network(name).await {
                Ok(true) => return Holder::Shared,
                Ok(false) if is_taken => return Holder::Another,
                _ => tokio::time::sleep(Duration::from_millis(pause)).await,
            }
        }
        Holder::Unseen
    }

    /// Whether the engine shows who has some of these addresses. Podman makes one network after the other, and shows each at once. Docker
    /// reserves the addresses before it shows the network.
    async fn shows(&self, network: RunNetwork) -> bool {
        if self.kind == EngineKind::Podman {
            return true;
        }
        let listed = self.api.list_networks(None::<ListNetworksOptions>).await.unwrap_or_default();
        let mut subnets =
            listed.iter().flat_map(|it| it.ipam.iter().flat_map(|ipam| ipam.config.iter().flatten()));
        subnets.any(|it| it.subnet.as_deref().is_some_and(|subnet| network.overlaps(subnet)))
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

/// Who has the addresses of a network that was refused.
enum Holder {
    /// The network that runs share: another run has made it.
    Shared,
    /// A different network, of this engine or of this machine.
    Another,
    /// Nobody that the engine shows.
    Unseen,
}

/// Whether a network was refused because another has its addresses.
fn is_overlap(text: &str) -> bool {
    let text = text.to_lowercase();
    text.contains("overlap") || text.contains("already used") || text.contains("already being used")
}
