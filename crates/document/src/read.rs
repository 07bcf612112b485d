//! Reads a document from a file.

use std::io::Read;
use std::path::Path;

use weightloom_errors::SourceLocation;

use crate::error::{DocumentError, Problem};
use crate::node::Node;
use crate::origin::{Mark, Origin, Sources};

/// The size limit of a document.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads the text of a document, or slightly more than the limit if the file
/// is larger.
pub fn read_text<R>(file: &Path) -> Result<String, DocumentError<R>> {
    let name = file.display().to_string();
    let unreadable =
        |error: std::io::Error| of_file(&name, Problem::Unreadable { message: error.to_string() });
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    // The path may name a huge file or an endless device.
    opened.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// Parses the text of a document.
pub fn parse<R>(text: &str, sources: Sources<'_>) -> Result<Node, DocumentError<R>> {
    let bytes = text.len() as u64;
    if bytes > MAX_FILE_BYTES {
        return Err(of_file(sources.file, Problem::TooLarge { bytes, limit: MAX_FILE_BYTES }));
    }
    Node::parse(text).map_err(|error| DocumentError {
        origin: sources.origin(Mark::At { line: error.line, column: error.column }),
        path: String::new(),
        problem: Problem::Syntax { message: error.message, snippet: error.snippet },
    })
}

fn of_file<R>(file: &str, problem: Problem<R>) -> DocumentError<R> {
    DocumentError { origin: Origin::File(SourceLocation::new(file)), path: String::new(), problem }
}
