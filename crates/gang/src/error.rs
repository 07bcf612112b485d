//! Errors of communication between ranks.

use std::fmt;
use std::time::Duration;

use weightloom_errors::Hint;
use weightloom_layout::{DType, ReduceOp};

use crate::call::Signature;

/// An error of communication between ranks.
///
/// Ranks are numbers in the root gang, also for errors in a sub-gang.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GangError {
    #[error("rank {first} called {first_call}, but rank {second} called {second_call}")]
    Mismatch { first: usize, first_call: Signature, second: usize, second_call: Signature },
    #[error("in {call}, rank {from} sends {sent} elements to rank {to}, which expects {expected}")]
    CountMismatch { call: &'static str, from: usize, to: usize, sent: usize, expected: usize },
    #[error("rank {rank} {departure} before it joined {call}")]
    Departed { rank: usize, departure: Departure, call: String },
    #[error("{} did not join {call} within {}", RankList(ranks), Seconds(*after))]
    Timeout { ranks: Vec<usize>, call: String, after: Duration },
    #[error("rank {rank} called {second} while its {first} on the same gang was still running")]
    Reentered { rank: usize, first: Signature, second: Signature },
    #[error("{call} needs {expected} elements in its {buffer} buffer, not {found}")]
    Length { call: &'static str, buffer: &'static str, expected: usize, found: usize },
    #[error("{call} in a gang of {size} needs {size} counts, not {found}")]
    CountList { call: &'static str, size: usize, found: usize },
    #[error("{call} cannot send {send} and receive {receive}")]
    DTypes { call: &'static str, send: DType, receive: DType },
    #[error("a gang of {size} has no rank {rank}")]
    NoSuchRank { rank: usize, size: usize },
    /// The list repeats a rank or lacks the caller.
    #[error("rank {rank} cannot form a gang of ranks {ranks:?}")]
    SubGang {
        rank: usize,
        /// Ranks of the parent gang.
        ranks: Vec<usize>,
    },
    #[error("cannot reduce {dtype} elements with {op}")]
    NotReducible { dtype: DType, op: ReduceOp },
    #[error("{bytes} bytes are not whole, aligned {dtype} elements")]
    NotElements { dtype: DType, bytes: usize },
    #[error("cannot allocate {length} {dtype} elements")]
    Memory { dtype: DType, length: usize },
    #[error("rank {from} sent {sent} under tag {tag}, but rank {to} expected {expected}")]
    Message { from: usize, to: usize, tag: u32, sent: String, expected: String },
    #[error("cannot {action} an object: {reason}")]
    Object { action: &'static str, reason: String },
    #[error("{engine}: {reason}")]
    Engine { engine: &'static str, reason: String },
}

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// Its work returned.
    Returned,
    /// It panicked with this message.
    Panicked(String),
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Returned => f.write_str("returned"),
            Self::Panicked(message) => write!(f, "panicked (`{message}`)"),
        }
    }
}

impl Hint for GangError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Mismatch { .. } | Self::CountMismatch { .. } => {
                "issue the same calls in the same order on every rank of the gang".to_owned()
            }
            Self::Departed { rank, .. } => format!("see the first error of rank {rank}"),
            Self::Timeout { .. } => {
                "raise the gang timeout if the ranks are slow rather than stuck".to_owned()
            }
            Self::Reentered { .. } => {
                "use the `start_` methods to overlap calls, or one sub-gang per thread".to_owned()
            }
            Self::NotReducible { dtype, op } => match op {
                ReduceOp::Avg if !dtype.is_float() => {
                    "reduce with sum and divide by the number of ranks".to_owned()
                }
                _ => "cast to f32 before reducing".to_owned(),
            },
            _ => return None,
        })
    }
}

struct RankList<'a>(&'a [usize]);

impl fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.0.len() == 1 { "rank" } else { "ranks" };
        let ranks: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{noun} {}", ranks.join(", "))
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0.as_secs_f64())
    }
}
