//! cargo-fuzz calls `targets::scrub` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::scrub(input));
