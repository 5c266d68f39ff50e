//! The environment variables that hold secrets for this program alone.

use std::ffi::CStr;

/// The key, or keys, that encrypt the vault.
pub(crate) const CONNECTION_ENCRYPTION_KEY: &CStr = c"CONNECTION_ENCRYPTION_KEY";
/// The proxy on the way out, with its user and password.
pub(crate) const PROXY_URL: &CStr = c"PROXY_URL";
/// The platform's own keys for models.
const SYSTEM_PROVIDER_KEYS: &CStr = c"SYSTEM_PROVIDER_KEYS";
/// Proxies that the platform declares, with their users and passwords.
pub(crate) const SYSTEM_PROXIES: &CStr = c"SYSTEM_PROXIES";

/// By what right a sidecar asks its platform, and the secret by which it may be told of one (S1.12). Only `lockgate sidecar` reads them.
const RUN_TOKEN: &CStr = c"RUN_TOKEN";
const CONFIG_SECRET: &CStr = c"CONFIG_SECRET";

/// Whether a variable is one of them, which no command gets.
#[must_use]
pub fn is_own_secret(name: &str) -> bool {
    OWN_SECRETS.iter().any(|own| own.to_bytes() == name.as_bytes())
}

/// All of them.
pub(crate) const OWN_SECRETS: [&CStr; 6] =
    [CONNECTION_ENCRYPTION_KEY, PROXY_URL, SYSTEM_PROVIDER_KEYS, SYSTEM_PROXIES, RUN_TOKEN, CONFIG_SECRET];
