//! See `report` in `fuzz/src/judging.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    weightloom_fuzz::judging::report(input);
});
