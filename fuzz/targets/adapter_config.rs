//! See `adapter_config` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("adapter_config");
