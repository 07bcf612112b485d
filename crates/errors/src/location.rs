//! Positions in source files.

use std::fmt;

/// A file, or a position in it, that an error is about.
///
/// Displays as `file`, `file:line` or `file:line:column`, the form that
/// terminals and editors recognise.
///
/// ```
/// use weightloom_errors::SourceLocation;
///
/// assert_eq!(SourceLocation::new("train.yaml").to_string(), "train.yaml");
/// assert_eq!(SourceLocation::at_line("data.jsonl", 3).to_string(), "data.jsonl:3");
/// assert_eq!(SourceLocation::at("train.yaml", 3, 7).to_string(), "train.yaml:3:7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceLocation {
    /// The path or other name of the file.
    pub file: String,
    /// Counted from 1.
    pub line: Option<u64>,
    /// In characters, counted from 1.
    pub column: Option<u64>,
}

impl SourceLocation {
    /// A file as a whole.
    pub fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), line: None, column: None }
    }

    /// A line of a file.
    pub fn at_line(file: impl Into<String>, line: u64) -> Self {
        Self { line: Some(line), ..Self::new(file) }
    }

    /// A character of a file.
    pub fn at(file: impl Into<String>, line: u64, column: u64) -> Self {
        Self { column: Some(column), ..Self::at_line(file, line) }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        for number in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        Ok(())
    }
}
