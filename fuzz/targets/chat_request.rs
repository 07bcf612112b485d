//! See `chat_request` in `fuzz/src/lib.rs`.
#![no_main]

weightloom_fuzz::fuzz!("chat_request");
