//! See `tokenizer` in `crates/hub/tests/it/probe.rs`.
#![no_main]

// The hook of libFuzzer aborts at panics that the hub turns into errors. Others
// still end the run.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |input: &[u8]| {
    weightloom_fuzz::hub_probe::tokenizer(input);
});
