//! cargo-fuzz calls `targets::target` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::target(input));
