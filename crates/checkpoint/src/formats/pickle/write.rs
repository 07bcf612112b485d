//! Writing pickles of protocol 2, which every reader has.

use rustc_hash::FxHashMap;
use serde_json::Value as Json;

/// Instructions, one after another. Texts and names that were written before
/// are referred to.
#[derive(Clone, Debug)]
pub(crate) struct PickleWriter {
    bytes: Vec<u8>,
    kept: FxHashMap<Vec<u8>, u32>,
}

impl PickleWriter {
    /// An empty pickle.
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0x80, 2], kept: FxHashMap::default() }
    }

    /// The pickle of the one value that was written.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    /// `None`.
    pub(crate) fn none(&mut self) {
        self.bytes.push(b'N');
    }

    /// A whole number of at most 64 bits, signed or unsigned.
    pub(crate) fn int(&mut self, number: i128) {
        if let Ok(byte) = u8::try_from(number) {
            self.bytes.extend([b'K', byte]);
        } else if let Ok(short) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(short.to_le_bytes());
        } else {
            // Unsigned numbers of 64 bits need a ninth byte for the sign.
            let length = if i64::try_from(number).is_ok() { 8 } else { 9 };
            self.bytes.extend([0x8a, length]);
            self.bytes.extend(&number.to_le_bytes()[..usize::from(length)]);
        }
    }

    /// A floating-point number.
    pub(crate) fn float(&mut self, number: f64) {
        self.bytes.push(b'G');
        self.bytes.extend(number.to_be_bytes());
    }

    /// Text.
    pub(crate) fn text(&mut self, text: &str) {
        let mut instruction = vec![b'X'];
        instruction.extend((text.len() as u32).to_le_bytes());
        instruction.extend(text.as_bytes());
        self.shared(instruction);
    }

    /// A class or function.
    pub(crate) fn global(&mut self, module: &str, name: &str) {
        self.shared(format!("c{module}\n{name}\n").into_bytes());
    }

    /// Writes an instruction the first time, and a reference later.
    fn shared(&mut self, instruction: Vec<u8>) {
        let next = self.kept.len() as u32;
        let index = *self.kept.entry(instruction.clone()).or_insert(next);
        if index == next {
            self.bytes.extend(instruction);
            self.bytes.push(b'r');
        } else {
            self.bytes.push(b'j');
        }
        self.bytes.extend(index.to_le_bytes());
    }

    /// A tuple of what `items` writes.
    pub(crate) fn tuple(&mut self, items: impl FnOnce(&mut Self)) {
        self.bytes.push(b'(');
        items(self);
        self.bytes.push(b't');
    }

    /// A list of what `items` writes.
    pub(crate) fn list(&mut self, items: impl FnOnce(&mut Self)) {
        self.bytes.extend([b']', b'(']);
        items(self);
        self.bytes.push(b'e');
    }

    /// A dict of what `pairs` writes, keys before values.
    pub(crate) fn dict(&mut self, pairs: impl FnOnce(&mut Self)) {
        self.bytes.extend([b'}', b'(']);
        pairs(self);
        self.bytes.push(b'u');
    }

    /// A call of what was written last but one with what was written last.
    pub(crate) fn call(&mut self) {
        self.bytes.push(b'R');
    }

    /// An object of a class, and the state that `state` writes.
    pub(crate) fn object(&mut self, module: &str, name: &str, state: impl FnOnce(&mut Self)) {
        self.global(module, name);
        self.bytes.extend([b')', 0x81]);
        state(self);
        self.bytes.push(b'b');
    }

    /// An object of a class without fields.
    pub(crate) fn bare_object(&mut self, module: &str, name: &str) {
        self.global(module, name);
        self.bytes.extend([b')', 0x81]);
    }

    /// Turns the last value into a persistent id.
    pub(crate) fn persistent(&mut self) {
        self.bytes.push(b'Q');
    }

    /// A `torch.Size`.
    pub(crate) fn sizes(&mut self, sizes: &[usize]) {
        self.global("torch", "Size");
        self.tuple(|outer| outer.tuple(|inner| sizes.iter().for_each(|&size| inner.int(size as i128))));
        self.call();
    }

    /// A plain value. Lists stay lists and dicts dicts.
    pub(crate) fn json(&mut self, json: &Json) {
        match json {
            Json::Null => self.none(),
            Json::Bool(truth) => self.bytes.push(if *truth { 0x88 } else { 0x89 }),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => self.int(i128::from(number)),
                (None, Some(number)) => self.int(i128::from(number)),
                (None, None) => self.float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => self.text(text),
            Json::Array(items) => self.list(|list| items.iter().for_each(|item| list.json(item))),
            Json::Object(pairs) => self.dict(|dict| {
                for (key, value) in pairs {
                    dict.text(key);
                    dict.json(value);
                }
            }),
        }
    }
}
