//! See `peft_config` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("peft_config");
