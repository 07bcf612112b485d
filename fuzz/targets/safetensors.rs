//! See `safetensors` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("safetensors");
