//! Results on stdout, as text or JSON, and status on stderr.

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use super::PROGRAM;
use super::escape::{escaped, escaped_json};
use super::failure::Failure;
use super::listener::{Listener, ListenerId};
pub(super) use super::table::table;

/// How a command prints its result and its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) format: Format,
    pub(super) verbosity: Verbosity,
    /// The name of the program, for commands in messages.
    pub(super) program: &'static str,
    /// The program that called the command, and that everything goes to.
    pub(super) listener: Option<ListenerId>,
}

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// Whether progress and status lines are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verbosity {
    Normal,
    Quiet,
}

impl Output {
    pub(super) const TEXT: Self =
        Self { format: Format::Text, verbosity: Verbosity::Normal, program: PROGRAM, listener: None };

    pub(super) fn is_json(self) -> bool {
        self.format == Format::Json
    }

    pub(super) fn is_quiet(self) -> bool {
        self.verbosity == Verbosity::Quiet
    }

    /// The same without progress and status, for ranks that another one speaks for.
    pub(super) fn quiet(self) -> Self {
        Self { verbosity: Verbosity::Quiet, ..self }
    }

    pub(super) fn with_format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    /// The program that called the command.
    pub(super) fn listener(self) -> Option<Arc<dyn Listener>> {
        self.listener?.get()
    }

    /// Prints the result of a command to stdout.
    pub(super) fn show<T: Serialize>(
        self,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode, Failure> {
        self.show_styled(result, |result| escaped(&text(result)).into_owned())
    }

    /// Prints a result that is already text, such as JSON or Markdown.
    pub(super) fn show_text(self, text: &str) -> Result<ExitCode, Failure> {
        written(self.write_stdout(&escaped(text.trim_end())))
    }

    /// As [`show`](Self::show), for text with colours, whose parts the caller
    /// has escaped.
    pub(super) fn show_styled<T: Serialize>(
        self,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode, Failure> {
        let text = match self.format {
            Format::Text => text(result),
            Format::Json => {
                let json =
                    serde_json::to_string_pretty(result).map_err(|error| Failure::operational(&error))?;
                escaped_json(&json).into_owned()
            }
        };
        written(self.write_stdout(&text))
    }

    /// Writes a line to stdout, or hands it to the listener.
    fn write_stdout(self, line: &str) -> io::Result<()> {
        match self.listener() {
            Some(listener) => {
                listener.result(line);
                Ok(())
            }
            None => write_stdout(line),
        }
    }

    /// Prints one of several results to stdout, on one line, and flushes.
    pub(super) fn line<T: Serialize>(self, result: &T, text: impl FnOnce(&T) -> String) -> io::Result<()> {
        let text = match self.format {
            Format::Text => escaped(&text(result)).into_owned(),
            Format::Json => escaped_json(&serde_json::to_string(result)?).into_owned(),
        };
        self.write_stdout(&text)
    }

    /// Prints the last of several results like [`line`](Self::line).
    pub(super) fn last_line<T: Serialize>(
        self,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode, Failure> {
        written(self.line(result, text))
    }

    /// Prints a part of a text result to stdout at once.
    pub(super) fn stream(self, part: &str) -> io::Result<()> {
        note_lost(write_all(part.as_bytes()))
    }

    /// Prints a status line unless quiet: among text results on stdout, and on
    /// stderr where stdout is JSON. Ignores a broken pipe.
    pub(super) fn status(self, line: &str) {
        if let Some(listener) = self.listener() {
            return listener.status(line);
        }
        let _ = match (self.verbosity, self.format) {
            (Verbosity::Quiet, _) => Ok(()),
            (Verbosity::Normal, Format::Text) => self.line(&line, |line| (*line).to_owned()),
            (Verbosity::Normal, Format::Json) => writeln!(io::stderr().lock(), "{}", self.escaped(line)),
        };
    }

    /// Prints a note to stderr, unless quiet.
    pub(super) fn note(self, line: &str) {
        if let Some(listener) = self.listener() {
            listener.status(line);
        } else if !self.is_quiet() {
            // A closed stderr must not end the command.
            let _ = writeln!(io::stderr().lock(), "{}", self.escaped(line));
        }
    }

    /// A line that a terminal can show. Some are JSON where results are.
    fn escaped(self, line: &str) -> Cow<'_, str> {
        match self.format {
            Format::Text => escaped(line),
            Format::Json => escaped_json(line),
        }
    }

    /// Prints a warning to stderr, even if quiet.
    pub(super) fn warning(self, text: &str) {
        if let Some(listener) = self.listener() {
            return listener.warning(text);
        }
        // A closed stderr must not end the command.
        let _ = writeln!(io::stderr().lock(), "warning: {text}");
    }

    /// The failure of a command that succeeded, if stdout did not take all that it printed.
    pub(super) fn lost() -> Option<Failure> {
        let error = LOST.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Failure::operational(&error).about("cannot write to stdout"))
    }

    /// Prints an error to stderr. The caller of a command gets it as its result.
    pub(super) fn failure(self, failure: &Failure) {
        if self.listener.is_some() {
            return;
        }
        let text = match self.format {
            Format::Text => failure.to_string(),
            Format::Json => serde_json::to_string(&failure.to_json()).unwrap_or_else(|_| failure.to_string()),
        };
        // There is no way to report a closed stderr.
        let _ = writeln!(io::stderr().lock(), "{}", self.escaped(&self.renamed(&text)));
    }

    /// A text whose commands, in backticks, are those of this program.
    fn renamed(self, text: &str) -> String {
        text.replace(&format!("`{PROGRAM} "), &format!("`{} ", self.program))
    }
}

/// The first error of a write to stdout. Status lines are printed where no error can be
/// returned, and a full disk must not look like success.
static LOST: Mutex<Option<io::Error>> = Mutex::new(None);

/// Remembers a failed write, unless the reader left: one such as `head` may end early.
fn note_lost(result: io::Result<()>) -> io::Result<()> {
    if let Err(error) = &result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let same = error.raw_os_error().map_or_else(|| error.kind().into(), io::Error::from_raw_os_error);
        LOST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(same);
    }
    result
}

fn write_all(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Writes a line to stdout.
fn write_stdout(line: &str) -> io::Result<()> {
    note_lost(write_all(format!("{line}\n").as_bytes()))
}

/// The end of a command whose result was written. Ignores a broken pipe.
fn written(result: io::Result<()>) -> Result<ExitCode, Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::operational(&error).about("cannot write to stdout"))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A count with its noun, such as `1 tensor` or `3 tensors`.
pub(super) fn counted(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// A size in binary units.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_have_the_right_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
    }
}
