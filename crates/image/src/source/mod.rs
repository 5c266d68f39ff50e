//! Imports images from files and directories into the store.
//!
//! `docker save` archives and OCI layouts (a directory, or packed into an archive) are recognised by their documents; any other
//! archive or directory is a root file system.

mod directory;
mod layout;
mod merged;
mod owners;
mod parts;
mod saved;

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use self::merged::Merged;
pub use self::owners::Owners;
use self::parts::Parts;
use crate::account::{self, Account};
use crate::config::{Command, ImageConfig};
use crate::digest::Digest;
use crate::error::Error;
use crate::manifest::malformed;
use crate::reference::Reference;
use crate::store::{Addition, ImageRecord, LayerUse, Listed, Store};
use crate::unpack::{Bounds, Ownership};

/// The options of an import.
#[derive(Clone, Debug)]
pub struct Overrides {
    /// The image's name; the source's own name if not set.
    pub name: Option<Reference>,
    /// How a root file system is run, since it has no configuration. For what has one it is refused.
    pub config: Option<Command>,
    /// How much each layer may hold.
    pub bounds: Bounds,
    /// Who owns its files.
    pub owners: Owners,
}

impl Overrides {
    /// Refuses a configuration for what has its own.
    fn refuse_config(&self, path: &Path) -> Result<(), Error> {
        if self.config.is_none() {
            return Ok(());
        }
        let why = "it has a configuration of its own; one is given to a root file system, which has none";
        Err(Error::Superfluous { path: path.into(), why, remedy: "leave out --config" })
    }

    /// Refuses an image that has none of its digests in the name that was asked for, if that has one.
    fn check_digest(&self, own: &[&Digest]) -> Result<(), Error> {
        let asked = self.name.as_ref().and_then(Reference::digest);
        let Some(expected) = asked.filter(|asked| !own.contains(asked)) else { return Ok(()) };
        let mut found: Vec<String> = own.iter().map(ToString::to_string).collect();
        found.dedup();
        let found = found.join(" or ");
        Err(Error::Digest { what: "the image".into(), expected: expected.to_string(), found })
    }
}

/// Imports every image of a file or directory.
///
/// # Errors
/// When the source cannot be read, is malformed or too large, or the store cannot be written.
pub fn import(store: &Store, source: &Path, overrides: &Overrides) -> Result<Vec<Listed>, Error> {
    if let Some(name) = overrides.name.as_ref().filter(|name| name.tag().is_none()) {
        let why = "a digest alone cannot be given to an image; name a tag";
        return Err(Error::Reference { name: name.to_string(), why });
    }
    crate::store::sweep(store)?;
    let read = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Error::NoSource { path: source.into() },
        _ => Error::Read { path: source.into(), source: error },
    };
    if std::fs::metadata(source).map_err(read)?.is_dir() {
        if !source.join("oci-layout").exists() {
            if directory::is_image_of_parts(source) {
                let why = "it is an image in the format `dir:`, which is not read; write an OCI layout instead, as with \
                           `podman save --format oci-dir`"
                    .into();
                return Err(Error::Form { path: source.into(), why });
            }
            root_name(source, overrides)?;
            let ownership = root_ownership(overrides);
            let layer = directory::import(store, source, overrides.bounds, ownership)?;
            return settle_root(store, source, layer, overrides, ownership);
        }
        let opened =
            rustix::fs::open(source, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let parts = Parts::directory(opened.map_err(|e| read(e.into()))?, source);
        return layout::import(store, &parts, overrides);
    }
    // Opening a pipe would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(source, flags, Mode::empty()).map_err(|e| read(e.into()))?);
    let form = |why: &str| Err(Error::Form { path: source.into(), why: why.into() });
    match file.metadata().map_err(read)? {
        about if !about.is_file() => return form("it is no file and no directory"),
        about if about.len() == 0 => return form("it is an empty file"),
        _ => {}
    }
    let mut parts = Parts::archive(file, source, overrides.bounds, &store.directory().join("staging"))?;
    if parts.has(saved::MANIFEST) && saved::is_list(&parts) {
        saved::import(store, &parts, overrides)
    } else if parts.has("oci-layout") && parts.has(layout::INDEX) {
        layout::import(store, &parts, overrides)
    } else if let Some(fault) = parts.fault() {
        form(&fault.to_string())
    } else {
        root_name(source, overrides)?;
        let ownership = root_ownership(overrides);
        let whole = parts.whole().map_err(read)?;
        let layer = store.add_layer(None, whole, overrides.bounds, ownership)?;
        settle_root(store, source, layer, overrides, ownership)
    }
}

