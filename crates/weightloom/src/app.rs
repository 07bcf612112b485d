//! A program of your own, with every command.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::cli;
use crate::registry::Registry;

/// Makes a program that knows what is registered, with every command.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use weightloom::Registry;
///
/// fn main() -> ExitCode {
///     weightloom::app(Registry::standard()).name("mine").version("1.0.0").main()
/// }
/// ```
pub fn app(registry: Registry) -> App {
    App { registry, name: cli::PROGRAM, version: None }
}

/// A program: a registry, and how the program is called.
pub struct App {
    registry: Registry,
    name: &'static str,
    version: Option<&'static str>,
}

impl App {
    /// Sets the name of the program in help and messages.
    #[must_use]
    pub fn name(mut self, name: &'static str) -> Self {
        self.name = name;
        self
    }

    /// Sets the version that `--version` prints: `env!("CARGO_PKG_VERSION")` is that of
    /// your crate.
    #[must_use]
    pub fn version(mut self, version: &'static str) -> Self {
        self.version = Some(version);
        self
    }

    /// What the program knows by name.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The name of the program.
    pub fn program(&self) -> &'static str {
        self.name
    }

    /// The version of the program.
    pub fn program_version(&self) -> &'static str {
        self.version.unwrap_or(env!("CARGO_PKG_VERSION"))
    }

    /// Runs the program with the arguments of the process. Mistakes of extensions are
    /// errors, before any command runs.
    pub fn main(&self) -> ExitCode {
        self.run(std::env::args_os())
    }

    /// Runs the program with the given arguments, of which the first is its name.
    pub fn run<A: Into<OsString>>(&self, arguments: impl IntoIterator<Item = A>) -> ExitCode {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        cli::run_app(self, &arguments)
    }

    /// The definition of the command line, for documentation.
    pub fn command(&self) -> clap::Command {
        cli::app_command(self)
    }
}
