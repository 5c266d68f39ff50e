//! Every test of pulling in one program: a module a matter. This file adds nothing.

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
