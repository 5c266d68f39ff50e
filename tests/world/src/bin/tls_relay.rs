//! `tls-relay HOST`: brings octets of HTTP/1 to a host over TLS, for clients that speak none: as they are from port 9101, and as HTTP/2 from
//! port 9102. It runs inside the world, trusts `$WORLD_CA` alone, judges nothing, and says `ready` once it listens.
//!
//! As HTTP/2 a request goes as its fields are, however odd: the field block is written here, without the checks of a library. What is no
//! request goes as a field block as well. Answers come back as HTTP/1, a trailer at the end of the body. A stream that was reset is
//! answered 400 here, or 500 if it was by an internal error, and then the connection ends.

use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf,
    copy_bidirectional,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const AS_IT_IS: u16 = 9101;
const HTTP2: u16 = 9102;
/// The largest frame that is sent (RFC 9113 §4.2), which a field block must not exceed here.
const LARGEST_FRAME: usize = 16 * 1024;

fn main() -> Outcome<()> {
    let host = std::env::args().nth(1).ok_or("tls-relay HOST")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (first, second) = (Service::of(&host, b"http/1.1")?, Service::of(&host, b"h2")?);
        let (octets, requests) = (listen(AS_IT_IS).await?, listen(HTTP2).await?);
        println!("ready");
        loop {
            // What becomes of one connection its client sees.
            tokio::select! {
                Ok((client, _)) = octets.accept() => drop(tokio::spawn(carry(first.clone(), client))),
                Ok((client, _)) = requests.accept() => drop(tokio::spawn(translate(second.clone(), client))),
            }
        }
    })
}

async fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", port)).await
}

/// The host, and the protocol that is spoken inside TLS.
#[derive(Clone)]
struct Service {
    host: String,
    config: Arc<ClientConfig>,
}

