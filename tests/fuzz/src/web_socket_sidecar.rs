//! A WebSocket through the explicit proxy, to an upstream that accepts it, sends a given stream and ends.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use egress::Listeners;

use crate::agent::{PATIENCE, connect, survive_broken_pipes, to_end};
use crate::octets::contains;
use crate::platform::{MODEL, Platform};
use crate::sidecar::{HOST, PORT, launch, local_tcp, rules_of_gateway, upstream_address};

/// The example of RFC 6455 §1.3: a key, and its answer.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A sidecar whose upstream speaks WebSocket, and that upstream.
pub(crate) struct WebSocketSidecar {
    proxy: SocketAddr,
    stream: Arc<Mutex<Vec<u8>>>,
}

impl WebSocketSidecar {
    /// Starts both.
    #[must_use]
    pub(crate) fn start(platform: &Platform) -> Self {
        survive_broken_pipes();
        let stream = Arc::new(Mutex::new(Vec::new()));
        let (sends, secret) = (Arc::clone(&stream), platform.secret().to_owned());
        let listener =
            TcpListener::bind((upstream_address(), PORT)).expect("the address is this process's own");
        // One connection at a time: a thread for each would be more threads than the leak detector follows.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let octets = sends.lock().map(|held| held.clone()).unwrap_or_default();
                let _ = send(stream, &octets, &secret);
            }
        });
        let forward = egress::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let proxy = local_tcp(&forward);
        let credential_config = platform.credential_config();
        let listeners = Listeners { forward: Some(forward), ..Listeners::default() };
        launch(rules_of_gateway(), listeners, |options| options.credential_config = credential_config);
        Self { proxy, stream }
    }

    /// Sends a stream from the upstream, and returns what the agent gets of it.
    ///
    /// # Panics
    /// When the sidecar does not open the WebSocket, or does not end the connection after the upstream has.
    #[must_use]
    pub(crate) fn carry(&self, stream: &[u8]) -> Vec<u8> {
        *self.stream.lock().expect("nobody panics with it") = stream.to_vec();
        let mut connection = connect(self.proxy);
        let asks = format!(
            "GET http://{HOST}:{PORT}/v1/socket HTTP/1.1\r\nHost: {HOST}:{PORT}\r\nAuthorization: Bearer {MODEL}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
        );
        let sent = connection.write_all(asks.as_bytes());
        let mut answer = to_end(&mut connection, &format!("{sent:?}"));
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{:?}", String::from_utf8_lossy(&answer));
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head has an end");
        answer.split_off(head + 4)
    }
}

/// Accepts the WebSocket if the credential came, sends a stream, ends, and waits for the other end.
fn send(mut upstream: TcpStream, stream: &[u8], secret: &str) -> std::io::Result<()> {
    upstream.set_read_timeout(Some(PATIENCE))?;
    let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
    while !contains(&head, b"\r\n\r\n") {
        match upstream.read(&mut buffer)? {
            0 => return Ok(()),
            read => head.extend(&buffer[..read]),
        }
    }
    assert!(contains(&head, secret.as_bytes()), "the credential did not come");
    let agreed = format!(
        "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    );
    upstream.write_all(&[agreed.as_bytes(), stream].concat())?;
    upstream.shutdown(Shutdown::Write)?;
    while upstream.read(&mut buffer)? > 0 {}
    Ok(())
}
