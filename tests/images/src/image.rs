//! Hand-made images of hand-made layers: a configuration and a manifest each, and indexes of several.

use serde_json::{Value, json};

use crate::layer::{Blob, Layer};

/// The media types of the OCI.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// An image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its configuration.
    pub config: Blob,
    /// Its layers, bottom first.
    pub layers: Vec<Layer>,
    /// Its manifest.
    pub manifest: Blob,
}

impl Image {
    /// Makes an image of these layers, bottom first, for this machine.
    #[must_use]
    pub fn new(layers: &[Layer]) -> Self {
        Self::of_machine("amd64", layers)
    }

    /// Makes an image for another architecture.
    #[must_use]
    pub fn of_machine(architecture: &str, layers: &[Layer]) -> Self {
        let plain: Vec<&str> = layers.iter().map(|layer| layer.plain.as_str()).collect();
        Self::configured(
            &json!({
                "architecture": architecture,
                "os": "linux",
                "config": { "Env": ["PATH=/bin"] },
                "rootfs": { "type": "layers", "diff_ids": plain },
            }),
            layers,
        )
    }

    /// Makes an image with an arbitrary configuration.
    #[must_use]
    pub fn configured(config: &Value, layers: &[Layer]) -> Self {
        let config = Blob::new(config.to_string().into_bytes());
        let descriptors: Vec<Value> =
            layers.iter().map(|layer| descriptor(layer.media_type(), &layer.blob)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": descriptors,
        });
        Self { config, layers: layers.to_vec(), manifest: Blob::new(manifest.to_string().into_bytes()) }
    }

    /// Replaces the manifest by what `change` makes of it.
    ///
    /// # Panics
    /// Never: the manifest is JSON.
    #[must_use]
    pub fn with_manifest(mut self, change: impl FnOnce(&mut Value)) -> Self {
        let mut manifest = serde_json::from_slice(&self.manifest.octets).expect("it was made of JSON");
        change(&mut manifest);
        self.manifest = Blob::new(manifest.to_string().into_bytes());
        self
    }

    /// Gives the parts Docker's media types.
    #[must_use]
    pub fn as_docker(self) -> Self {
        self.with_manifest(|manifest| {
            manifest["mediaType"] = json!("application/vnd.docker.distribution.manifest.v2+json");
            manifest["config"]["mediaType"] = json!("application/vnd.docker.container.image.v1+json");
            for layer in manifest["layers"].as_array_mut().into_iter().flatten() {
                layer["mediaType"] = json!("application/vnd.docker.image.rootfs.diff.tar.gzip");
            }
        })
    }

    /// Returns its blobs, which a registry must have before the manifest.
    pub fn blobs(&self) -> impl Iterator<Item = &Blob> {
        self.layers.iter().map(|layer| &layer.blob).chain([&self.config])
    }
}

/// Makes an index of images, each for an architecture.
#[must_use]
pub fn index(images: &[(&str, &Image)]) -> Blob {
    let entry = |(architecture, image): &(&str, &Image)| {
        let mut entry = descriptor(MANIFEST, &image.manifest);
        entry["platform"] = json!({ "os": "linux", "architecture": architecture });
        entry
    };
    let manifests: Vec<Value> = images.iter().map(entry).collect();
    Blob::new(
        json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }).to_string().into_bytes(),
    )
}

fn descriptor(media_type: &str, blob: &Blob) -> Value {
    json!({ "mediaType": media_type, "digest": blob.digest, "size": blob.octets.len() })
}
