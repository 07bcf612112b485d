//! The `weightloom` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weightloom::cli::run(std::env::args_os())
}
