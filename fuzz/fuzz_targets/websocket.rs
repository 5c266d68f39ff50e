//! cargo-fuzz calls `targets::websocket` from here.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| targets::websocket(input));
