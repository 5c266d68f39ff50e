//! Imports archives of `docker save`, where one document lists each image's configuration and layers.

use super::{Overrides, Parts, settle};
use crate::config::ImageConfig;
use crate::error::Error;
use crate::manifest::{MOST_LAYERS, SavedImage, parse};
use crate::reference::Reference;
use crate::store::{Listed, Store};

pub(super) const MANIFEST: &str = "manifest.json";
/// How many images an archive may hold.
const MOST_IMAGES: usize = 64;

/// Whether the document is a list of images: a root file system may have a file with its name.
pub(super) fn is_list(parts: &Parts) -> bool {
    parts.read(MANIFEST).is_ok_and(|octets| octets.trim_ascii_start().starts_with(b"["))
}

pub(super) fn import(store: &Store, parts: &Parts, overrides: &Overrides) -> Result<Vec<Listed>, Error> {
    let form = |why: &str| Error::Form { path: parts.path().into(), why: why.into() };
    let images: Vec<SavedImage> = parse("list of images", &parts.read(MANIFEST)?)?;
    if images.is_empty() || images.len() > MOST_IMAGES {
        return Err(form("it holds no image, or more than 64"));
    }
    if images.len() > 1 && overrides.name.is_some() {
        return Err(form("it holds several images, and one name was given"));
    }
    let mut listed = Vec::new();
    for image in images {
        let config = parts.read(&image.config)?;
        let parsed = ImageConfig::parse(&config)?;
        let ownership = overrides.owners.of(&parsed.command.user, &config);
        let expected = parsed.layers;
        if expected.len() != image.layers.len() || image.layers.len() > MOST_LAYERS {
            return Err(form("an image of it has not the layers that its configuration names"));
        }
        let mut layers = Vec::new();
        for (digest, name) in expected.iter().zip(&image.layers) {
            layers.push(match store.known_layer(digest, ownership)? {
                Some(known) => known,
                None => store.add_layer(Some(digest), parts.open(name)?, overrides.bounds, ownership)?,
            });
        }
        let tags = image.repo_tags.unwrap_or_default();
        let names = match &overrides.name {
            Some(name) => vec![name.name()],
            None => tags.iter().map(|t| t.parse().map(|r: Reference| r.name())).collect::<Result<_, _>>()?,
        };
        listed.extend(settle(store, &config, layers, &names, None, ownership)?);
    }
    Ok(listed)
}
