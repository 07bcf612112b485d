//! The opcodes: a stack with marks, and a memo.

use super::{Global, Node, Object, Pickle, PickleError, Value};

/// Runs the instructions of a pickle up to its end.
pub(super) fn run(input: &[u8]) -> Result<Pickle<'_>, PickleError> {
    let mut machine = Machine {
        input,
        at: 0,
        begin: 0,
        code: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        nodes: Vec::new(),
        held: 0,
        limit: memory_limit(input.len()),
    };
    loop {
        machine.begin = machine.at;
        [machine.code] = machine.array()?;
        if machine.code == STOP {
            break;
        }
        machine.step()?;
    }
    match (machine.stack.as_slice(), machine.marks.as_slice()) {
        (&[root], []) => Ok(Pickle { nodes: machine.nodes, root, length: input.len() }),
        _ => Err(machine.operands()),
    }
}

const STOP: u8 = b'.';

struct Machine<'a> {
    input: &'a [u8],
    at: usize,
    /// Where the current opcode begins, for errors.
    begin: usize,
    code: u8,
    stack: Vec<Value<'a>>,
    /// Heights of the stack.
    marks: Vec<usize>,
    memo: Vec<Option<Value<'a>>>,
    nodes: Vec<Node<'a>>,
    /// Bytes of nodes, their parts and the memo.
    held: usize,
    /// The most bytes to hold, the stack included.
    limit: usize,
}

/// Bytes of a value.
const VALUE: usize = size_of::<Value<'_>>();

impl<'a> Machine<'a> {
    fn step(&mut self) -> Result<(), PickleError> {
        match self.code {
            0x80 => self.protocol(),
            // The length of a frame, which only streams need.
            0x95 => self.array::<8>().map(|_| ()),
            b'(' => {
                self.marks.push(self.stack.len());
                self.check_memory()
            }
            b'0' => self.discard(),
            b'1' => self.since_mark().map(|_| ()),
            b'N' | 0x88 | 0x89 | b'K' | b'M' | b'J' | 0x8a | 0x8b | b'G' => self.number(),
            0x8c | b'X' | 0x8d | b'C' | b'B' | 0x8e | 0x96 | b'U' | b'T' => self.characters(),
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(),
            b']' | b'l' | b'a' | b'e' => self.list(),
            b'}' | b'd' | b's' | b'u' => self.dict(),
            0x8f..=0x91 => self.set(),
            b')' | 0x85 | 0x86 | 0x87 | b't' => self.tuple(),
            b'c' | 0x93 => self.global(),
            b'R' | 0x81 => self.call(),
            b'b' => self.build(),
            b'Q' => {
                let id = self.pop()?;
                self.push_node(Node::Persistent(id))
            }
            code => Err(PickleError::Instruction { at: self.begin, code }),
        }
    }

    fn operands(&self) -> PickleError {
        PickleError::Operands { at: self.begin, code: self.code }
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let end = self.at.checked_add(length);
        let found = end.and_then(|end| self.input.get(self.at..end));
        let found = found.ok_or(PickleError::Truncated { at: self.input.len() })?;
        self.at += length;
        Ok(found)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let bytes = self.bytes(N)?;
        bytes.try_into().map_err(|_| PickleError::Truncated { at: self.at })
    }

