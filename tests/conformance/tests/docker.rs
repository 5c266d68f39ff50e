//! Every promise once more, by the backend `docker`: the same modules, in a program whose name says the backend. S4.8

#[path = "all.rs"]
mod all;
