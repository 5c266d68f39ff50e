//! Opening a connection: its TLS ends here, with a certificate of the run's own authority, and each of its requests is
//! asked for by itself. Three things have agreed by then: the name that DNS or `CONNECT` was given, the server name of the
//! ClientHello, and the rule; the request's own authority is the fourth.

use std::io;
use std::rc::Rc;

use policy::{Denial, Guard, Plane, Scheme};
use tokio::net::TcpStream;

use super::refuse::{Spoken, refuse};
use super::sniff::Carried;
use super::{agree, preface};
use crate::exchange::{Exchange, Granted};
use crate::gate::Gate;
use crate::http::{AgentStream, Buffered, Via, serve_requests, serve_streams};
use crate::tls::{Accepted, accept};

/// Opens what a connection carries.
pub(super) async fn open(
    gate: &Rc<Gate>,
    plane: Plane,
    exchange: Exchange<Granted>,
    agent: Buffered<TcpStream>,
    carried: Carried,
) -> io::Result<()> {
    let (host, port) = (exchange.grant().host().clone(), exchange.grant().port());
    let via = |scheme| Via::Bound { plane, scheme, host: host.clone(), port };
    let name = match carried {
        Carried::Nothing => return Ok(()),
        Carried::Http => {
            exchange.into_requests();
            let Buffered { ahead, reader } = agent;
            let stream = AgentStream::Tcp(reader);
            return Box::pin(serve_requests(Rc::clone(gate), via(Scheme::Http), stream, ahead)).await;
        }
        Carried::Other => {
            let why = "only requests of HTTP may go there, because a credential is bound or a rule names paths or methods";
            let denial = exchange.refuse(Denial::new(Guard::Protocol, why));
            return refuse(agent, &denial, None).await;
        }
        Carried::Preface => {
            let denial = exchange.refuse(preface());
            return refuse(agent, &denial, None).await;
        }
        Carried::Tls(name) => name,
    };
    if let Err(denial) = agree(&host, &name) {
        let denial = exchange.refuse(denial);
        return refuse(agent, &denial, Some(Spoken::Tls)).await;
    }
    let Some(config) = gate.leaves().and_then(|leaves| leaves.config(&host).ok()) else {
        let why = "the rule must see requests, and this sidecar has no authority to open TLS with";
        let denial = exchange.refuse(Denial::new(Guard::Unseen, why));
        return refuse(agent, &denial, Some(Spoken::Tls)).await;
    };
    let accepted = match accept(config, agent).await {
        Ok(accepted) => accepted,
        Err(error) => {
            exchange.fail(&format!(
                "the program inside broke off TLS, it may not trust the run's authority: {error}"
            ));
            return Ok(());
        }
    };
    exchange.into_requests();
    match accepted {
        Accepted::Version1(stream) => {
            Box::pin(serve_requests(Rc::clone(gate), via(Scheme::Https), stream, bytes::BytesMut::new()))
                .await
        }
        Accepted::Version2(stream) => {
            Box::pin(serve_streams(Rc::clone(gate), via(Scheme::Https), stream)).await
        }
    }
}
