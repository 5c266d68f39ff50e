//! Makes and starts the agent's container. Docker's is made while its network is still being made; both engines' are started once
//! the network and our own binary are there.

use tokio::sync::oneshot::Receiver;

use super::acquire::ToRemove;
use super::attached::Attached;
use super::engine::Engine;
use super::inputs::{ShimInputs, agent_name};
use super::names::labels;
use super::prepare::OwnImage;
use super::{container, overlay, tables};
use crate::failure::Failure;
use crate::plan::engine::EngineKind;
use crate::run_network::RunNetwork;

/// Makes, attaches to and starts the container. `likely` is the network the run will get, if nobody else has its addresses.
pub(super) async fn start(
    given: &ShimInputs<'_>,
    engine: &Engine,
    own: &OwnImage,
    likely: RunNetwork,
    network: impl Future<Output = Result<RunNetwork, Failure>>,
    is_filled: Receiver<()>,
    to_remove: &ToRemove,
) -> Result<Attached, Failure> {
    // Docker looks for the network when the container is started, Podman when it is made.
    let early = match engine.kind {
        EngineKind::Docker => Some(make(given, engine, own, likely, to_remove).await),
        EngineKind::Podman => None,
    };
    let look = async {
        match &given.plan.engine {
            Some(run) => {
                let labels = labels(given.plan);
                tables::refuse_others_than_files(engine, run, &given.slots, labels).await
            }
            None => Ok(()),
        }
    };
    let (network, filled, looked) = tokio::join!(network, is_filled, look);
    let network = network?;
    looked.map_err(Failure::at("use the image's accounts"))?;
    filled.map_err(|_| Failure::new("make the agent's container", "there is no sidecar"))?;
    let attached = match early {
        Some(Ok(attached)) if network == likely => attached,
        None => make(given, engine, own, network, to_remove).await?,
        Some(early) => {
            let made = early.map_or_else(|_| agent_name(given.plan), |attached| attached.container);
            let _ = engine.remove_container(&made).await;
            make(given, engine, own, network, to_remove).await?
        }
    };
    let started =
        engine.start(&attached.container).await.map_err(|error| overlay::explain(given.plan, error));
    started.map_err(Failure::at("start the agent's container"))?;
    Ok(attached)
}

async fn make(
    given: &ShimInputs<'_>,
    engine: &Engine,
    own: &OwnImage,
    network: RunNetwork,
    to_remove: &ToRemove,
) -> Result<Attached, Failure> {
    let (plan, agent) = (given.plan, agent_name(given.plan));
    let body = container::agent(plan, given.image, &own.volume, &given.place, network, &given.protected);
    let made = engine.make_agent(&plan.run, &own.volume, &agent, body, overlay::volumes(plan)).await;
    let id = made.map_err(Failure::at("make the agent's container"))?;
    to_remove.made(&agent, &id);
    Attached::to(engine, &id).await.map_err(Failure::at("attach to the agent's container"))
}
