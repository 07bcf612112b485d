//! The text of a file, and what it says.

use std::io::Read;
use std::path::Path;

use crate::fault::{Fault, Problem};
use crate::place::{Mark, Place, Texts};
use crate::tree::Node;

/// The longest file that is taken.
pub const MOST_BYTES: u64 = 1 << 20;

/// The text of a file that a person wrote.
pub fn text_of<R>(file: &Path) -> Result<String, Fault<R>> {
    let name = file.display().to_string();
    let unreadable = |error: std::io::Error| alone(&name, Problem::Unreadable { message: error.to_string() });
    let mut text = String::new();
    let opened = std::fs::File::open(file).map_err(unreadable)?;
    // Not more than can be used: it may be anything, and without an end.
    opened.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

/// What a text says.
pub fn parse<R>(text: &str, texts: Texts<'_>) -> Result<Node, Fault<R>> {
    let bytes = text.len() as u64;
    if bytes > MOST_BYTES {
        return Err(alone(texts.file, Problem::TooLong { bytes, most: MOST_BYTES }));
    }
    Node::parse(text).map_err(|error| Fault {
        place: texts.place(Mark::At { line: error.line, column: error.column }),
        path: String::new(),
        problem: Problem::Syntax { message: error.message, snippet: error.snippet },
    })
}

/// A fault of a file as a whole.
fn alone<R>(file: &str, problem: Problem<R>) -> Fault<R> {
    Fault { place: Place::File { file: file.to_owned() }, path: String::new(), problem }
}
