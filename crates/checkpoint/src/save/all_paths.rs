//! The paths of nested state of all ranks: a stage of a pipeline knows only its
//! own.

use weightloom_gang::{Gang, GangExt};

use crate::error::CheckpointError;
use crate::tree::{AmbiguousPath, Paths};

/// The paths of all ranks together. Every rank.
pub(super) fn gather_paths(own: &Paths, gang: &dyn Gang) -> Result<Paths, CheckpointError> {
    // As text: segments do not say what they are in the wire format. Every path
    // is valid JSON, so that nothing is lost here.
    let own = serde_json::to_string(own).unwrap_or_default();
    let mut merged = Paths::new();
    for text in gang.all_gather_objects(&own)? {
        let theirs: Paths = serde_json::from_str(&text).unwrap_or_default();
        for (name, second) in theirs {
            match merged.get(&name) {
                Some(first) if *first != second => {
                    let first = first.clone();
                    return Err(AmbiguousPath { name, first, second }.into());
                }
                _ => drop(merged.insert(name, second)),
            }
        }
    }
    Ok(merged)
}
