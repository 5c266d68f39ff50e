//! cargo-fuzz calls `targets::template` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::template(input));
