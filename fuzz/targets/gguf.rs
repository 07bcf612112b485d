//! See `gguf` in `crates/checkpoint/tests/probe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = weightloom_fuzz::probe::gguf(input);
});
