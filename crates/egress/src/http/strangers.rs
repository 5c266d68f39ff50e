//! Refuses the connections of others to the proxy and the gateway, where others than the run can connect. Nothing of them is read. The
//! first ones of each port leave a record.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use policy::{Denial, Guard, Plane};
use tokio::net::TcpStream;

use crate::audit::Record;
use crate::gate::Gate;

/// How many refused connections are recorded for each port. Every user of this machine can make them.
const MOST_REFUSED: u32 = 1000;

/// Who made a connection that is not served: a user of this machine, if the kernel tells whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrangePeer(pub Option<u32>);

/// Decides whether a connection is served, from its peer address and its local address.
#[derive(Clone)]
pub struct PeerFilter(Arc<dyn Fn(SocketAddr, SocketAddr) -> Result<(), StrangePeer> + Send + Sync>);

impl PeerFilter {
    /// Serves the connections for which `admits(peer, local)` returns no stranger.
    pub fn new(
        admits: impl Fn(SocketAddr, SocketAddr) -> Result<(), StrangePeer> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(admits))
    }

    /// Judges a connection. One that has no peer any more is nobody's.
    fn judge(&self, stream: &TcpStream) -> Result<(), StrangePeer> {
        match (stream.peer_addr(), stream.local_addr()) {
            (Ok(peer), Ok(local)) => (self.0)(peer, local),
            _ => Err(StrangePeer(None)),
        }
    }
}

impl fmt::Debug for PeerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerFilter")
    }
}

/// The door of one port, and how many it has refused.
pub(super) struct Door {
    gate: Rc<Gate>,
    plane: Plane,
    filter: Option<PeerFilter>,
    refused: Cell<u32>,
}

impl Door {
    /// Without a filter every peer is served.
    pub(super) fn of(gate: &Rc<Gate>, plane: Plane, filter: Option<PeerFilter>) -> Self {
        Self { gate: Rc::clone(gate), plane, filter, refused: Cell::new(0) }
    }

    /// Returns whether a connection is served. It is reset otherwise, once it is dropped.
    pub(super) fn admits(&self, stream: &TcpStream) -> bool {
        let judged = self.filter.as_ref().map_or(Ok(()), |filter| filter.judge(stream));
        judged.map_err(|stranger| self.refuse(stream, stranger)).is_ok()
    }

    fn refuse(&self, stream: &TcpStream, StrangePeer(user): StrangePeer) {
        let _ = stream.set_zero_linger();
        // Who has left is nobody's, and may have been the run itself: it looks whether the port is there.
        let Some(user) = user else { return };
        let before = self.refused.get();
        if before >= MOST_REFUSED {
            return;
        }
        self.refused.set(before + 1);
        let more = if before + 1 == MOST_REFUSED { "; more of them are not recorded" } else { "" };
        let what = if self.plane == Plane::Forward { "proxy" } else { "gateway" };
        let reason = format!("the {what} is for the run's own user alone{more}");
        let target = format!("{what} from user {user}");
        Record::begin(&self.gate, self.plane, "TCP", target).deny(Denial::new(Guard::Source, reason));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use policy::Port;
    use tokio::net::TcpListener;

    use super::*;
    use crate::fixture::{gate_for, records_in};
    use crate::upstream::Entrance;

    #[tokio::test]
    async fn the_first_thousand_strangers_leave_a_record() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asker = Entrance::at(Ipv4Addr::LOCALHOST).connect(Port::new(port).unwrap()).await.unwrap();
        let mut audit = tempfile::tempfile().unwrap();
        let gate = gate_for("", Vec::new(), Some(audit.try_clone().unwrap()));
        let stream = listener.accept().await.unwrap().0;
        let open = Door::of(&gate, Plane::Forward, None);
        let door = Door::of(&gate, Plane::Gateway, Some(PeerFilter::new(|_, _| Err(StrangePeer(Some(7))))));
        let left = Door::of(&gate, Plane::Gateway, Some(PeerFilter::new(|_, _| Err(StrangePeer(None)))));
        assert!(open.admits(&stream) && !left.admits(&stream));
        for _ in 0..=MOST_REFUSED {
            assert!(!door.admits(&stream));
        }
        drop((asker, open, left, door));
        gate.close().unwrap();
        let records = records_in(&mut audit);
        let refused = || records.lines().filter(|line| line.contains("source_not_allowed"));
        assert_eq!(refused().count(), 1000);
        assert!(refused().all(|line| line.contains("\"target\":\"gateway from user 7\"")), "{records}");
        assert_eq!(refused().filter(|line| line.contains("more of them are not recorded")).count(), 1);
    }
}
