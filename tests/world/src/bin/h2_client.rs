//! `h2-client ADDRESS REQUEST`: makes one HTTP/2 request by the `h2` crate, and prints the answer as JSON. It runs inside the world, trusts
//! `$WORLD_CA` alone and judges nothing.
//!
//! A request is `{"host", "method"?, "path", "headers"?, "data"?, "trailers"?}`: headers and trailers are objects, `data` a list of DATA
//! frames, their octets as characters of the same number. Each frame but the first waits for an answer to the one before, which exposes an
//! upstream that answers only at the end. With `"ech": true` the ClientHello has an extension for an encrypted one that holds nothing (GREASE,
//! RFC 9849 §6.2). The answer is `{"alpn", "ech", "interim", "status", "headers", "data", "trailers"}`.

use std::error::Error;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use rustls::client::{EchGreaseConfig, EchMode};
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_128;
use rustls::crypto::hpke::HpkePublicKey;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The time limit of the whole exchange.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, request] = arguments.as_slice() else { return Err("h2-client ADDRESS REQUEST".into()) };
    let request: Value = serde_json::from_str(request)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(async { timeout(PATIENCE, exchange(address, &request)).await })??;
    println!("{answer}");
    Ok(())
}

async fn exchange(address: &str, request: &Value) -> Outcome<Value> {
    let host = request["host"].as_str().ok_or("no host is named")?;
    let hello = if request["ech"] == true { Hello::Grease } else { Hello::Plain };
    let stream = connect(address, host, hello).await?;
    let session = stream.get_ref().1;
    let alpn = session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
    let said = json!({ "alpn": alpn, "ech": format!("{:?}", session.ech_status()) });
    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let mut client = client.ready().await?;

    let frames: Vec<Bytes> =
        request["data"].as_array().into_iter().flatten().map(octets).collect::<Outcome<_>>()?;
    let trailers = map_of(&request["trailers"])?;
    let uri = format!("https://{host}{}", request["path"].as_str().ok_or("no path is named")?);
    let mut head = Request::builder().method(request["method"].as_str().unwrap_or("GET")).uri(uri).body(())?;
    *head.headers_mut() = map_of(&request["headers"])?;
    let ended = frames.is_empty() && trailers.is_empty();
    let (response, stream) = client.send_request(head, ended)?;
    receive(response, (!ended).then_some(stream), frames, trailers, said).await
}

/// Whether the ClientHello has the extension of an encrypted one.
#[derive(Clone, Copy)]
enum Hello {
    Plain,
    Grease,
}

async fn connect(address: &str, host: &str, hello: Hello) -> Outcome<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let authority = std::env::var_os("WORLD_CA").ok_or("WORLD_CA is not set")?;
    roots.add(CertificateDer::from_pem_file(authority)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = match hello {
        Hello::Plain => builder.with_safe_default_protocol_versions()?,
        Hello::Grease => {
            // Any key: nobody can open what is sealed with it.
            let key = HpkePublicKey(vec![9; 32]);
            let grease = EchGreaseConfig::new(DH_KEM_X25519_HKDF_SHA256_AES_128, key);
            builder.with_ech(EchMode::Grease(grease))?
        }
    };
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(host.to_owned())?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await?)
}

async fn receive(
    mut response: ResponseFuture,
    stream: Option<SendStream<Bytes>>,
    frames: Vec<Bytes>,
    trailers: HeaderMap,
    said: Value,
) -> Outcome<Value> {
    let mut frames = frames.into_iter();
    let mut stream = stream;
    if let (Some(stream), Some(first)) = (&mut stream, frames.next()) {
        stream.send_data(first, frames.len() == 0 && trailers.is_empty())?;
    }
    if frames.len() == 0 {
        end(&mut stream, &trailers)?;
    }
    let mut interim = Vec::new();
    while let Some(Ok(head)) = poll_fn(|context| response.poll_informational(context)).await {
        interim.push(json!({ "status": head.status().as_u16(), "headers": pairs(head.headers()) }));
    }
    let (head, mut body) = response.await?.into_parts();
    let mut data = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        data.push(piece.iter().copied().map(char::from).collect::<String>());
        if let (Some(stream), Some(next)) = (&mut stream, frames.next()) {
            stream.send_data(next, frames.len() == 0 && trailers.is_empty())?;
        }
        if frames.len() == 0 {
            end(&mut stream, &trailers)?;
        }
    }
    Ok(json!({
        "alpn": said["alpn"],
        "ech": said["ech"],
        "interim": interim,
        "status": head.status.as_u16(),
        "headers": pairs(&head.headers),
        "data": data,
        "trailers": trailers_of(&mut body).await?,
    }))
}

/// Ends the request after all data is sent, with the trailers, once.
fn end(stream: &mut Option<SendStream<Bytes>>, trailers: &HeaderMap) -> Outcome<()> {
    if let Some(mut stream) = stream.take()
        && !trailers.is_empty()
    {
        stream.send_trailers(trailers.clone())?;
    }
    Ok(())
}

async fn trailers_of(body: &mut RecvStream) -> Outcome<Value> {
    Ok(body.trailers().await?.map_or(Value::Null, |trailers| pairs(&trailers)))
}

fn octets(text: &Value) -> Outcome<Bytes> {
    let letters = text.as_str().ok_or("a frame is a text")?.chars();
    Ok(letters.map(|letter| u8::try_from(u32::from(letter))).collect::<Result<Vec<u8>, _>>()?.into())
}

fn map_of(object: &Value) -> Outcome<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        let value = value.as_str().ok_or("a header is a text")?;
        map.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    Ok(map)
}

fn pairs(headers: &HeaderMap) -> Value {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value).into())).collect::<Map<_, _>>().into()
}
