//! cargo-fuzz calls `targets::audit_verify` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::audit_verify(input));
