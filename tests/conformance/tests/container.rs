//! Every promise again for the backend `container`: the same modules in a program named after the backend.

#[path = "all.rs"]
mod all;
