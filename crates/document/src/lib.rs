//! Files that people write: YAML, checked against types.
//!
//! - A [`Node`] is a value that knows where it was written.
//! - An [`outline`] says which keys there are, from the JSON schema of a type.
//! - [`Conformity`] compares the two and notes every [`Fault`] with its place.
//! - [`overrides`] and [`variable`] change values before they are compared.
//!
//! What only some file needs, its own rules, is a [`Purpose`].

pub mod conform;
mod fault;
pub mod outline;
pub mod overrides;
mod place;
mod text;
mod tree;
pub mod variable;

pub use conform::{Conformity, Leniency};
pub use fault::{Fault, Faults, Problem, Purpose, Remedy};
pub use outline::Section;
pub use place::{Mark, Place, Texts};
pub use text::{MOST_BYTES, parse, text_of};
pub use tree::{Content, Entry, Node, Refused, Style, SyntaxError, cropped};
