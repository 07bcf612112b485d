//! YAML documents written by people: training configs, suites, model cards.
//!
//! - A [`Node`] is a YAML value that knows its line and column.
//! - A [`schema`] lists the keys of a document, from the JSON schema of a type.
//! - A [`Validator`] compares the two and collects every [`DocumentError`].
//! - [`overrides`] (`train.seed=3`) and [`variables`] (`${env:NAME}`) change
//!   values before validation.
//!
//! Rules that one kind of document adds to its types implement
//! [`DocumentRule`].
//!
//! ```
//! use weightloom_document::{Coercion, Node, Section, Sources, Validator};
//! # use weightloom_document::DocumentRule;
//! # #[derive(Debug, thiserror::Error)]
//! # #[error("no rules")]
//! # struct NoRules;
//! # impl weightloom_errors::Hint for NoRules {
//! #     fn hint(&self) -> Option<String> { None }
//! # }
//! # impl DocumentRule for NoRules {
//! #     const DOCUMENT: &'static str = "the note";
//! #     const FILE: &'static str = "a note";
//! #     const OVERRIDE: &'static str = "count=1";
//! # }
//!
//! let schema = Section::from_json_schema(&serde_json::json!({
//!     "type": "object",
//!     "additionalProperties": false,
//!     "properties": { "count": { "type": "integer", "format": "uint8", "default": 1 } },
//! }))
//! .unwrap();
//! let node = Node::parse("count: many\ncuont: 3\n").unwrap();
//! let sources = Sources { file: "note.yaml", overrides: &[] };
//! let mut validator = Validator::<NoRules>::new(sources, &schema, Coercion::Strict);
//! validator.check_section(&schema, &node, node.mark, "");
//! let errors: Vec<String> = validator.errors.iter().map(ToString::to_string).collect();
//! assert_eq!(
//!     errors,
//!     [
//!         "note.yaml:1:8: count: expected an integer, found the string `many`",
//!         "note.yaml:2:1: cuont: unknown key",
//!     ]
//! );
//! ```

#![forbid(unsafe_code)]

mod error;
mod node;
mod origin;
pub mod overrides;
mod read;
pub mod schema;
pub mod validate;
pub mod variables;

pub use error::{DocumentError, DocumentErrors, DocumentRule, Problem, Remedy};
pub use node::{Content, Entry, Node, Rejected, Style, SyntaxError, truncate};
pub use origin::{Mark, Origin, Sources};
pub use read::{MAX_FILE_BYTES, parse, read_text};
pub use schema::Section;
pub use validate::{Coercion, Validator};
