//! See `dcp_value` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("dcp_value");
