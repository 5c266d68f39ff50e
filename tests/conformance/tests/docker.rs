//! Every promise again for the backend `docker`: the same modules in a program named after the backend. S4.8

#[path = "all.rs"]
mod all;
