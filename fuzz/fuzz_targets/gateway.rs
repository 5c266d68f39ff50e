//! cargo-fuzz calls `targets::gateway` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::gateway(input));
