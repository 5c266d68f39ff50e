//! cargo-fuzz calls `targets::image` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::image(input));
