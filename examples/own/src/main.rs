//! The program.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    weightloom::app(own::registry()).name("own").version(env!("CARGO_PKG_VERSION")).main()
}
