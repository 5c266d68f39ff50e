//! A connection whose TLS the sidecar terminates: `CONNECT`, TLS with a certificate of the run's authority, HTTP/2 inside. The
//! upstream behind it speaks HTTP/1.1, so what passes HTTP/2 is written out and read strictly.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use egress::{Files, Listeners, RunAuthority};
use rustls::{ClientConfig, ClientConnection, ServerConnection, StreamOwned};

use crate::agent::{PATIENCE, connect, to_end};
use crate::sidecar::{HOST, launch, local_tcp, upstream_address};
use crate::upstream::{listen, read_requests};
use crate::{authority, frames};

/// The port of the host behind TLS.
const PORT: u16 = 8443;
/// How long nothing may come before it counts as quiet.
const QUIET: Duration = Duration::from_millis(25);

/// A sidecar that terminates TLS for the one host its rules know.
pub(crate) struct TerminatingSidecar {
    proxy: SocketAddr,
    config: Arc<ClientConfig>,
}

impl TerminatingSidecar {
    /// Starts the sidecar, and the upstream behind it.
    #[must_use]
    pub(crate) fn start(answer: impl Fn(&[u8]) -> Vec<u8> + Clone + Send + 'static) -> Self {
        let (host, certificate) = authority::host(HOST);
        listen(PORT, move |stream| {
            let connection = ServerConnection::new(Arc::clone(&host)).expect("a good configuration");
            let _ = read_requests(StreamOwned::new(connection, stream), PORT, &answer);
        });
        // The rule names methods: the sidecar terminates TLS only for a rule that needs to see requests.
        let methods = r#"["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]"#;
        let address = upstream_address();
        let rules = format!(
            "[egress]\nallow = [{{ url = \"https://{HOST}:{PORT}/*\", methods = {methods}, addresses = [\"{address}\"] }}]\n"
        );
        let run = RunAuthority::make().expect("there is randomness");
        let config = authority::agent(run.certificate_pem());
        let bundle = std::env::temp_dir().join(format!("lockgate-fuzz-{}.pem", std::process::id()));
        std::fs::write(&bundle, certificate).expect("there is a folder for what is temporary");
        let files = Files::open(bundle.to_str()).expect("it was just written");
        std::fs::remove_file(bundle).expect("it was just written");
        let forward = egress::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let proxy = local_tcp(&forward);
        let listeners = Listeners { forward: Some(forward), ..Listeners::default() };
        launch(rules, listeners, |options| {
            options.files = files;
            options.authority = Some(run);
        });
        Self { proxy, config }
    }

    /// Sends octets after the preface of HTTP/2, reads until the time that is asked for, ends the connection, and reads to its
    /// end.
    ///
    /// # Panics
    /// When the sidecar does not terminate the TLS, or does not end the connection.
    #[must_use]
    pub(crate) fn converse(&self, bytes: &[u8], until: Until) -> Vec<u8> {
        let mut stream = StreamOwned::new(self.connection(), self.connected());
        let sent = stream.write_all(&[frames::PREFACE, bytes].concat());
        assert_eq!(stream.conn.alpn_protocol(), Some(b"h2".as_slice()), "{sent:?}");
        let mut answer = Vec::new();
        stream.sock.set_read_timeout(Some(QUIET)).expect("a read timeout");
        for _ in 0..until.patience() {
            match read_some(&mut stream, &mut answer) {
                Ok(0) => return answer,
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return answer;
                }
                _ if until == Until::FirstAnswer && frames::has_ended(&answer) => break,
                _ => {}
            }
        }
        stream.sock.set_read_timeout(Some(PATIENCE)).expect("a read timeout");
        stream.conn.send_close_notify();
        let ended = stream.flush().and_then(|()| stream.sock.shutdown(Shutdown::Write));
        [answer, to_end(&mut stream, &format!("{sent:?}, {ended:?}"))].concat()
    }

    fn connection(&self) -> ClientConnection {
        let name = HOST.try_into().expect("a name");
        ClientConnection::new(Arc::clone(&self.config), name).expect("a good configuration")
    }

    fn connected(&self) -> TcpStream {
        let mut stream = connect(self.proxy);
        let asked = format!("CONNECT {HOST}:{PORT} HTTP/1.1\r\nHost: {HOST}:{PORT}\r\n\r\n");
        stream.write_all(asked.as_bytes()).expect("the proxy reads");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut octet = [0];
            stream.read_exact(&mut octet).expect("the proxy answers");
            head.push(octet[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&head));
        stream
    }
}

/// When the agent ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// After the first answer has ended.
    FirstAnswer,
    /// After nothing more comes.
    Quiet,
}

impl Until {
    /// How often it may be quiet.
    fn patience(self) -> usize {
        match self {
            Self::FirstAnswer => 40,
            Self::Quiet => 2,
        }
    }
}

fn read_some(stream: &mut impl Read, answer: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut buffer = [0; 16 * 1024];
    let read = stream.read(&mut buffer)?;
    answer.extend(&buffer[..read]);
    Ok(read)
}
