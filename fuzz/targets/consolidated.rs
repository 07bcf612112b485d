//! See `consolidated` in `crates/checkpoint/tests/probe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = shardloom_fuzz::probe::consolidated(input);
});
