//! See `completion` in `fuzz/src/requests.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    weightloom_fuzz::requests::completion(input);
});
