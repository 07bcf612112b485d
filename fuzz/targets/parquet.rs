//! See `parquet` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("parquet");
