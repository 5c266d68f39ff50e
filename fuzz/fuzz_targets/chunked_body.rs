//! cargo-fuzz calls `targets::chunked_body` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::chunked_body(input));
