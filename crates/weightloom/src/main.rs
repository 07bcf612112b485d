//! The `weightloom` command.
//!
//! Exit codes: 0 success, 1 a check failed, 2 user error, 3 operational
//! failure.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
