//! See `dcp_metadata` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("dcp_metadata");
