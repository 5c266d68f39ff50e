//! cargo-fuzz calls `targets::request_head` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::request_head(input));
