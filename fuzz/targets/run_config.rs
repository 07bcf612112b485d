//! See `run_config` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("run_config");
