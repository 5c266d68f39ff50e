//! cargo-fuzz calls `targets::meter` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::meter(input));