    /// Text up to the end of a line.
    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = &self.input[self.at..];
        let truncated = PickleError::Truncated { at: self.input.len() };
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or(truncated)?;
        let text = std::str::from_utf8(&rest[..length]).map_err(|_| PickleError::Text { at: self.at })?;
        self.at += length + 1;
        Ok(text)
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), PickleError> {
        reserve_one(&mut self.stack);
        self.stack.push(value);
        self.check_memory()
    }

    /// Pays for memory that stays until the end.
    fn hold(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.held = self.held.saturating_add(bytes);
        self.check_memory()
    }

    fn check_memory(&self) -> Result<(), PickleError> {
        let stack = self.stack.len() * VALUE + self.marks.len() * size_of::<usize>();
        match self.held.saturating_add(stack) > self.limit {
            true => Err(PickleError::Memory { limit: self.limit }),
            false => Ok(()),
        }
    }

    fn push_node(&mut self, node: Node<'a>) -> Result<(), PickleError> {
        // There is at most one node for each byte of input.
        let number = u32::try_from(self.nodes.len()).map_err(|_| PickleError::Shared)?;
        self.hold(size_of::<Node<'_>>() + parts_size(&node))?;
        reserve_one(&mut self.nodes);
        self.nodes.push(node);
        self.push(Value::Node(number))
    }

    /// Adds parts to the topmost value.
    fn extend_top(&mut self, extend: impl FnOnce(&mut Node<'a>) -> Option<()>) -> Result<(), PickleError> {
        let error = self.operands();
        let node = self.top()?;
        let before = parts_size(node);
        extend(node).ok_or(error)?;
        let after = parts_size(node);
        self.hold(after.saturating_sub(before))
    }

    /// Takes the topmost value, which must not lie below a mark.
    fn pop(&mut self) -> Result<Value<'a>, PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.operands());
        }
        self.stack.pop().ok_or_else(|| self.operands())
    }

    fn since_mark(&mut self) -> Result<Vec<Value<'a>>, PickleError> {
        let mark = self.marks.pop().ok_or_else(|| self.operands())?;
        let taken = self.stack.split_off(mark);
        // Most of the memory is the result's now.
        if taken.len() > ROOM {
            self.stack.shrink_to(self.stack.len() + ROOM);
        }
        Ok(taken)
    }

    /// What the topmost value refers to.
    fn top(&mut self) -> Result<&mut Node<'a>, PickleError> {
        let error = self.operands();
        match self.stack.last() {
            Some(&Value::Node(number)) => self.nodes.get_mut(number as usize).ok_or(error),
            _ => Err(error),
        }
    }

    /// Removes a value, or a mark if that is on top.
    fn discard(&mut self) -> Result<(), PickleError> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(|_| ())
    }

    fn protocol(&mut self) -> Result<(), PickleError> {
        match self.array()? {
            [0..=5] => Ok(()),
            [version] => Err(PickleError::Protocol { version }),
        }
    }

    fn number(&mut self) -> Result<(), PickleError> {
        let value = match self.code {
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(i64::from(u8::from_le_bytes(self.array()?))),
            b'M' => Value::Int(i64::from(u16::from_le_bytes(self.array()?))),
            b'J' => Value::Int(i64::from(i32::from_le_bytes(self.array()?))),
            b'G' => Value::Float(f64::from_be_bytes(self.array()?)),
            0x8a => {
                let [length] = self.array()?;
                long(self.bytes(usize::from(length))?)
            }
            0x8b => {
                let length = self.length_4()?;
                long(self.bytes(length)?)
            }
            _ => Value::None,
        };
        self.push(value)
    }

    fn length_4(&mut self) -> Result<usize, PickleError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn characters(&mut self) -> Result<(), PickleError> {
        let length = match self.code {
            0x8c | b'C' | b'U' => {
                let [length] = self.array()?;
                usize::from(length)
            }
            b'X' | b'B' | b'T' => self.length_4()?,
            _ => usize::try_from(u64::from_le_bytes(self.array()?)).unwrap_or(usize::MAX),
        };
        let bytes = self.bytes(length)?;
        let text = std::str::from_utf8(bytes);
        let value = match (self.code, text) {
            // What Python 2 called strings may be either.
            (0x8c | b'X' | 0x8d | b'U' | b'T', Ok(text)) => Value::Text(text),
            (0x8c | b'X' | 0x8d, Err(_)) => return Err(PickleError::Text { at: self.begin }),
            _ => Value::Bytes(bytes),
        };
        self.push(value)
    }

    fn remember(&mut self) -> Result<(), PickleError> {
        let index = match self.code {
            b'q' | b'h' => {
                let [index] = self.array()?;
                u32::from(index)
            }
            b'r' | b'j' => u32::from_le_bytes(self.array()?),
            _ => u32::try_from(self.memo.len()).unwrap_or(u32::MAX),
        };
        let slot = index as usize;
        if matches!(self.code, b'h' | b'j') {
            let value = self.memo.get(slot).copied().flatten().ok_or(PickleError::Memo { index })?;
            return self.push(value);
        }
        // Memo numbers count from 0, so none can exceed the input's length.
        if slot > self.input.len() {
            return Err(PickleError::Memo { index });
        }
        let value = *self.stack.last().ok_or_else(|| self.operands())?;
        if slot >= self.memo.len() {
            self.hold((slot + 1 - self.memo.len()) * VALUE)?;
            reserve_one(&mut self.memo);
            self.memo.resize(slot + 1, None);
        }
        self.memo[slot] = Some(value);
        Ok(())
    }

    fn list(&mut self) -> Result<(), PickleError> {
        match self.code {
            b']' => return self.push_node(Node::List(Vec::new())),
            b'l' => {
                let items = self.since_mark()?;
                return self.push_node(Node::List(items));
            }
            _ => {}
        }
        if self.code == b'a' {
            let item = self.pop()?;
            return self.extend_top(|node| match node {
                Node::List(items) => {
                    reserve_one(items);
                    items.push(item);
                    Some(())
                }
                _ => None,
            });
        }
        let added = self.since_mark()?;
        self.extend_top(|node| match node {
            Node::List(items) => {
                append(items, added);
                Some(())
            }
            _ => None,
        })
    }

    fn dict(&mut self) -> Result<(), PickleError> {
        if self.code == b'}' {
            return self.push_node(Node::Dict(Vec::new()));
        }
        let flat = if self.code == b's' {
            let value = self.pop()?;
            vec![self.pop()?, value]
        } else {
            self.since_mark()?
        };
        let (pairs, []) = flat.as_chunks::<2>() else { return Err(self.operands()) };
        let pairs = pairs.iter().map(|&[key, value]| (key, value));
        if self.code == b'd' {
            return self.push_node(Node::Dict(pairs.collect()));
        }
        self.extend_top(|node| match node {
            Node::Dict(held) => {
                held.reserve_exact(growth(held.len(), held.capacity(), pairs.len()));
                held.extend(pairs);
                Some(())
            }
            _ => None,
        })
    }

    fn set(&mut self) -> Result<(), PickleError> {
        if self.code == 0x8f {
            return self.push_node(Node::Set(Vec::new()));
        }
        let added = self.since_mark()?;
        if self.code == 0x91 {
            return self.push_node(Node::Set(added));
        }
        self.extend_top(|node| match node {
            Node::Set(items) => {
                append(items, added);
                Some(())
            }
            _ => None,
        })
    }

    fn tuple(&mut self) -> Result<(), PickleError> {
        let count = match self.code {
            b')' => 0,
            b't' => {
                let items = self.since_mark()?;
                return self.push_node(Node::Tuple(items));
            }
            code => usize::from(code - 0x84),
        };
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push_node(Node::Tuple(items))
    }

    fn global(&mut self) -> Result<(), PickleError> {
        let (module, name) = if self.code == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (module.text(), name.text()) {
                (Some(module), Some(name)) => (module, name),
                _ => return Err(self.operands()),
            }
        };
        let refused = || PickleError::Global { module: module.to_owned(), name: name.to_owned() };
        let global = Global::find(module, name).ok_or_else(refused)?;
        self.push(Value::Global(global))
    }

    /// Records a call, except two that become plain values.
    fn call(&mut self) -> Result<(), PickleError> {
        let arguments = self.pop()?;
        let Value::Global(class) = self.pop()? else { return Err(self.operands()) };
        let Value::Node(number) = arguments else { return Err(self.operands()) };
        let Some(Node::Tuple(items)) = self.nodes.get(number as usize) else { return Err(self.operands()) };
        match (class, items.as_slice()) {
            (Global::OrderedDict, []) => self.push_node(Node::Dict(Vec::new())),
            (Global::OrderedDict, _) => Err(self.operands()),
            (Global::Size, &[sizes]) => self.push(sizes),
            _ => self.push_node(Node::Object(Box::new(Object { class, arguments, state: None }))),
        }
    }

    fn build(&mut self) -> Result<(), PickleError> {
        let state = self.pop()?;
        let error = self.operands();
        match self.top()? {
            Node::Object(object) => object.state = Some(state),
            // Attributes of an ordered dict, such as the versions of modules.
            Node::Dict(_) => {}
            _ => return Err(error),
        }
        Ok(())
    }
}

