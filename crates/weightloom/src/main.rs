//! The `weightloom` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    weightloom::cli::run(std::env::args_os())
}
