//! The `weightloom` command.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weightloom::app(weightloom::Registry::standard()).main()
}