/// Items of room that a vector keeps.
const ROOM: usize = 1024;

/// The memory for a pickle of some length: ordinary ones need a few times their
/// length.
fn memory_limit(length: usize) -> usize {
    length.saturating_mul(24).saturating_add(4 << 20).min(1 << 30)
}

/// Bytes of the parts of a node.
fn parts_size(node: &Node<'_>) -> usize {
    match node {
        Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.capacity() * VALUE,
        Node::Dict(pairs) => pairs.capacity() * 2 * VALUE,
        Node::Object(_) => size_of::<Object<'_>>(),
        Node::Persistent(_) => 0,
    }
}

/// Items to reserve so that `more` fit. Vectors grow by a quarter instead of
/// doubling, which would make memory depend on the input's length by chance.
fn growth(length: usize, capacity: usize, more: usize) -> usize {
    if length + more <= capacity { 0 } else { more.max(length / 4).max(1) }
}

fn reserve_one<T>(items: &mut Vec<T>) {
    items.reserve_exact(growth(items.len(), items.capacity(), 1));
}

fn append<'a>(items: &mut Vec<Value<'a>>, added: Vec<Value<'a>>) {
    if items.is_empty() {
        *items = added;
    } else {
        items.reserve_exact(growth(items.len(), items.capacity(), added.len()));
        items.extend(added);
    }
}

/// A number in two's complement, lowest byte first.
fn long(bytes: &[u8]) -> Value<'_> {
    if bytes.len() > 8 {
        return Value::Long(bytes);
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut wide = if negative { [0xff; 8] } else { [0; 8] };
    wide[..bytes.len()].copy_from_slice(bytes);
    Value::Int(i64::from_le_bytes(wide))
}
