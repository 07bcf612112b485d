//! See `model_config` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("model_config");
