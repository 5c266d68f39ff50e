//! The way out: the planes a request comes in by, the one pipeline it goes through, and the record it leaves.
//!
//! ```text
//! forward, gateway     ┐
//! transparent, inbound ├─► Exchange<Asked> ─authorize─► <Granted> ─resolve─► <Resolved> ─guard─► <Pinned> ─► splice
//! dns (names)          ┘      │         ▲                                                            │
//!                             └─ opened ┘ its requests ask anew                    <Ready> ◄─inject──┘ ─► upstream
//! ```
//! Each stage consumes the one before; a denial leaves at any of them.
//! This crate works behind any sandbox or none: it is handed bound sockets and knows nothing of what is behind them.
//! It must never import the sandbox. No address of the agent's choosing is dialled that an exchange has not pinned; a platform and
//! declared proxies are dialled where they were configured, companions where the run has them.

mod acceptor;
mod audit;
mod check;
mod connection_slots;
mod credential_config;
mod credentials;
mod destination;
mod dns;
mod duplex;
mod ending;
mod exchange;
mod files;
mod gate;
mod http;
mod idle;
mod inbound_ports;
mod inject;
mod listen;
mod llm;
mod local_addresses;
mod notice;
mod platform;
mod rate;
mod resolve;
mod serve;
mod socket_name;
mod tls;
mod tunnel;
mod upstream;

pub use acceptor::PeerFilter;
pub use audit::{
    CompanionChain, Digest, Entry, EntryPlane, GateAction, Outcome, SigningKey, VerifyError, VerifyReport,
    Word, digest, first_hash, named_companions, verify,
};
pub use check::{Verdict, check};
pub use credential_config::{CredentialConfig, Generation, PlatformAddress, PlatformPlace, RunToken};
pub use dns::NameRange;
pub use files::{BundleError, Files};
pub use gate::{Gate, GateError, GateOptions};
pub use http::{BodyLength, HeadError, RequestHead, parse_request_head};
pub use inbound_ports::{InboundPorts, WhoConnects};
pub use listen::{bind, bind_socket, bind_udp, bound};
pub use llm::{AnswerEnd, ModelUse, use_of_answer};
pub use local_addresses::own_addresses;
pub use notice::{Notice, SidecarMessage, Summary, send_authority, send_failure};
pub use resolve::Answers;
pub use serve::{Listeners, Stop, serve};
pub use socket_name::SocketName;
pub use tls::{AuthorityError, RunAuthority};
pub use tunnel::{INTRODUCER, hand_on, server_name_of};
pub use upstream::{Companions, Detour, Entrance, Outside};
