//! Facts on which the side of the traffic and the side of isolation must agree, though neither knows the other.

/// The port of the gateway inside (S0.15).
pub const GATEWAY_PORT: u16 = 8080;
/// The port of the explicit proxy inside (S0.15).
pub const FORWARD_PORT: u16 = 8081;
/// The name of the sidecar inside (S0.15).
pub const SIDECAR_NAME: &str = "sidecar";
/// The host name of a sandbox, which inside leads to its own loopback.
pub const SANDBOX_NAME: &str = "lockgate";

/// Returns the URL of a plane inside, by its port. It is one of the first two above.
#[must_use]
pub fn plane_url(port: u16) -> String {
    format!("http://{SIDECAR_NAME}:{port}")
}

/// The port of DNS.
pub const DNS_PORT: u16 = 53;
/// The port to which everything inside is redirected, and which no program asks for. (S2's 9999 belongs to the literal wiring, and
/// one of the agent's programs may want it.)
pub const TRANSPARENT_PORT: u16 = 41_999;

/// Where systems keep their bundle of certification authorities, most common first.
pub const CA_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
