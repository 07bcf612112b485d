//! A program of your own, with every command.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::{self, CallError, Listener};
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
        ExitCode::from(self.run_for_code(arguments))
    }

    /// Runs the program like [`run`](Self::run), and returns the number of its exit code.
    pub fn run_for_code<A: Into<OsString>>(&self, arguments: impl IntoIterator<Item = A>) -> u8 {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        cli::code_number(cli::run_app(self, &arguments))
    }

    /// Runs a command for the program that calls it: its results go to the listener,
    /// as the JSON that `--json` prints, and nothing is printed. Returns the exit code:
    /// 1 if a check such as `verify` failed.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use weightloom::cli::Listener;
    /// use weightloom::{Registry, app};
    ///
    /// #[derive(Default)]
    /// struct Results(Mutex<Vec<String>>);
    ///
    /// impl Listener for Results {
    ///     fn result(&self, json: &str) {
    ///         self.0.lock().expect("not poisoned").push(json.to_owned());
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), weightloom::cli::CallError> {
    /// let results = Arc::new(Results::default());
    /// let program = app(Registry::standard());
    /// let code = program.call(["weightloom", "sway", "probes"], Arc::clone(&results) as _)?;
    /// assert_eq!(code, 0);
    /// assert!(results.0.lock().expect("not poisoned")[0].contains("delta_kl"));
    ///
    /// let error = program.call(["weightloom", "inspect", "nowhere.gguf"], results).unwrap_err();
    /// assert!(error.hint.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn call<A: Into<OsString>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
        listener: Arc<dyn Listener>,
    ) -> Result<u8, CallError> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        cli::call_app(self, &arguments, listener)
    }

    /// The definition of the command line, for documentation.
    pub fn command(&self) -> clap::Command {
        cli::app_command(self)
    }
}
