//! Imports OCI layouts: an index refers to manifests, and those to a configuration and layers, each by its digest.

use super::{Overrides, Parts, settle};
use crate::config::ImageConfig;
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::{Descriptor, Document, Index, Manifest, malformed, parse};
use crate::reference::Reference;
use crate::store::{Listed, Store};

pub(super) const INDEX: &str = "index.json";
/// How deep indexes may be nested.
const DEEPEST: u32 = 4;
/// The annotations with an image's name: containerd's full name, and the specification's, which may be a tag only.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

pub(super) fn import(store: &Store, parts: &Parts, overrides: &Overrides) -> Result<Vec<Listed>, Error> {
    let index: Index = parse("index", &parts.read(INDEX)?)?;
    let chosen = index.here()?;
    let named = NAMES.iter().filter_map(|key| chosen.annotations.get(*key));
    let named = named
        .filter(|text| text.contains([':', '/']))
        .filter_map(|text| text.parse::<Reference>().ok())
        .map(|r| r.name())
        .next();
    let names = overrides.name.as_ref().map(Reference::name).or(named).into_iter().collect();
    let manifest = manifest(parts, chosen)?;
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

fn manifest(parts: &Parts, descriptor: &Descriptor) -> Result<Manifest, Error> {
    let mut descriptor = descriptor.clone();
    for _ in 0..DEEPEST {
        match Document::parse(&verified(parts, &descriptor)?)? {
            Document::Manifest(manifest) => return Ok(manifest),
            Document::Index(index) => descriptor = index.here()?.clone(),
        }
    }
    Err(malformed("index", "too many indexes lead to one another"))
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
