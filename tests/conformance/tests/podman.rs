//! Every promise again for the backend `docker` at Podman's service: the same modules in a program named after it.

#[path = "all.rs"]
mod all;
