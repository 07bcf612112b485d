//! A pickle reader that executes nothing.
//!
//! Pickles are programs. This reader supports the opcodes that build values,
//! and a short list of globals (`globals.rs`) that it keeps as names: calls are
//! recorded, never made. Every other name is refused, without any switch to
//! allow it.
//!
//! Values live in one arena and refer to each other by number. An opcode makes
//! at most one node, and there are no loops, so time and memory are bounded by
//! the length of the input; the machine counts the memory, and refuses pickles
//! that need many times their length. Traversals of the result have a budget, since
//! shared values can expand exponentially.

mod globals;
mod json;
mod machine;
mod write;

pub(crate) use globals::{Global, Rebuild, Record};
pub(crate) use write::PickleWriter;

use weightloom_errors::Hint;

/// Why a pickle cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PickleError {
    #[error("the pickle is truncated at byte {at}")]
    Truncated { at: usize },
    #[error("unsupported pickle opcode {code:#04x} at byte {at}")]
    Instruction { at: usize, code: u8 },
    #[error("unsupported pickle protocol {version}; 5 is the newest supported")]
    Protocol { version: u8 },
    #[error("the pickle uses `{module}.{name}`, which is not allowed")]
    Global { module: String, name: String },
    #[error("pickle opcode {code:#04x} at byte {at} has wrong operands")]
    Operands { at: usize, code: u8 },
    #[error("the pickle has text at byte {at} that is not UTF-8")]
    Text { at: usize },
    #[error("the pickle refers to memo {index}, which does not exist")]
    Memo { index: u32 },
    #[error("values are nested more than {limit} deep")]
    Deep { limit: usize },
    #[error("shared values expand to more than the length of the pickle allows")]
    Shared,
    #[error("the values of the pickle take more than {limit} bytes of memory")]
    Memory { limit: usize },
    #[error("`{name}` should be {expected}")]
    Unexpected { name: String, expected: &'static str },
}

impl Hint for PickleError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Global { .. } => Some(
                "if you trust the file, load it with the program that wrote it and save only tensors, numbers and \
                 text; names that could run code are never used"
                    .to_owned(),
            ),
            Self::Truncated { .. } => Some("copy or download the file again; it is truncated".to_owned()),
            Self::Deep { .. } | Self::Shared => {
                Some("get the file from a source that you trust; it is damaged or malicious".to_owned())
            }
            Self::Memory { .. } => Some(
                "save long lists as tensors; or get the file from a source that you trust, if it should not have any"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// The deepest nesting of values.
pub(crate) const MAX_DEPTH: usize = 100;

/// A value. Texts and bytes are borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer that fits.
    Int(i64),
    /// A larger integer: two's complement, little endian.
    Long(&'a [u8]),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A known class or function.
    Global(Global),
    /// A value with parts.
    Node(u32),
}

/// A value with parts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node<'a> {
    List(Vec<Value<'a>>),
    Tuple(Vec<Value<'a>>),
    Dict(Vec<(Value<'a>, Value<'a>)>),
    Set(Vec<Value<'a>>),
    Object(Box<Object<'a>>),
    Persistent(Value<'a>),
}

/// A recorded call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Object<'a> {
    /// The callee.
    pub(crate) class: Global,
    /// The arguments, a tuple.
    pub(crate) arguments: Value<'a>,
    /// The state that `BUILD` would set.
    pub(crate) state: Option<Value<'a>>,
}

/// A parsed pickle.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pickle<'a> {
    nodes: Vec<Node<'a>>,
    root: Value<'a>,
    length: usize,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle.
    pub(crate) fn read(input: &'a [u8]) -> Result<Self, PickleError> {
        machine::run(input)
    }

    /// The pickled value.
    pub(crate) fn root(&self) -> Value<'a> {
        self.root
    }

    /// The budget of a traversal.
    pub(crate) fn budget(&self) -> Budget {
        Budget { left: self.length.saturating_mul(32).saturating_add(4 << 20).min(1 << 30) }
    }

    /// The parts of a value, if it has any.
    pub(crate) fn node(&self, value: Value<'a>) -> Option<&Node<'a>> {
        match value {
            Value::Node(number) => self.nodes.get(number as usize),
            _ => None,
        }
    }

    /// The items of a tuple or a list.
    pub(crate) fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match self.node(value)? {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// The pairs of a dict, in order.
    pub(crate) fn pairs(&self, value: Value<'a>) -> Option<&[(Value<'a>, Value<'a>)]> {
        match self.node(value)? {
            Node::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The recorded call, if the value is one.
    pub(crate) fn object(&self, value: Value<'a>) -> Option<&Object<'a>> {
        match self.node(value)? {
            Node::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The value of an object's field.
    pub(crate) fn field(&self, object: &Object<'a>, name: &str) -> Option<Value<'a>> {
        let pairs = self.pairs(object.state?)?;
        pairs.iter().find(|(key, _)| *key == Value::Text(name)).map(|(_, value)| *value)
    }

    /// A tuple of non-negative integers.
    pub(crate) fn sizes(&self, value: Value<'a>) -> Option<Vec<usize>> {
        self.items(value)?.iter().map(Value::size).collect()
    }
}

impl<'a> Value<'a> {
    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value as a non-negative integer.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Self::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The value as an offset or length.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// The cost of a value besides the bytes that it produces.
const VISIT: usize = 8;

/// The remaining cost of a traversal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    /// Pays for one value that produces `bytes` bytes.
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.left = self.left.checked_sub(bytes.saturating_add(VISIT)).ok_or(PickleError::Shared)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
