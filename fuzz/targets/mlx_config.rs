//! See `mlx_config` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("mlx_config");
