//! cargo-fuzz calls `targets::placeholder` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::placeholder(input));
