//! Every test of pulling in one program, one module per subject.

mod blobs;
mod broken;
mod credentials;
mod documents;
mod links;
mod proxies;
mod pulled;
mod redirects;
mod retries;
mod shared;
mod tls;
mod tokens;
