//! cargo-fuzz calls `targets::forward` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::forward(input));
