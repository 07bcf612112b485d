//! See `npy_header` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("npy_header");
