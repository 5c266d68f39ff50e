//! Hand-made layers: a few files in a tar archive, compressed as in registries.

use std::fmt;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use aws_lc_rs::digest::SHA256;
use data_encoding::HEXLOWER;

/// The compression of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    /// None.
    Plain,
    /// Gzip, as in nearly all layers.
    Gzip,
    /// Zstandard, by the program `zstd`.
    Zstd,
}

/// Octets and their digest.
#[derive(Clone)]
pub struct Blob {
    /// The octets.
    pub octets: Vec<u8>,
    /// `sha256:…`
    pub digest: String,
}

/// A layer as it is transferred.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The transferred blob.
    pub blob: Blob,
    /// The digest of the uncompressed archive.
    pub plain: String,
    /// The compression.
    pub packed: Packed,
}

/// Returns the digest of octets.
#[must_use]
pub fn digest(octets: &[u8]) -> String {
    format!("sha256:{}", HEXLOWER.encode(aws_lc_rs::digest::digest(&SHA256, octets).as_ref()))
}

impl Blob {
    /// Returns a blob of these octets.
    #[must_use]
    pub fn new(octets: Vec<u8>) -> Self {
        Self { digest: digest(&octets), octets }
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({} octets)", self.digest, self.octets.len())
    }
}

impl Layer {
    /// Makes a layer of small files.
    ///
    /// # Panics
    /// When it cannot be compressed.
    #[must_use]
    pub fn files(files: &[(&str, &str)], packed: Packed) -> Self {
        let entries = files.iter().map(|(name, content)| (*name, content.as_bytes().to_vec()));
        Self::archive(archive(entries), packed)
    }

    /// Makes a layer of one incompressible file of this size, different with every `seed`.
    ///
    /// # Panics
    /// When it cannot be compressed.
    #[must_use]
    pub fn noise(seed: u64, octets: usize) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        };
        let content: Vec<u8> = (0..octets.div_ceil(8)).flat_map(|_| next()).take(octets).collect();
        Self::archive(archive([("noise", content)]), Packed::Plain)
    }

    /// Makes a layer of a whole archive.
    ///
    /// # Panics
    /// When it cannot be compressed.
    #[must_use]
    pub fn archive(archive: Vec<u8>, packed: Packed) -> Self {
        let plain = digest(&archive);
        let octets = match packed {
            Packed::Plain => archive,
            Packed::Gzip => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gzip.write_all(&archive).expect("memory takes it");
                gzip.finish().expect("memory takes it")
            }
            Packed::Zstd => zstd(archive),
        };
        Self { blob: Blob::new(octets), plain, packed }
    }

    /// Returns the OCI media type.
    pub(crate) fn media_type(&self) -> &'static str {
        match self.packed {
            Packed::Plain => "application/vnd.oci.image.layer.v1.tar",
            Packed::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            Packed::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
        }
    }
}

fn archive<'a>(files: impl IntoIterator<Item = (&'a str, Vec<u8>)>) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        archive.append_data(&mut header, name, &content[..]).expect("memory takes it");
    }
    archive.into_inner().expect("memory takes it")
}

fn zstd(archive: Vec<u8>) -> Vec<u8> {
    let mut command = Command::new("zstd");
    command.args(["-q", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("`ready` was asked for zstd first");
    let mut stdin = child.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || stdin.write_all(&archive));
    let mut packed = Vec::new();
    child.stdout.take().expect("it is piped").read_to_end(&mut packed).expect("its output");
    assert!(child.wait().is_ok_and(|status| status.success()), "zstd failed");
    writer.join().expect("it does not panic").expect("its input");
    packed
}