/// Returns the name of a root file system, which must be given; checked before anything is unpacked.
fn root_name<'a>(source: &Path, overrides: &'a Overrides) -> Result<&'a Reference, Error> {
    let name = overrides.name.as_ref().ok_or_else(|| Error::NoName { path: source.into() })?;
    if name.digest().is_none() {
        return Ok(name);
    }
    let why = "a root file system has no digest with which that of the name could be compared";
    Err(Error::Superfluous { path: source.into(), why, remedy: "leave the digest out of the name" })
}

/// Returns who owns the files of a root file system, which has no configuration.
fn root_ownership(overrides: &Overrides) -> Ownership {
    let command = overrides.config.clone().unwrap_or_default();
    let said = serde_json::to_vec(&command).unwrap_or_default();
    overrides.owners.of(&command.user, &said)
}

/// Adds an image of one layer, run as the options say.
fn settle_root(
    store: &Store,
    source: &Path,
    layer: LayerUse,
    overrides: &Overrides,
    ownership: Ownership,
) -> Result<Vec<Listed>, Error> {
    let name = root_name(source, overrides)?;
    let given = overrides.config.clone().unwrap_or_default();
    let Command { user, environment, entrypoint, command, directory, service } = given;
    let variables: Vec<String> = environment.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let mut config = serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": { "User": user, "Env": variables, "Entrypoint": entrypoint, "Cmd": command, "WorkingDir": directory },
        "rootfs": { "type": "layers", "diff_ids": [layer.record.digest] },
    });
    if let Some(said) = config["config"].as_object_mut() {
        service.write(said);
    }
    let config = config.to_string().into_bytes();
    let config = ImageConfig::parse(&config)?;
    store.add(&[settle(store, config, vec![layer], vec![name.name()], None, ownership)?])
}

/// Makes an image ready to be added, of a configuration and layers that are in the store. `manifest` is the digest by which its registry
/// knows it.
pub(crate) fn settle(
    store: &Store,
    config: ImageConfig,
    layers: Vec<LayerUse>,
    names: Vec<String>,
    manifest: Option<Digest>,
    ownership: Ownership,
) -> Result<Addition, Error> {
    let fits = config.layers.iter().eq(layers.iter().map(|layer| &layer.record.digest));
    if !fits {
        return Err(malformed("configuration", "its layers are not those of the manifest"));
    }
    let account = find_account(store, &config, ownership)?;
    owners::settle(store, &config.layers, &account, ownership)?;
    let records = layers.iter().map(|layer| layer.record.clone()).collect();
    let record = ImageRecord::new(config.digest, records, config.command, account, ownership);
    Ok(Addition { record, names, manifest, layers })
}

/// Looks up the account of the image's command, in the `passwd` that its layers show together.
fn find_account(store: &Store, config: &ImageConfig, ownership: Ownership) -> Result<Account, Error> {
    let layers = Merged(config.layers.iter().map(|layer| store.tree(layer, ownership)).collect());
    let [passwd, group] = ["etc/passwd", "etc/group"].map(|file| {
        let octets = layers.read(file, account::LARGEST).unwrap_or_default();
        String::from_utf8_lossy(&octets).into_owned()
    });
    Account::find(&config.command.user, &passwd, &group).map_err(|why| malformed("user", why))
}

#[cfg(test)]
mod tests;
