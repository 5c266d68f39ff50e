//! Acquires the sidecar of a run at an engine: a member of the pool, which already runs and waits for its bootstrap message, or a
//! container made for the run. A container that is not started joins a network at no cost, so a container made for the run is
//! started last.

use std::cell::RefCell;
use std::io;

use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::attached::{Attached, CarryEnd, carry};
use super::container;
use super::engine::Engine;
use super::names::sidecar_name;
use super::prepare::OwnImage;
use crate::failure::Failure;
use crate::plan::Plan;
use crate::plan::engine::EngineKind;
use crate::run_network::{RunNetwork, Visit};

/// The containers of a run that must be removed at its end: by name before they are made, and by id from then on.
#[derive(Debug, Default)]
pub(super) struct ToRemove(RefCell<Vec<String>>);

impl ToRemove {
    /// Adds one.
    pub(super) fn push(&self, container: String) {
        self.0.borrow_mut().push(container);
    }

    /// Tells the id of one that was made. Another may have been made by that name before.
    pub(super) fn made(&self, name: &str, id: &str) {
        let mut all = self.0.borrow_mut();
        match all.iter_mut().find(|it| *it == name) {
            Some(it) => id.clone_into(it),
            None => all.push(id.to_owned()),
        }
    }

    /// Returns all.
    pub(super) fn all(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Returns all, and has none from then on.
    pub(super) fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

/// The task that carries the streams of a sidecar's container.
pub(super) type Carried = JoinHandle<CarryEnd>;

/// A sidecar's container, before it has joined the run's network.
pub(super) enum AcquiredSidecar {
    /// A member that has left the pool: it runs.
    Taken { id: String, attached: Attached },
    /// Made for the run: not started. `filled` is told when our own binary is in its volume.
    Made { id: String, filled: Option<oneshot::Sender<()>> },
}

impl AcquiredSidecar {
    /// Takes a member of the pool, or makes a container if there is none. A problem with the pool is no reason to fail. S0.40
    ///
    /// The first container of an image fills the volume with our own binary: Docker fills it when the container is made, Podman when
    /// it is started. `filled` is told then.
    pub(super) async fn acquire(
        plan: &Plan,
        engine: &Engine,
        own: &OwnImage,
        to_remove: &ToRemove,
        filled: oneshot::Sender<()>,
    ) -> Result<Self, Failure> {
        let mut filled = Some(filled);
        let taken = |id: &str| to_remove.push(id.to_owned());
        // A member was made without published ports, and an engine cannot publish ports of an existing container.
        if plan.engine.as_ref().is_some_and(|it| it.pool > 0 && it.published.is_empty())
            && let Some((id, attached)) =
                engine.take_member(&plan.run, own, || report_filled(&mut filled), taken).await
        {
            return Ok(Self::Taken { id, attached });
        }
        let id = make(plan, engine, own, to_remove).await?;
        if engine.kind == EngineKind::Docker {
            report_filled(&mut filled);
        }
        Ok(Self::Made { id, filled })
    }

    /// Joins the run's network and those of its companions. A member of the pool that cannot is replaced by a container made for
    /// this run. The container's streams are carried to and from `stream` from now on.
    pub(super) async fn join(
        self,
        plan: &Plan,
        engine: &Engine,
        own: &OwnImage,
        to_remove: &ToRemove,
        networks: Networks<'_>,
        stream: impl FnOnce() -> io::Result<UnixStream>,
    ) -> Result<(String, Carried), Failure> {
        let plumbing = |error: io::Error| Failure::new("start the shim", error);
        let (id, mut filled) = match self {
            Self::Taken { id, attached } => {
                if networks.join(plan, engine, &id).await.is_ok() {
                    let carried = tokio::spawn(carry(attached, stream().map_err(plumbing)?));
                    return Ok((id, carried));
                }
                let _ = engine.remove_container(&id).await;
                (make(plan, engine, own, to_remove).await?, None)
            }
            Self::Made { id, filled } => (id, filled),
        };
        let joined = networks.join(plan, engine, &id).await;
        joined.map_err(Failure::at("join the sidecar to the run's network"))?;
        let attached = Attached::to(engine, &id).await;
        let attached = attached.map_err(Failure::at("attach to the sidecar's container"))?;
        // Before the start, so that the bootstrap message is there when the sidecar reads it.
        let carried = tokio::spawn(carry(attached, stream().map_err(plumbing)?));
        engine.start(&id).await.map_err(Failure::at("start the sidecar's container"))?;
        report_filled(&mut filled);
        Ok((id, carried))
    }
}

/// The networks of a sidecar: its run's, and those of the companions it reaches.
#[derive(Clone, Copy)]
pub(super) struct Networks<'a> {
    pub(super) own: RunNetwork,
    pub(super) visits: &'a [Visit],
}

impl Networks<'_> {
    async fn join(self, plan: &Plan, engine: &Engine, container: &str) -> Result<(), String> {
        engine.join(&plan.run, container, self.own.sidecar()).await?;
        for visit in self.visits {
            engine.visit(container, visit).await?;
        }
        Ok(())
    }
}

/// Reports that our own binary is in its volume. The receiver is gone if the run's network could not be made.
fn report_filled(filled: &mut Option<oneshot::Sender<()>>) {
    let _ = filled.take().map(|filled| filled.send(()));
}

/// Makes a container for the sidecar of this run.
async fn make(plan: &Plan, engine: &Engine, own: &OwnImage, to_remove: &ToRemove) -> Result<String, Failure> {
    let name = sidecar_name(&plan.run);
    engine.make_egress().await.map_err(Failure::at("make the network of sidecars"))?;
    to_remove.push(name.clone());
    let published = plan.engine.as_ref().map_or(&[][..], |it| &it.published);
    let body = container::sidecar(plan, &own.image, &own.volume, published);
    let made = engine.make_container(&name, body).await;
    let id = made.map_err(Failure::at("make the sidecar's container"))?;
    to_remove.made(&name, &id);
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_container_that_was_made_is_removed() {
        let to_remove = ToRemove::default();
        to_remove.push("agent".into());
        to_remove.made("agent", "a1");
        to_remove.made("agent", "a2");
        assert_eq!(to_remove.all(), ["a1", "a2"]);
    }
}
