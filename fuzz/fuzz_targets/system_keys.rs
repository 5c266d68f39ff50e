//! cargo-fuzz calls `targets::system_keys` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::system_keys(input));
