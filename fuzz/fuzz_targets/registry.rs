//! cargo-fuzz calls `targets::registry` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::registry(input));
