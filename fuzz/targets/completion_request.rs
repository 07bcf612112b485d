//! See `completion_request` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("completion_request");
