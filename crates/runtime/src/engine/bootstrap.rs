//! The bootstrap message: the first frame that a sidecar's container receives, and all that it learns of its run.

use std::net::{IpAddr, Ipv4Addr};

use credential::{Placeholder, Secret};
use egress::{CompanionChain, Entrance};
use policy::{Hostname, Layers, ProviderId, RunId};
use sandbox::RunNetwork;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::proxy_url::ProxyVariables;

/// The bootstrap message as it goes over the line.
#[derive(Serialize, Deserialize)]
pub(super) struct Bootstrap {
    pub(super) run: String,
    pub(super) network: RunNetwork,
    /// The sources that the policy is compiled from, by the same program that compiled it on the sending side.
    pub(super) layers: Layers,
    /// The proxy of the caller's environment without its user, and what goes past it.
    pub(super) proxy: Option<ProxyVariables>,
    /// The companion whose sidecar this is; `None` for the command's.
    pub(super) companion: Option<String>,
    /// The companions that the sidecar may reach, each by its name, at its address on a network of its own.
    pub(super) companions: Vec<(String, Ipv4Addr)>,
    /// The companions that the audit names.
    pub(super) chains: Vec<CompanionChain>,
    /// Authenticates the port forwarder, where a process of the machine takes connections to the run's declared ports.
    #[serde(rename = "porter")]
    pub(super) forwarder: Option<Zeroizing<Vec<u8>>>,
    /// Each placeholder, and the provider it stands for.
    pub(super) placeholders: Vec<(String, String)>,
    /// The credentials that the command is given by value, each with its provider.
    pub(super) exposed: Vec<(String, Zeroizing<Vec<u8>>)>,
    pub(super) token: Option<Zeroizing<Vec<u8>>>,
    pub(super) key: Zeroizing<Vec<u8>>,
    /// The certification authorities of the sending machine.
    pub(super) bundle: String,
    /// The addresses of the sending machine, which no container's kernel knows.
    pub(super) machine: Vec<IpAddr>,
}

/// A field of a bootstrap message that does not parse.
#[derive(Debug, thiserror::Error)]
pub(super) enum BootstrapError {
    #[error("the run has no name")]
    Run,
    #[error("a companion has no name")]
    Companions,
    #[error("there is no such companion")]
    Companion,
    #[error("a placeholder is none")]
    Placeholders,
    #[error("a provider has no name")]
    Exposed,
}

/// A bootstrap message whose fields are parsed.
pub(super) struct ParsedBootstrap {
    pub(super) run: RunId,
    pub(super) network: RunNetwork,
    pub(super) layers: Layers,
    pub(super) proxy: Option<ProxyVariables>,
    pub(super) companion: Option<Hostname>,
    pub(super) companions: Vec<(Hostname, Entrance)>,
    pub(super) chains: Vec<CompanionChain>,
    pub(super) forwarder: Option<Secret>,
    pub(super) placeholders: Vec<(Placeholder, ProviderId)>,
    pub(super) exposed: Vec<(ProviderId, Secret)>,
    pub(super) token: Option<Secret>,
    pub(super) key: Secret,
    pub(super) bundle: String,
    pub(super) machine: Vec<IpAddr>,
}

impl TryFrom<Bootstrap> for ParsedBootstrap {
    type Error = BootstrapError;

    fn try_from(message: Bootstrap) -> Result<Self, BootstrapError> {
        let secret = |octets: &Zeroizing<Vec<u8>>| Secret::new(octets.to_vec());
        let own = |name: String| Hostname::parse(&name).map_err(|_| BootstrapError::Companion);
        let companion = |(name, address): (String, Ipv4Addr)| {
            let name = Hostname::parse(&name).map_err(|_| BootstrapError::Companions)?;
            Ok((name, Entrance::at(address)))
        };
        let placeholder = |(placeholder, id): (String, String)| {
            let placeholder = placeholder.parse().map_err(|_| BootstrapError::Placeholders)?;
            Ok((placeholder, id.parse().map_err(|_| BootstrapError::Placeholders)?))
        };
        let exposed = |(id, value): (String, Zeroizing<Vec<u8>>)| {
            Ok((id.parse().map_err(|_| BootstrapError::Exposed)?, secret(&value)))
        };
        Ok(Self {
            run: message.run.parse().map_err(|_| BootstrapError::Run)?,
            network: message.network,
            layers: message.layers,
            proxy: message.proxy,
            companion: message.companion.map(own).transpose()?,
            companions: message.companions.into_iter().map(companion).collect::<Result<_, _>>()?,
            chains: message.chains,
            forwarder: message.forwarder.as_ref().map(secret),
            placeholders: message.placeholders.into_iter().map(placeholder).collect::<Result<_, _>>()?,
            exposed: message.exposed.into_iter().map(exposed).collect::<Result<_, _>>()?,
            token: message.token.as_ref().map(secret),
            key: secret(&message.key),
            bundle: message.bundle,
            machine: message.machine,
        })
    }
}
