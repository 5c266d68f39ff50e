//! The resolvers: DNS over UDP and TCP, from [`Names`]. Every query is recorded with its answer before the answer is sent.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::names::{Answer, Names};
use crate::recorder::{Recorder, Visit};

/// Answers must not be cached: a test may change a name between two queries.
const LIFETIME: u32 = 0;
/// The longest chain of aliases that is followed.
const ALIASES: usize = 8;
/// How long a TCP client may stay idle.
const IDLE: Duration = Duration::from_secs(30);

/// The resolver behind every address, with one table of names.
#[derive(Clone)]
pub(crate) struct Resolver {
    pub(crate) names: Arc<Mutex<Names>>,
    pub(crate) recorder: Recorder,
}

impl Resolver {
    /// Answers datagrams on one socket, forever. `server` is the name it records under.
    pub(crate) async fn serve_datagrams(self, socket: UdpSocket, local: SocketAddr, server: &'static str) {
        let mut buffer = [0; 65535];
        loop {
            let Ok((length, peer)) = socket.recv_from(&mut buffer).await else { continue };
            let visit = Visit { server, peer, local };
            if let Some(answer) = self.respond(&buffer[..length], &visit, "udp") {
                // The peer may be gone by now.
                let _ = socket.send_to(&answer, peer).await;
            }
        }
    }

    /// Answers the queries of one connection, each preceded by its length (RFC 1035 §4.2.2).
    pub(crate) async fn serve_connection(&self, mut stream: TcpStream, visit: &Visit) -> std::io::Result<()> {
        while let Ok(Ok(length)) = timeout(IDLE, stream.read_u16()).await {
            let mut question = vec![0; length.into()];
            timeout(IDLE, stream.read_exact(&mut question)).await??;
            let Some(answer) = self.respond(&question, visit, "tcp") else { continue };
            let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
            stream.write_u16(length).await?;
            stream.write_all(&answer).await?;
        }
        Ok(())
    }

    fn respond(&self, bytes: &[u8], visit: &Visit, transport: &str) -> Option<Vec<u8>> {
        let asked = Message::from_vec(bytes)
            .ok()
            .and_then(|message| Some((message.queries.first()?.clone(), message)));
        let Some((query, message)) = asked else {
            self.recorder.visit(visit, "malformed", json!({ "transport": transport, "length": bytes.len() }));
            return None;
        };
        let (code, answers) = self.look_up(&query);
        self.recorder.visit(
            visit,
            "query",
            json!({
                "name": query.name.to_ascii(),
                "type": query.query_type.to_string(),
                "transport": transport,
                "code": mnemonic(code),
                "answers": answers.iter().map(|record| record.data.to_string()).collect::<Vec<_>>(),
            }),
        );
        let code = code?;
        let mut response = Message::response(message.metadata.id, OpCode::Query);
        response.metadata.recursion_desired = message.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        response.metadata.response_code = code;
        response.add_query(query);
        response.add_answers(answers);
        let encoded = response.to_vec().ok()?;
        // RFC 1035 §4.2.1 and RFC 6891 §6.2.3: a client that announces no size accepts 512 octets.
        let room = usize::from(message.max_payload().max(512));
        if transport == "udp" && encoded.len() > room {
            return response.truncate().to_vec().ok();
        }
        Some(encoded)
    }

    /// Returns the code and the records for a query; without a code there is no answer.
    fn look_up(&self, query: &Query) -> (Option<ResponseCode>, Vec<Record>) {
        let wanted = |address: &IpAddr| match query.query_type {
            RecordType::A => address.is_ipv4(),
            RecordType::AAAA => address.is_ipv6(),
            _ => false,
        };
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut owner, mut records) = (query.name.clone(), Vec::new());
        for _ in 0..ALIASES {
            match names.answer(&owner.to_ascii(), wanted) {
                Answer::Addresses(addresses) => {
                    for address in addresses.into_iter().filter(wanted) {
                        let data = match address {
                            IpAddr::V4(address) => RData::A(A(address)),
                            IpAddr::V6(address) => RData::AAAA(AAAA(address)),
                        };
                        records.push(Record::from_rdata(owner.clone(), LIFETIME, data));
                    }
                    return (Some(ResponseCode::NoError), records);
                }
                Answer::Alias(alias) => {
                    let Ok(alias) = Name::from_ascii(format!("{}.", alias.trim_end_matches('.'))) else {
                        return (Some(ResponseCode::ServFail), Vec::new());
                    };
                    records.push(Record::from_rdata(owner, LIFETIME, RData::CNAME(CNAME(alias.clone()))));
                    owner = alias;
                }
                Answer::Unknown => return (Some(ResponseCode::NXDomain), records),
                Answer::Failure => return (Some(ResponseCode::ServFail), Vec::new()),
                Answer::Silence => return (None, Vec::new()),
            }
        }
        (Some(ResponseCode::ServFail), Vec::new())
    }
}

/// Returns a packet analyser's name for the code (RFC 1035 §4.1.1).
fn mnemonic(code: Option<ResponseCode>) -> &'static str {
    match code {
        Some(ResponseCode::NoError) => "NOERROR",
        Some(ResponseCode::NXDomain) => "NXDOMAIN",
        Some(_) => "SERVFAIL",
        None => "silence",
    }
}