impl Service {
    fn of(host: &str, protocol: &[u8]) -> Outcome<Self> {
        let mut roots = RootCertStore::empty();
        let authority = std::env::var_os("WORLD_CA").ok_or("WORLD_CA is not set")?;
        roots.add(CertificateDer::from_pem_file(authority)?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(Self { host: host.to_owned(), config: Arc::new(config) })
    }

    async fn connect(&self) -> Outcome<TlsStream<TcpStream>> {
        let stream = TcpStream::connect((self.host.as_str(), 443)).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(self.host.clone())?;
        Ok(TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await?)
    }
}

async fn carry(service: Service, mut client: TcpStream) -> Outcome<()> {
    client.set_nodelay(true)?;
    let mut stream = service.connect().await?;
    copy_bidirectional(&mut client, &mut stream).await?;
    Ok(())
}

/// Carries one client's requests over one connection, one after another.
async fn translate(service: Service, client: TcpStream) -> Outcome<()> {
    client.set_nodelay(true)?;
    let blocks = Blocks::default();
    let stream = Rewriting::over(service.connect().await?, blocks.clone());
    let (mut session, connection) = h2::client::handshake(stream).await?;
    let driven = tokio::spawn(connection);
    let (reader, mut writer) = client.into_split();
    let mut reader = BufReader::new(reader);
    while let Some(asked) = Asked::read(&mut reader).await? {
        // Of a connection that has ended nothing is said: the client tries another.
        session = session.ready().await?;
        blocks.push(asked.block(&service.host));
        if let Err(error) = exchange(&mut session, &asked, &mut writer).await {
            let status = if error.reason() == Some(h2::Reason::INTERNAL_ERROR) { 500 } else { 400 };
            let answer = format!("HTTP/1.1 {status} Reset\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            writer.write_all(answer.as_bytes()).await?;
            break;
        }
    }
    driven.abort();
    Ok(())
}

/// A request as its client wrote it, or octets that are none.
#[derive(Default)]
struct Asked {
    method: Vec<u8>,
    target: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    /// Octets without an end of a head.
    rest: Option<Vec<u8>>,
}

impl Asked {
    /// Reads the next one; `None` behind the last.
    async fn read(reader: &mut (impl AsyncRead + AsyncBufReadExt + Unpin)) -> io::Result<Option<Self>> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if reader.read_until(b'\n', &mut head).await? == 0 {
                return Ok((!head.is_empty()).then_some(Self { rest: Some(head), ..Self::default() }));
            }
        }
        let mut lines = head[..head.len() - 4]
            .split(|octet| *octet == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = lines.next().unwrap_or_default();
        let (method, rest) = cut(first, b' ');
        let target = rest.rsplitn(2, |octet| *octet == b' ').last().unwrap_or_default();
        let mut fields: Vec<_> = lines
            .map(|line| cut(line, b':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim_ascii_start().to_vec()))
            .collect();
        let framing = |name: &[u8]| {
            fields
                .iter()
                .rev()
                .find(|(of, _)| of == name)
                .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        let (length, coding) = (framing(b"content-length"), framing(b"transfer-encoding"));
        let mut body = Vec::new();
        if coding.is_some() {
            body = chunks(reader).await?;
        } else if let Some(length) = length.and_then(|length| length.parse().ok()) {
            reader.take(length).read_to_end(&mut body).await?;
        }
        // HTTP/2 has a framing of its own.
        fields.retain(|(name, _)| name != b"content-length" && name != b"transfer-encoding");
        Ok(Some(Self { method: method.to_vec(), target: target.to_vec(), fields, body, rest: None }))
    }

    /// The field block: literals without indexing and without Huffman's code (RFC 7541 §6.2.2), so no table changes.
    fn block(&self, host: &str) -> Vec<u8> {
        let mut block = Vec::new();
        let mut put = |name: &[u8], value: &[u8]| {
            block.push(0);
            for text in [name, value] {
                // RFC 7541 §5.1: an integer with a prefix of seven bits.
                match text.len() {
                    short @ 0..127 => block.extend(u8::try_from(short)),
                    long => {
                        block.push(127);
                        let mut rest = long - 127;
                        while rest >= 128 {
                            block.extend(u8::try_from(rest % 128 + 128));
                            rest /= 128;
                        }
                        block.extend(u8::try_from(rest));
                    }
                }
                block.extend(text);
            }
        };
        if let Some(rest) = &self.rest {
            return rest[..rest.len().min(LARGEST_FRAME)].to_vec();
        }
        let named = self.fields.iter().find(|(name, _)| name == b"host").map(|(_, value)| value.as_slice());
        put(b":method", &self.method);
        put(b":scheme", b"https");
        put(b":authority", named.unwrap_or(host.as_bytes()));
        put(b":path", &self.target);
        self.fields.iter().filter(|(name, _)| name != b"host").for_each(|(name, value)| put(name, value));
        block.truncate(LARGEST_FRAME);
        block
    }
}

fn cut(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let end = text.iter().position(|octet| *octet == at).unwrap_or(text.len());
    (&text[..end], text.get(end + 1..).unwrap_or_default())
}

async fn chunks(reader: &mut (impl AsyncRead + AsyncBufReadExt + Unpin)) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line).await?;
        let digits = String::from_utf8_lossy(&line).trim().to_owned();
        let size = u64::from_str_radix(&digits, 16).unwrap_or(0);
        (&mut *reader).take(size).read_to_end(&mut body).await?;
        reader.read_until(b'\n', &mut line).await?;
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Sends one request, whose field block waits, and writes its answers. An error is one before the answer.
async fn exchange(
    session: &mut SendRequest<Bytes>,
    asked: &Asked,
    writer: &mut (impl AsyncWrite + Unpin),
) -> Result<(), h2::Error> {
    let gone = |_| h2::Error::from(h2::Reason::CANCEL);
    // Only whether an answer has a body is read from this one.
    let is_head = asked.method == b"HEAD";
    let mut head = Request::new(());
    *head.method_mut() = if is_head { http::Method::HEAD } else { http::Method::GET };
    *head.uri_mut() = http::Uri::from_static("https://a.test/");
    let (mut response, mut stream) = session.send_request(head, asked.body.is_empty())?;
    if !asked.body.is_empty() {
        stream.send_data(asked.body.clone().into(), true)?;
    }
    while let Some(interim) = poll_fn(|context| response.poll_informational(context)).await {
        let Ok(interim) = interim else { break };
        let start = start_of(interim.status(), interim.headers(), "");
        writer.write_all(&start).await.map_err(gone)?;
    }
    let (head, mut body) = response.await?.into_parts();
    let is_bare = is_head
        || [204, 304].contains(&head.status.as_u16())
        || asked.method == b"CONNECT" && head.status == 200;
    let framing = if is_bare { "" } else { "transfer-encoding: chunked\r\n" };
    writer.write_all(&start_of(head.status, &head.headers, framing)).await.map_err(gone)?;
    // From here on an error can only cut the answer off.
    let cut_off = async {
        while let Some(piece) = body.data().await {
            let piece = piece?;
            body.flow_control().release_capacity(piece.len())?;
            writer.write_all(&chunk(&piece)).await?;
        }
        if let Some(trailers) = body.trailers().await? {
            writer.write_all(&chunk(&lines(&trailers))).await?;
        }
        if !is_bare {
            writer.write_all(b"0\r\n\r\n").await?;
        }
        Outcome::Ok(())
    };
    if cut_off.await.is_err() {
        let _ = writer.shutdown().await;
    }
    Ok(())
}

fn chunk(piece: &[u8]) -> Vec<u8> {
    match piece {
        [] => Vec::new(),
        _ => [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat(),
    }
}

fn start_of(status: http::StatusCode, headers: &HeaderMap, framing: &str) -> Vec<u8> {
    let mut headers = headers.clone();
    headers.remove("content-length");
    [
        format!("HTTP/1.1 {} Status\r\n", status.as_u16()).as_bytes(),
        &lines(&headers),
        framing.as_bytes(),
        b"\r\n",
    ]
    .concat()
}

fn lines(headers: &HeaderMap) -> Vec<u8> {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat()
    };
    headers.iter().flat_map(line).collect()
}

/// Field blocks that wait for their HEADERS frames.
#[derive(Clone, Default)]
struct Blocks(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Blocks {
    fn push(&self, block: Vec<u8>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(block);
    }

    fn next(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// A connection on which each HEADERS frame that is sent gets the next field block in place of its own.
struct Rewriting {
    stream: TlsStream<TcpStream>,
    blocks: Blocks,
    /// What came of a frame that is not whole, and what waits to be sent.
    part: Vec<u8>,
    waiting: Vec<u8>,
    begun: bool,
}

impl Rewriting {
    /// RFC 9113 §3.4, §4.1, §6.2.
    const PREFACE: usize = 24;
    const FRAME_HEAD: usize = 9;
    const HEADERS: u8 = 1;

    fn over(stream: TlsStream<TcpStream>, blocks: Blocks) -> Self {
        Self { stream, blocks, part: Vec::new(), waiting: Vec::new(), begun: false }
    }

    fn take_frames(&mut self) {
        if !self.begun && self.part.len() >= Self::PREFACE {
            self.waiting.extend(self.part.drain(..Self::PREFACE));
            self.begun = true;
        }
        while self.begun && self.part.len() >= Self::FRAME_HEAD {
            let length = self.part[..3].iter().fold(0, |length, octet| length << 8 | usize::from(*octet));
            if self.part.len() < Self::FRAME_HEAD + length {
                return;
            }
            let frame: Vec<u8> = self.part.drain(..Self::FRAME_HEAD + length).collect();
            match (frame[3] == Self::HEADERS).then(|| self.blocks.next()).flatten() {
                Some(block) => {
                    let length = u32::try_from(block.len()).unwrap_or_default().to_be_bytes();
                    self.waiting.extend([&length[1..], &frame[3..Self::FRAME_HEAD], &block].concat());
                }
                None => self.waiting.extend(frame),
            }
        }
    }

    fn poll_waiting(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(context, &self.waiting))?;
            self.waiting.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Rewriting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Rewriting {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        octets: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_waiting(context))?;
        self.part.extend(octets);
        self.take_frames();
        Poll::Ready(Ok(octets.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_waiting(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_waiting(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
