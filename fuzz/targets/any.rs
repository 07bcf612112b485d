//! The target that `WEIGHTLOOM_FUZZ` names: one binary for machines that cannot compile.
#![no_main]

weightloom_fuzz::fuzz!(&weightloom_fuzz::named_by_environment());
