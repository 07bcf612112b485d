//! What a rank whose gang has failed sends to the others, so that none waits for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::GangError;

/// A failure, as it is sent.
#[derive(Serialize, Deserialize)]
enum Notice {
    /// The same fact on every rank.
    Timeout { ranks: Vec<usize>, call: String, after: Duration },
    /// A fact about the sender.
    Other { reason: String },
}

/// The bytes that describe a failure.
pub(super) fn encoded(error: &GangError) -> Vec<u8> {
    let notice = match error {
        GangError::Timeout { ranks, call, after } => {
            Notice::Timeout { ranks: ranks.clone(), call: call.clone(), after: *after }
        }
        other => Notice::Other { reason: other.to_string() },
    };
    // A vector takes any number of bytes.
    postcard::to_allocvec(&notice).unwrap_or_default()
}

/// The failure that another rank has described.
pub(super) fn decoded(engine: &'static str, rank: usize, notice: &[u8]) -> GangError {
    let reason = match postcard::from_bytes(notice) {
        Ok(Notice::Timeout { ranks, call, after }) => return GangError::Timeout { ranks, call, after },
        Ok(Notice::Other { reason }) => format!("rank {rank} failed: {reason}"),
        Err(_) => format!("rank {rank} failed"),
    };
    GangError::Engine { engine, reason }
}
