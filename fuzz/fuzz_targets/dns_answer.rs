//! cargo-fuzz calls `targets::dns_answer` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::dns_answer(input));
