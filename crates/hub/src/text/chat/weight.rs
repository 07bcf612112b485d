//! Sizes of template values.

use minijinja::value::{DynObject, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{self, MAX_DEPTH, Stop};

/// Work of visiting a value.
pub(super) const NODE_WORK: u64 = 64;

/// Size of a value with everything in it. A part that occurs twice counts
/// twice, because operations visit it twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    pub(super) nodes: u64,
    pub(super) bytes: u64,
}

impl Weight {
    /// Weighs values. Work that is left limits the visit; values that are
    /// nested too deep, as cyclic ones are, are an error.
    pub(super) fn of(state: &mut State<'_, '_>, values: &[Value]) -> Result<Self, Error> {
        Self::visit(state, values, |_| Ok(()))
    }

    /// Weighs a value that a namespace is to hold: plain data. Namespaces and
    /// macros in it could make a cycle.
    pub(super) fn of_data(state: &mut State<'_, '_>, value: &Value) -> Result<Self, Error> {
        Self::visit(state, std::slice::from_ref(value), |value| {
            let of_engine = |object: &DynObject| {
                let name = object.type_name();
                name.ends_with("::Namespace") || name.starts_with("minijinja::vm::")
            };
            if value.kind() == ValueKind::Plain || value.as_object().is_some_and(of_engine) {
                let message = "a namespace cannot hold a namespace, macro or function";
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
            Ok(())
        })
    }

    fn visit(
        state: &mut State<'_, '_>,
        values: &[Value],
        check: impl Fn(&Value) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let limit = budget::work_left(state) / NODE_WORK;
        let mut weight = Self::default();
        for value in values {
            weight.add(value, 0, limit, &check)?;
        }
        Ok(weight)
    }

    fn add(
        &mut self,
        value: &Value,
        depth: usize,
        limit: u64,
        check: &impl Fn(&Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.nodes += 1;
        if self.nodes > limit {
            return Err(budget::out_of_work());
        }
        if depth > MAX_DEPTH {
            return Err(Stop::Nested { limit: MAX_DEPTH }.into());
        }
        check(value)?;
        match value.kind() {
            ValueKind::String => self.bytes += value.as_str().map_or(0, str::len) as u64,
            ValueKind::Bytes => self.bytes += value.as_bytes().map_or(0, <[u8]>::len) as u64,
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()?.checked() {
                    self.add(&item?, depth + 1, limit, check)?;
                }
            }
            ValueKind::Map => {
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    self.add(&key, depth + 1, limit, check)?;
                    self.add(&value.get_item(&key)?, depth + 1, limit, check)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Bytes of a text, or entries of a list or map, without what is in them.
pub(super) fn shallow(value: &Value) -> u64 {
    match value.kind() {
        ValueKind::String => value.as_str().map_or(0, str::len) as u64,
        ValueKind::Bytes => value.as_bytes().map_or(0, <[u8]>::len) as u64,
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => value.len().unwrap_or(0) as u64,
        _ => 1,
    }
}
