//! See `dcp_items` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("dcp_items");
