//! Pulls one image, from a reference to an image of the store.

use http::{HeaderValue, StatusCode};

use super::auth;
use super::blob::{Blob, Download, Next};
use super::client::{Answer, Ask, Client, Pause, Stopped, failed, is_busy, refused};
use super::request::{Connect, PullProgress, PullRequest, Transport};
use super::served::Served;
use super::url::Url;
use crate::config::Configured;
use crate::digest::Digest;
use crate::error::{Error, OCTETS, UnpackError};
use crate::manifest::{Descriptor, Document, LARGEST, Manifest, malformed};
use crate::search::Search;
use crate::source::settle;
use crate::store::{LayerUse, Listed, Store};
use crate::unpack::Ownership;

/// The media types of manifests and indexes, the OCI's and Docker's.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";
/// The overhead of a small compressed layer: headers and the framing of its compression.
const SLACK: u64 = 1 << 20;
const DENIED: &str = "it does not give that to everybody; name a credential with --credential";

/// Pulls an image.
///
/// # Errors
/// When the registry does not have the image, refuses it, or sends something else, or the store cannot be written.
pub fn pull(
    store: &Store,
    outside: &dyn Connect,
    request: &PullRequest<'_>,
    report: &mut dyn FnMut(PullProgress),
) -> Result<Listed, Error> {
    crate::store::sweep(store)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| crate::store::failed(store.directory(), source))?;
    tokio::task::LocalSet::new().block_on(&runtime, Pull::new(store, outside, request)?.run(report))
}

struct Pull<'a> {
    store: &'a Store,
    client: Client<'a>,
    request: &'a PullRequest<'a>,
    served: Served<'a>,
    transport: Transport,
    authorization: Option<HeaderValue>,
}

impl<'a> Pull<'a> {
    fn new(store: &'a Store, outside: &'a dyn Connect, request: &'a PullRequest<'a>) -> Result<Self, Error> {
        let Some(registry) = request.reference.registry() else {
            let why = "it names no registry, and there is no default one";
            return Err(Error::Reference { name: request.reference.to_string(), why });
        };
        let served = Served::of(registry, request.reference.repository());
        let host = registry.split(':').next().unwrap_or_default();
        let transport = if auth::is_this_machine(host) { Transport::Plain } else { request.transport };
        Ok(Self { store, client: Client::new(outside), request, served, transport, authorization: None })
    }

    async fn run(mut self, report: &mut dyn FnMut(PullProgress)) -> Result<Listed, Error> {
        let (digest, Configured { manifest, octets, config }) = self.image().await?;
        let ownership = self.request.owners.of(&config.command.user, &octets);
        let expected = &config.layers;
        let mut uses: Vec<Option<LayerUse>> = Vec::new();
        for digest in expected {
            uses.push(self.store.known_layer(digest, ownership)?);
        }
        let missing = || uses.iter().zip(&manifest.layers).filter(|(known, _)| known.is_none());
        report(PullProgress::Begun {
            layers: missing().count(),
            octets: missing().map(|(_, blob)| blob.size).fold(0, u64::saturating_add),
        });
        let mut layers = Vec::new();
        for ((known, digest), blob) in uses.into_iter().zip(expected).zip(&manifest.layers) {
            layers.push(match known {
                Some(known) => known,
                None => self.layer(digest, blob, ownership, report).await?,
            });
        }
        let names = vec![self.request.reference.name()];
        let listed =
            self.store.add(&[settle(self.store, config, layers, names, Some(digest), ownership)?])?;
        listed.into_iter().next().ok_or_else(|| malformed("manifest", "it became no image"))
    }

    /// Downloads and unpacks a layer, unless the store has it by now: an image may list a layer twice.
    async fn layer(
        &mut self,
        digest: &Digest,
        descriptor: &Descriptor,
        ownership: Ownership,
        report: &mut dyn FnMut(PullProgress),
    ) -> Result<LayerUse, Error> {
        if let Some(known) = self.store.known_layer(digest, ownership)? {
            report(PullProgress::Received(descriptor.size));
            report(PullProgress::Unpacked);
            return Ok(known);
        }
        let download = self.begin(descriptor, &mut || report(PullProgress::Waiting)).await?;
        report(PullProgress::Received(download.length()));
        // Another pull may have finished it meanwhile.
        if let Some(known) = self.store.known_layer(digest, ownership)? {
            download.forget();
            report(PullProgress::Unpacked);
            return Ok(known);
        }
        let blob = self.blob(download, descriptor, report).await?;
        let layer = self.store.add_layer(Some(digest), blob.file(), self.request.bounds, ownership)?;
        report(PullProgress::Unpacked);
        Ok(layer)
    }

