//! See `chat_template` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("chat_template");
