//! cargo-fuzz calls `targets::policy_config` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::policy_config(input));