    /// Begins or resumes a download. If another process works on it, calls `waiting`.
    async fn begin<'b>(
        &self,
        descriptor: &'b Descriptor,
        waiting: &mut dyn FnMut(),
    ) -> Result<Download<'b>, Error> {
        // A compressed layer is hardly larger than its content.
        let most = self.request.bounds.octets.saturating_add(self.request.bounds.octets / 64 + SLACK);
        if descriptor.size > most {
            let source = UnpackError::TooLarge { bound: self.request.bounds.octets, unit: OCTETS };
            return Err(Error::Unpack { layer: descriptor.digest.short().to_owned(), source });
        }
        Download::begin(self.store.blob(&descriptor.digest), descriptor, waiting).await
    }

    async fn blob(
        &mut self,
        mut download: Download<'_>,
        descriptor: &Descriptor,
        report: &mut dyn FnMut(PullProgress),
    ) -> Result<Blob, Error> {
        let url = self.url(&format!("blobs/{}", descriptor.digest))?;
        let mut received = |octets| report(PullProgress::Received(octets));
        let mut renewed = false;
        loop {
            let authorization = self.authorization.clone();
            match download.go_on(&self.client, &url, authorization, &mut received).await? {
                Next::Whole if download.is_begun_anew()? => {}
                Next::Whole => return download.finish(),
                // A token lasts a few minutes, and a layer may take longer.
                Next::Denied(answer) if !renewed => {
                    self.authorize(&url, &answer).await?;
                    renewed = true;
                }
                Next::Denied(answer) => return Err(self.refusal(&url, &answer)),
                Next::Advanced => renewed = false,
            }
        }
    }

    /// Gets the `Authorization` for the registry's challenge.
    async fn authorize(&mut self, url: &Url, denied: &Answer) -> Result<(), Error> {
        let (login, repository) = (self.request.login.as_ref(), &self.served.repository);
        let told = auth::answer(&self.client, url, denied, repository, login, self.request.transport).await?;
        self.authorization = Some(told);
        Ok(())
    }

    /// Fetches the manifest and the configuration for this machine, and returns them with the digest to which the reference resolves.
    async fn image(&mut self) -> Result<(Digest, Configured), Error> {
        let reference = self.request.reference;
        let octets = self.fetch(&format!("manifests/{}", reference.wanted()), MANIFESTS).await?;
        let named = Digest::of(&octets);
        if let Some(expected) = reference.digest() {
            verify("the manifest", expected, &named)?;
        }
        let index = match Document::parse(&octets)? {
            Document::Manifest(manifest) => {
                return Ok((named, self.configured(manifest.of_image()?).await?));
            }
            Document::Index(index) => index,
        };
        let mut search = Search::of(&index)?;
        loop {
            let (chosen, depth) = search.next()?;
            let octets = self.fetch(&format!("manifests/{}", chosen.digest), MANIFESTS).await?;
            verify("the manifest", &chosen.digest, &Digest::of(&octets))?;
            if let Some(manifest) = search.go_on(Document::parse(&octets)?, depth)?
                && let Some(image) = search.unless_elsewhere(self.configured(manifest).await)?
            {
                return Ok((named, image));
            }
        }
    }

    /// Fetches the configuration of a manifest.
    async fn configured(&mut self, manifest: Manifest) -> Result<Configured, Error> {
        let digest = &manifest.config.digest;
        let octets = self.fetch(&format!("blobs/{digest}"), "*/*").await?;
        verify("the configuration", digest, &Digest::of(&octets))?;
        Configured::parse(manifest, octets)
    }

    /// Fetches a small document. Authenticates once if the registry demands it, and retries while it is busy.
    async fn fetch(&mut self, what: &str, accept: &'static str) -> Result<Vec<u8>, Error> {
        let url = self.url(what)?;
        let mut told = false;
        let mut pause = Pause::default();
        loop {
            let authorization = self.authorization.clone();
            let ask = Ask { url: url.clone(), accept, authorization, from: 0 };
            let answer = match self.client.get(&ask).await {
                Err(Stopped::Broken(error)) => {
                    pause.or_give_up(None, error).await?;
                    continue;
                }
                answer => answer?,
            };
            match answer.status {
                StatusCode::OK => {
                    let place = answer.place(&url).clone();
                    match answer.read(LARGEST).await {
                        Ok(octets) => return Ok(octets),
                        // A document that is too large stays too large.
                        Err(source) if source.kind() == std::io::ErrorKind::FileTooLarge => {
                            return Err(failed(&place, source));
                        }
                        Err(source) => pause.or_give_up(None, failed(&place, source)).await?,
                    }
                }
                StatusCode::UNAUTHORIZED if !told => {
                    self.authorize(&url, &answer).await?;
                    told = true;
                }
                status if is_busy(status) => {
                    pause.or_give_up(answer.retry_after(), answer.refusal(&url)).await?;
                }
                _ => return Err(self.refusal(&url, &answer)),
            }
        }
    }

    /// Returns the error for a permanent refusal. Of another host's, a credential for the registry would change nothing.
    fn refusal(&self, url: &Url, answer: &Answer) -> Error {
        let why = match (&answer.other, answer.status) {
            (None, StatusCode::NOT_FOUND) => "it has no such image",
            (None, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) if self.request.login.is_some() => {
                "it refuses the credential, or does not give that to its owner"
            }
            (None, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => DENIED,
            _ => return answer.refusal(url),
        };
        refused(url, why)
    }

    /// Returns an address in the repository. Its parts have been parsed, so nothing in it can lead elsewhere.
    fn url(&self, what: &str) -> Result<Url, Error> {
        let target = format!("/v2/{}/{what}", self.served.repository);
        let why = "its registry is no host";
        Url::of(self.served.registry, self.transport, target)
            .ok_or_else(|| Error::Reference { name: self.request.reference.to_string(), why })
    }
}

fn verify(what: &str, expected: &Digest, found: &Digest) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    Err(Error::Digest { what: what.into(), expected: expected.to_string(), found: found.to_string() })
}
