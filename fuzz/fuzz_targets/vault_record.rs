//! cargo-fuzz calls `targets::vault_record` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::vault_record(input));
