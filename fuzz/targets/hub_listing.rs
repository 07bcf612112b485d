//! See `hub_listing` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("hub_listing");
