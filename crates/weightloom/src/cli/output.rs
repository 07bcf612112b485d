//! Text for people, JSON for programs.

use std::io::{self, Write};
use std::process::ExitCode;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use super::failure::Failure;

/// In which form a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Text,
    Json,
}

impl Output {
    /// Prints a command's answer to stdout.
    pub(super) fn show<T: Serialize>(
        self,
        answer: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<ExitCode, Failure> {
        let written = match self {
            Self::Text => text(answer),
            Self::Json => {
                serde_json::to_string_pretty(answer).map_err(|error| Failure::operational(&error))?
            }
        };
        match writeln!(io::stdout().lock(), "{written}") {
            // A reader such as `head` that has seen enough is no failure.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Failure::operational(&error).about("cannot write to stdout"))
            }
            _ => Ok(ExitCode::SUCCESS),
        }
    }

    /// Prints something that is told on the way, on one line, at once.
    pub(super) fn line<T: Serialize>(self, news: &T, text: impl FnOnce(&T) -> String) -> io::Result<()> {
        let written = match self {
            Self::Text => text(news),
            Self::Json => serde_json::to_string(news)?,
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{written}")?;
        out.flush()
    }

    /// Prints an error to stderr.
    pub(super) fn failure(self, failure: &Failure) {
        let written = match self {
            Self::Text => failure.to_string(),
            Self::Json => serde_json::to_string(&failure.to_json()).unwrap_or_else(|_| failure.to_string()),
        };
        // If even stderr is closed there is nobody to tell.
        let _ = writeln!(io::stderr().lock(), "{written}");
    }
}

/// A table with these column heads; numbers are set flush right.
pub(super) fn table(heads: &[&str], numbers: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    // A terminal breaks lines that are too long for it; a file should not.
    if let Some((width, _)) = terminal_size::terminal_size() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(width.0.max(40));
    }
    table.set_header(heads.to_vec());
    for &column in numbers {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A number of things, in words.
pub(super) fn counted(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Bytes in the unit that suits them.
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
    fn bytes_read_naturally() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(64 << 20), "64.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
    }
}
