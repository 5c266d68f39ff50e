//! cargo-fuzz calls `targets::http2` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::http2(input));
