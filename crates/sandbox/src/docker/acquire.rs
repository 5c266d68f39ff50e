//! The sidecar of a run at an engine: a member of the pool, which runs and waits for its letter, or where there is none a
//! container of the run's own, which is started with the agent's. A container that is not started yet joins a network for nothing:
//! so what is made for this run is started last.

use std::cell::RefCell;
use std::io;

use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::attached::{Attached, Ended, carry};
use super::container;
use super::engine::Engine;
use super::names::sidecar_name;
use super::prepare::Own;
use crate::failure::Failure;
use crate::plan::Plan;
use crate::plan::engine::Maker;
use crate::run_network::{RunNetwork, Visit};

/// The containers of a run, by name or by id: all that is to be taken away at its end.
pub(super) type Held = RefCell<Vec<String>>;

/// What becomes of the line of a sidecar.
pub(super) type Carried = JoinHandle<Ended>;

/// A sidecar's container.
pub(super) enum Sidecar {
    /// Out of the pool, which it has left: it runs.
    Taken { id: String, attached: Attached },
    /// Of the run's own: it does not run. Whoever waits for our own binary hears of it once it is there.
    Made { name: String, filled: Option<oneshot::Sender<()>> },
}

impl Sidecar {
    /// Drains the pool first; nothing that is wrong there is a reason to fail. S0.40
    ///
    /// The first container of an image fills the volume with our own binary, which Docker does when it is made, and Podman when it is
    /// started: `filled` hears of it.
    pub(super) async fn acquire(
        plan: &Plan,
        engine: &Engine,
        own: &Own,
        held: &Held,
        filled: oneshot::Sender<()>,
    ) -> Result<Self, Failure> {
        let mut filled = Some(filled);
        let taken = |id: &str| held.borrow_mut().push(id.to_owned());
        // One that waits was made without ports, and an engine publishes none of a container that is there.
        if plan.engine.as_ref().is_some_and(|it| it.pool > 0 && it.published.is_empty())
            && let Some((id, attached)) =
                engine.take_member(&plan.run, own, || tell(&mut filled), taken).await
        {
            return Ok(Self::Taken { id, attached });
        }
        let name = make(plan, engine, own, held).await?;
        if engine.maker == Maker::Docker {
            tell(&mut filled);
        }
        Ok(Self::Made { name, filled })
    }

    /// Joins the network of the run, and those of its companions. A member of the pool that cannot makes room for one that is made
    /// for this run. What it says and hears from now on is carried to the other end of `line`.
    pub(super) async fn join(
        self,
        plan: &Plan,
        engine: &Engine,
        own: &Own,
        held: &Held,
        networks: Networks<'_>,
        line: impl FnOnce() -> io::Result<UnixStream>,
    ) -> Result<(String, Carried), Failure> {
        let fail = |step: &'static str| move |cause: String| Failure::new(step, cause);
        let plumbing = |error: io::Error| fail("start the shim")(error.to_string());
        let (name, mut filled) = match self {
            Self::Taken { id, attached } => {
                if networks.join(plan, engine, &id).await.is_ok() {
                    let carried = tokio::spawn(carry(attached, line().map_err(plumbing)?));
                    return Ok((id, carried));
                }
                let _ = engine.remove_container(&id).await;
                (make(plan, engine, own, held).await?, None)
            }
            Self::Made { name, filled } => (name, filled),
        };
        let joined = networks.join(plan, engine, &name).await;
        joined.map_err(fail("join the sidecar to the run's network"))?;
        let attached = Attached::to(engine, &name).await;
        let attached = attached.map_err(fail("attach to the sidecar's container"))?;
        // Before it is started, so that its letter is there when it looks for it.
        let carried = tokio::spawn(carry(attached, line().map_err(plumbing)?));
        engine.start(&name).await.map_err(fail("start the sidecar's container"))?;
        tell(&mut filled);
        Ok((name, carried))
    }
}

/// Where the sidecar of a run belongs: on its network, and on those of the companions it reaches.
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

/// Says that our own binary is in its volume. Nobody listens any more where the run's network could not be made.
fn tell(filled: &mut Option<oneshot::Sender<()>>) {
    let _ = filled.take().map(|filled| filled.send(()));
}

/// Makes a container for the sidecar of this run alone.
async fn make(plan: &Plan, engine: &Engine, own: &Own, held: &Held) -> Result<String, Failure> {
    let fail = |step: &'static str| move |cause: String| Failure::new(step, cause);
    let name = sidecar_name(&plan.run);
    engine.make_egress().await.map_err(fail("make the network of sidecars"))?;
    held.borrow_mut().push(name.clone());
    let published = plan.engine.as_ref().map_or(&[][..], |it| &it.published);
    let body = container::sidecar(plan, &own.image, &own.volume, published);
    engine.make_container(&name, body).await.map_err(fail("make the sidecar's container"))?;
    Ok(name)
}
