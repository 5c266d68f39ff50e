//! cargo-fuzz calls `targets::response` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::response(input));
