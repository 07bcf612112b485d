//! See `model_config` in `crates/models/tests/it/probe.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    weightloom_fuzz::models_probe::model_config(input);
});
