//! The two system-call filters, compiled when this crate is built from `profiles/seccomp`.

include!(concat!(env!("OUT_DIR"), "/seccomp.rs"));
