//! Interned values: stored once per process, compared by number.

use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::{OnceLock, PoisonError, RwLock};

use rustc_hash::FxHashMap;

/// Holds every distinct value of one type for the life of the process.
///
/// Meshes and layouts are few (a training run has tens) and named millions of
/// times, so each is stored once and never freed: a handle is a plain
/// reference, and reading through it takes no lock.
pub(crate) struct Interner<K, V: 'static> {
    known: OnceLock<RwLock<FxHashMap<K, &'static V>>>,
}

impl<K: Hash + Eq, V> Interner<K, V> {
    pub(crate) const fn new() -> Self {
        Self { known: OnceLock::new() }
    }

    /// Returns the value for `key`, building it from its number and the key if
    /// it is new.
    pub(crate) fn intern<E>(
        &self,
        key: K,
        build: impl FnOnce(u32, &K) -> Result<V, E>,
    ) -> Result<&'static V, E> {
        let known = self.known.get_or_init(RwLock::default);
        // A panic inside `build` cannot leave the map half-changed, so a
        // poisoned lock is still sound to use.
        if let Some(value) = known.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(value);
        }
        let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
        let number = u32::try_from(known.len()).expect("fewer than 2^32 distinct values fit in memory");
        match known.entry(key) {
            Entry::Occupied(entry) => Ok(entry.get()),
            Entry::Vacant(entry) => {
                let value = build(number, entry.key())?;
                Ok(entry.insert(Box::leak(Box::new(value))))
            }
        }
    }
}
