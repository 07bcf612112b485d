//! See `folder_index` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("folder_index");
