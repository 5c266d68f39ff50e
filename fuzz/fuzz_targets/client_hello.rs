//! cargo-fuzz calls `targets::client_hello` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::client_hello(input));
