//! Imports OCI layouts: an index refers to manifests, and those to a configuration and layers, each by its digest.

use super::{Overrides, Parts, settle};
use crate::config::Configured;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{Descriptor, Document, Index, Manifest, malformed};
use crate::reference::Reference;
use crate::search::Search;
use crate::store::{Listed, Store};

pub(super) const INDEX: &str = "index.json";
/// The annotations with an image's name: containerd's full name, and the specification's, which may be a tag only.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

pub(super) fn import(store: &Store, parts: &Parts, overrides: &Overrides) -> Result<Vec<Listed>, Error> {
    let Document::Index(index) = Document::parse(&parts.read(INDEX)?)? else {
        return Err(malformed("index", "it is a manifest"));
    };
    overrides.refuse_config(parts.path())?;
    let (chosen, own, image) = image(parts, &index)?;
    let Configured { manifest, octets, config } = image;
    overrides.check_digest(&[&chosen.digest, &own, &config.digest])?;
    let named = NAMES.iter().filter_map(|key| chosen.annotations.get(*key));
    let named = named
        .filter(|text| text.contains([':', '/']))
        .filter_map(|text| text.parse::<Reference>().ok())
        .filter(|r| r.digest().is_none_or(|digest| *digest == chosen.digest))
        .map(|r| r.name())
        .next();
    let names = overrides.name.as_ref().map(Reference::name).or(named).into_iter().collect();
    let ownership = overrides.owners.of(&config.command.user, &octets);
    let mut layers = Vec::new();
    for (digest, blob) in config.layers.iter().zip(&manifest.layers) {
        layers.push(match store.known_layer(digest, ownership)? {
            Some(known) => known,
            None => {
                let archive = parts.open(&blob_path(&blob.digest))?;
                store.add_layer(Some(digest), archive, overrides.bounds, ownership)?
            }
        });
    }
    let manifest = Some(chosen.digest.clone());
    store.add(&[settle(store, config, layers, names, manifest, ownership)?])
}

/// Returns the image for this machine, the digest of its manifest, and before them the descriptor in the layout's own index that leads
/// there.
fn image(parts: &Parts, index: &Index) -> Result<(Descriptor, Digest, Configured), Error> {
    let mut search = Search::of(index)?;
    let mut chosen = None;
    loop {
        let (descriptor, depth) = search.next()?;
        let document = Document::parse(&verified(parts, &descriptor)?)?;
        let own = descriptor.digest.clone();
        let first = if depth == 1 { descriptor } else { chosen.take().unwrap_or(descriptor) };
        if let Some(manifest) = search.go_on(document, depth)?
            && let Some(image) = search.unless_elsewhere(configured(parts, manifest))?
        {
            return Ok((first, own, image));
        }
        chosen = Some(first);
    }
}

fn configured(parts: &Parts, manifest: Manifest) -> Result<Configured, Error> {
    let octets = verified(parts, &manifest.config)?;
    Configured::parse(manifest, octets)
}

/// Reads a document and verifies its digest.
fn verified(parts: &Parts, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
    let octets = parts.read(&blob_path(&descriptor.digest))?;
    let found = Digest::of(&octets);
    if found == descriptor.digest {
        return Ok(octets);
    }
    let (expected, found) = (descriptor.digest.to_string(), found.to_string());
    Err(Error::Digest { what: "a document of the layout".into(), expected, found })
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}
