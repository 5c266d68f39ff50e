//! The egress sidecar: the planes a request comes in by, the one pipeline it goes through, and the record it leaves.
//!
//! ```text
//! forward, gateway     ┐
//! transparent, inbound ├─► Exchange<Asked> ─authorize─► <Granted> ─resolve─► <Resolved> ─guard─► <Pinned> ─► splice
//! dns (names)          ┘      │             ▲                                                        │
//!                             └─ terminated ┘ each request anew                    <Ready> ◄─inject──┘ ─► upstream
//! ```
//! Each stage consumes the one before, and any of them may deny.
//!
//! This crate works behind any sandbox or none: it serves bound sockets that it is given, and must never import the sandbox. For an
//! agent it dials only the addresses that an exchange has pinned. The platform and declared proxies are dialled at their configured
//! addresses, companions by the routes that the run has to them.

mod acceptor;
mod audit;
mod cause;
mod certificate;
mod check;
mod connection_slots;
mod credential_config;
mod credentials;
mod denied_once;
mod destination;
mod directions;
mod dns;
mod duplex;
mod ending;
mod event_loop;
mod exchange;
mod fetched_credential;
mod file_opener;
mod files;
#[cfg(test)]
mod fixture;
mod foresee;
mod gate;
mod gate_error;
mod http;
mod idle;
mod inbound_ports;
mod inject;
mod listen;
mod live_needles;
mod llm;
mod local_addresses;
mod notice;
mod opened;
mod patience;
mod platform;
mod rate;
mod read_file;
mod removal;
mod resolve;
mod serve;
mod socket_name;
mod socket_options;
mod tls;
mod trusted;
mod tunnel;
mod undelivered;
mod upstream;

pub use audit::{
    CompanionChain, Digest, Entry, EntryPlane, GateAction, LONGEST_RECORD, Outcome, SigningKey, VerifyError,
    VerifyReport, Word, digest, first_hash, named_companions, verify,
};
pub use check::{Verdict, check};
pub use credential_config::{CredentialConfig, Generation, PlatformAddress, PlatformPlace, RunToken};
pub use dns::{NameRange, OwnName};
pub use file_opener::{FileOpener, NameFiles, ReceiveNameFiles};
pub use files::{Files, FilesError, beyond_usual};
pub use foresee::{Approach, Course, foresee, foresee_tunnel};
pub use gate::{Gate, GateOptions};
pub use gate_error::GateError;
pub use http::{BodyLength, HeadError, PeerFilter, RequestHead, StrangePeer, parse_request_head};
pub use inbound_ports::{InboundPorts, WhoConnects};
pub use listen::{bind, bind_everywhere, bind_socket, bind_udp, bound};
pub use llm::{AnswerEnd, ModelUse, use_of_answer};
pub use local_addresses::own_addresses;
pub use notice::{Notice, NoticeOutcome, SidecarMessage, Summary, send_authority, send_failure, tell_panics};
pub use removal::RemovalWatch;
pub use resolve::{Answers, HOSTS, RESOLV_CONF};
pub use serve::{Listeners, Stop, serve};
pub use socket_name::SocketName;
pub use tls::{AuthorityError, RunAuthority};
pub use tunnel::{FORWARDER_SECRET_LENGTH, forward_ports, server_name_of};
pub use upstream::{Companions, Detour, Entrance, Outside};
