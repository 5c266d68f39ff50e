//! Every promise once more, by the backend `docker` at Podman's service: the same modules, in a program whose name says so.

#[path = "all.rs"]
mod all;
