//! Files a sidecar reads, opened or read before it is shut in.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use crate::resolve::Answers;

/// Files a sidecar reads, opened or read before it is shut in.
#[derive(Debug, Default)]
pub struct Files {
    resolv_conf: Vec<u8>,
    hosts: Vec<u8>,
    bundle: Option<File>,
}

/// Where a bundle of certification authorities may lie, most usual first.
const BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

impl Files {
    /// Reads the resolver's configuration and opens the bundle. `bundle` is what `SSL_CERT_FILE` names, if it is set.
    #[must_use]
    pub fn open(bundle: Option<&str>) -> Self {
        let bundle = bundle.into_iter().chain(BUNDLES.iter().copied()).find_map(|path| File::open(path).ok());
        Self {
            resolv_conf: std::fs::read("/etc/resolv.conf").unwrap_or_default(),
            hosts: std::fs::read("/etc/hosts").unwrap_or_default(),
            bundle,
        }
    }

    /// The same, with another bundle.
    #[must_use]
    pub fn trusting(self, bundle: File) -> Self {
        Self { bundle: Some(bundle), ..self }
    }

    /// The bundle, to be read where another process is to trust it.
    #[must_use]
    pub fn into_bundle(self) -> Option<File> {
        self.bundle
    }

    /// What names are resolved by, and the bundle.
    pub(crate) fn into_parts(self) -> (Answers, Option<File>) {
        (Answers::system(self.resolv_conf, self.hosts), self.bundle)
    }

    /// The descriptor that must stay open in the sidecar.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bundle.as_ref().map(AsFd::as_fd)
    }
}
