//! cargo-fuzz calls `targets::proxy_answer` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::proxy_answer(input));
