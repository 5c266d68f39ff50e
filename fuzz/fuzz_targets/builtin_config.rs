//! cargo-fuzz calls `targets::builtin_config` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::builtin_config(input));
