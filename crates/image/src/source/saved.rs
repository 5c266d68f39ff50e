//! Imports archives of `docker save`, where one document lists each image's configuration and layers.

use std::collections::HashMap;

use super::{Overrides, Parts, settle};
use crate::config::ImageConfig;
use crate::error::Error;
use crate::manifest::{MOST_LAYERS, SavedImage, parse};
use crate::reference::Reference;
use crate::store::{LayerUse, Listed, Store};

pub(super) const MANIFEST: &str = "manifest.json";
/// How many images an archive may hold.
const MOST_IMAGES: usize = 64;

/// Whether the document is a list of images: a root file system may have a file with its name.
pub(super) fn is_list(parts: &Parts) -> bool {
    parts.read(MANIFEST).is_ok_and(|octets| octets.trim_ascii_start().starts_with(b"["))
}

pub(super) fn import(store: &Store, parts: &Parts, overrides: &Overrides) -> Result<Vec<Listed>, Error> {
    let form = |why: &str| Error::Form { path: parts.path().into(), why: why.into() };
    overrides.refuse_config(parts.path())?;
    let images: Vec<SavedImage> = parse("list of images", &parts.read(MANIFEST)?)?;
    if images.is_empty() || images.len() > MOST_IMAGES {
        return Err(form("it holds no image, or more than 64"));
    }
    if images.len() > 1 && overrides.name.is_some() {
        return Err(form("it holds several images, and one name was given"));
    }
    // Every image is looked at before a layer is unpacked, and every layer is unpacked before a name changes.
    let mut checked = Vec::new();
    for image in images {
        let octets = parts.read(&image.config)?;
        let config = ImageConfig::parse(&octets)?;
        if config.layers.len() != image.layers.len() || image.layers.len() > MOST_LAYERS {
            return Err(form("an image of it has not the layers that its configuration names"));
        }
        overrides.check_digest(&[&config.digest])?;
        let ownership = overrides.owners.of(&config.command.user, &octets);
        let tags = image.repo_tags.unwrap_or_default();
        let names = match &overrides.name {
            Some(name) => vec![name.name()],
            None => {
                let tags = tags.iter().map(|tag| tag.parse::<Reference>()).collect::<Result<Vec<_>, _>>()?;
                // That a digest is its own, nothing here tells.
                tags.iter().filter(|tag| tag.tag().is_some()).map(Reference::name).collect()
            }
        };
        checked.push((config, image.layers, names, ownership));
    }
    let (mut unpacked, mut additions) = (HashMap::new(), Vec::new());
    for (config, files, names, ownership) in checked {
        let mut layers: Vec<LayerUse> = Vec::new();
        for (digest, file) in config.layers.iter().zip(&files) {
            let tree = store.tree(digest, ownership);
            let layer = match unpacked.get(&tree).cloned() {
                Some(known) => known,
                None => match store.known_layer(digest, ownership)? {
                    Some(known) => known,
                    None => store.add_layer(Some(digest), parts.open(file)?, overrides.bounds, ownership)?,
                },
            };
            unpacked.insert(tree, layer.clone());
            layers.push(layer);
        }
        additions.push(settle(store, config, layers, names, None, ownership)?);
    }
    store.add(&additions)
}
