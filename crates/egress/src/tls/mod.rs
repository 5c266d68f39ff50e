//! Terminates TLS: the run's own authority, its leaf certificates, and the server's side of a handshake.

mod accept;
mod authority;

use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub(crate) use accept::{Accepted, accept, is_broken_off, is_distrust, offers_no_http, why_not_accepted};
pub(crate) use authority::Leaves;
pub use authority::{AuthorityError, RunAuthority};

/// Returns the one cryptography provider, for both directions. AES-128 comes first: it is as safe here, and SHA-384, which comes with
/// AES-256, was a quarter of a handshake's cost (DESIGN §9).
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let made = PROVIDER.get_or_init(|| {
        let mut provider = aws_lc_rs::default_provider();
        let preferred = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
        provider.cipher_suites.sort_by_key(|suite| suite.suite() != preferred);
        Arc::new(provider)
    });
    Arc::clone(made)
}
