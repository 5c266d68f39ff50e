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

mod audit;
mod check;
mod credentials;
mod destination;
mod dns;
mod duplex;
mod ending;
mod exchange;
mod files;
mod gate;
mod http;
mod inject;
mod llm;
mod lull;
mod notice;
mod own;
mod places;
mod platform;
mod rate;
mod resolve;
mod serve;
mod socket_name;
mod tls;
mod tunnel;
mod upstream;
mod wallet;

pub use audit::{
    CompanionChain, Digest, Entry, EntryPlane, GateAction, Outcome, SigningKey, VerifyError, VerifyReport,
    Word, digest, first_hash, named_companions, verify,
};
pub use check::{Verdict, check};
pub use dns::NameRange;
pub use files::{BundleError, Files};
pub use gate::{Gate, GateError, GateOptions};
pub use http::{BodyLength, HeadError, RequestHead, parse_request_head};
pub use llm::{AnswerEnd, ModelUse, use_of_answer};
pub use notice::{Notice, Summary, Told, tell_authority, tell_failure};
pub use own::own_addresses;
pub use resolve::Answers;
pub use serve::{
    Doorkeeper, InboundPorts, Listeners, Stop, WhoConnects, bind, bind_socket, bind_udp, bound, serve,
};
pub use socket_name::SocketName;
pub use tls::{AuthorityError, RunAuthority};
pub use tunnel::{INTRODUCER, hand_on, server_name_of};
pub use upstream::{Companions, Detour, Entrance, Outside};
pub use wallet::{Generation, PlatformAddress, PlatformPlace, RunToken, Wallet};
