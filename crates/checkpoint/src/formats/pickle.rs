//! A pickle machine that runs nothing.
//!
//! Pickles are programs. This machine knows the instructions that build
//! values, and a short list of names (`globals.rs`) that it keeps as names:
//! calls are recorded, never made. Every other name is refused, and there is
//! no switch that changes that.
//!
//! Values live in one arena and refer to each other by number. An instruction
//! makes at most one node, and there are no loops, so time and memory are
//! bounded by the length of the input whatever it does with shared parts.
//! Walks over the result have a budget for the same reason.

mod globals;
mod json;
mod machine;
mod write;

pub(crate) use globals::{Global, Rebuild, Record};
pub(crate) use write::PickleWriter;

use weightloom_errors::Hint;

/// What is wrong with a pickle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PickleError {
    /// The input ends inside an instruction, or before the last one.
    #[error("its pickle ends too early, at byte {at}")]
    Truncated { at: usize },
    /// An instruction that is not known.
    #[error("its pickle has an instruction {code:#04x} at byte {at}, which is not supported")]
    Instruction { at: usize, code: u8 },
    /// A protocol of the future.
    #[error("its pickle has protocol {version}, but 5 is the newest that is known")]
    Protocol { version: u8 },
    /// A class or function that is not on the list.
    #[error("its pickle wants to use `{module}.{name}`, which is refused")]
    Global { module: String, name: String },
    /// An instruction whose operands are not there or not of the right kind.
    #[error("its pickle has instruction {code:#04x} at byte {at} without fitting operands")]
    Operands { at: usize, code: u8 },
    /// Text that is not UTF-8.
    #[error("its pickle has text at byte {at} that is not UTF-8")]
    Text { at: usize },
    /// A reference to something that was not kept.
    #[error("its pickle refers to part {index}, which does not exist")]
    Memo { index: u32 },
    /// Values nested too deeply.
    #[error("its values are nested more than {limit} deep")]
    Deep { limit: usize },
    /// Values that refer to the same parts over and over, or to themselves.
    #[error("its values repeat their parts more often than the length of the pickle allows")]
    Shared,
    /// A value that is something else than it should be.
    #[error("`{name}` should be {expected}")]
    Unexpected { name: String, expected: &'static str },
}

impl Hint for PickleError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Global { .. } => Some(
                "names that could run code are never used; if you trust the file, load it with the program that \
                 wrote it and save only tensors, numbers and text"
                    .to_owned(),
            ),
            Self::Truncated { .. } => Some("the file was cut off; copy or download it again".to_owned()),
            Self::Deep { .. } | Self::Shared => {
                Some("the file is damaged or made to harm; get it from elsewhere".to_owned())
            }
            _ => None,
        }
    }
}

/// The most levels that values are nested where they are walked over.
pub(crate) const MAX_DEPTH: usize = 100;

/// A value. Texts and bytes are borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// A number that fits.
    Int(i64),
    /// A number that does not: two's complement, lowest byte first.
    Long(&'a [u8]),
    /// A floating-point number.
    Float(f64),
    /// Text.
    Text(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A class or function from the list.
    Global(Global),
    /// Anything that has parts.
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

/// A call that was not made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Object<'a> {
    /// What would have been called.
    pub(crate) class: Global,
    /// With which arguments: a tuple.
    pub(crate) arguments: Value<'a>,
    /// What would have been put into the result.
    pub(crate) state: Option<Value<'a>>,
}

/// A pickle that was read.
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

    /// The value that the pickle is of.
    pub(crate) fn root(&self) -> Value<'a> {
        self.root
    }

    /// How many bytes a walk over the values may make of them.
    pub(crate) fn budget(&self) -> Budget {
        Budget { left: self.length.saturating_mul(64).saturating_add(1 << 16) }
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

    /// A call that was not made.
    pub(crate) fn object(&self, value: Value<'a>) -> Option<&Object<'a>> {
        match self.node(value)? {
            Node::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The value of an object's field, `None` if it has no such field.
    pub(crate) fn field(&self, object: &Object<'a>, name: &str) -> Option<Value<'a>> {
        let pairs = self.pairs(object.state?)?;
        pairs.iter().find(|(key, _)| *key == Value::Text(name)).map(|(_, value)| *value)
    }

    /// Sizes or offsets: a tuple of numbers that are not negative.
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

    /// The number, if it is one that is not negative.
    pub(crate) fn size(&self) -> Option<usize> {
        match self {
            Self::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }

    /// The offset or length, if it is one.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// What a value costs beside its bytes: about what it takes in memory.
const VISIT: usize = 32;

/// What a walk may still visit, so that shared parts do not multiply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    /// Pays for one value and so many bytes that are made of it.
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.left = self.left.checked_sub(bytes.saturating_add(VISIT)).ok_or(PickleError::Shared)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
