//! See `adapter_config` in `crates/hub/tests/it/probe.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    weightloom_fuzz::hub_probe::adapter_config(input);
});
