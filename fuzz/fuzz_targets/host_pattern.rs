//! cargo-fuzz calls `targets::host_pattern` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::host_pattern(input));
