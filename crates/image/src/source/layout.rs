//! Imports OCI layouts: an index refers to manifests, and those to a configuration and layers, each by its digest.

use super::{Overrides, Parts, settle};
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{Descriptor, Document, Index, Manifest, Search, malformed};
use crate::reference::Reference;
use crate::store::{Listed, Store};

pub(super) const INDEX: &str = "index.json";
/// The annotations with an image's name: containerd's full name, and the specification's, which may be a tag only.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

pub(super) fn import(store: &Store, parts: &Parts, overrides: &Overrides) -> Result<Vec<Listed>, Error> {
    let Document::Index(index) = Document::parse(&parts.read(INDEX)?)? else {
        return Err(malformed("index", "it is a manifest"));
    };
    let (chosen, manifest) = manifest(parts, &index)?;
    let named = NAMES.iter().filter_map(|key| chosen.annotations.get(*key));
    let named = named
        .filter(|text| text.contains([':', '/']))
        .filter_map(|text| text.parse::<Reference>().ok())
        .filter(|r| r.digest().is_none_or(|digest| *digest == chosen.digest))
        .map(|r| r.name())
        .next();
    let names = overrides.name.as_ref().map(Reference::name).or(named).into_iter().collect();
    let config = verified(parts, &manifest.config)?;
    let parsed = ImageConfig::parse(&config)?;
    let ownership = overrides.owners.of(&parsed.command.user, &config);
    let expected = &parsed.layers;
    if expected.len() != manifest.layers.len() {
        return Err(malformed("manifest", "it has not the layers that its configuration names"));
    }
    let mut layers = Vec::new();
    for (digest, blob) in expected.iter().zip(&manifest.layers) {
        layers.push(match store.known_layer(digest, ownership)? {
            Some(known) => known,
            None => {
                let archive = parts.open(&blob_path(&blob.digest))?;
                store.add_layer(Some(digest), archive, overrides.bounds, ownership)?
            }
        });
    }
    let manifest = Some(chosen.digest.clone());
    store.add(&[settle(store, parsed, layers, names, manifest, ownership)?])
}

/// Returns the manifest for this machine, and the descriptor in the layout's own index that leads to it.
fn manifest(parts: &Parts, index: &Index) -> Result<(Descriptor, Manifest), Error> {
    let mut search = Search::of(index)?;
    let mut chosen = None;
    loop {
        let (descriptor, depth) = search.next()?;
        let document = Document::parse(&verified(parts, &descriptor)?)?;
        let first = if depth == 1 { descriptor } else { chosen.take().unwrap_or(descriptor) };
        if let Some(manifest) = search.go_on(document, depth)? {
            return Ok((first, manifest));
        }
        chosen = Some(first);
    }
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
