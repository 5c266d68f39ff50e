//! cargo-fuzz calls `targets::line` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::line(input));
