//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

use weightloom_errors::Hint;
use weightloom_layout::{DType, ReduceOp};

use crate::call::Signature;

/// Why ranks could not act together.
///
/// Ranks are numbered as in the root gang, whichever sub-gang they met in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GangError {
    /// Two ranks met in different calls.
    #[error("rank {first} called {first_call}, but rank {second} called {second_call}")]
    Mismatch { first: usize, first_call: Signature, second: usize, second_call: Signature },
    /// Two ranks disagree on how much one sends the other.
    #[error("in all_to_all, rank {from} sends {sent} elements to rank {to}, which expects {expected}")]
    UnequalTrade { from: usize, to: usize, sent: usize, expected: usize },
    /// A rank ended before it took part.
    #[error("rank {rank} {departure} before it joined {call}")]
    Departed { rank: usize, departure: Departure, call: String },
    /// Ranks did not take part in time.
    #[error("{} did not join {call} within {}", RankList(ranks), Seconds(*after))]
    Timeout { ranks: Vec<usize>, call: String, after: Duration },
    /// One rank entered a call from two threads at once.
    #[error("rank {rank} called {second} while its {first} on the same gang was still running")]
    Reentered { rank: usize, first: Signature, second: Signature },
    /// A buffer does not have the length that the counts ask for.
    #[error("{call} needs {expected} elements in its {buffer} buffer, not {found}")]
    Length { call: &'static str, buffer: &'static str, expected: usize, found: usize },
    /// Not one count per rank.
    #[error("{call} in a gang of {size} needs {size} counts, not {found}")]
    CountList { call: &'static str, size: usize, found: usize },
    /// Send and receive buffers differ in dtype.
    #[error("{call} cannot send {send} and receive {receive}")]
    DTypes { call: &'static str, send: DType, receive: DType },
    /// A rank outside the gang.
    #[error("a gang of {size} has no rank {rank}")]
    NoSuchRank { rank: usize, size: usize },
    /// A sub-gang list that names a rank twice, or not the caller.
    #[error("rank {rank} cannot form a gang of ranks {ranks:?}")]
    SubGang {
        rank: usize,
        /// The list as given, in the parent gang's numbering.
        ranks: Vec<usize>,
    },
    /// A reduction that this dtype does not have.
    #[error("{dtype} elements have no {op}")]
    NotReducible { dtype: DType, op: ReduceOp },
    /// Bytes that are not whole, aligned elements.
    #[error("{bytes} bytes are not whole, aligned {dtype} elements")]
    NotElements { dtype: DType, bytes: usize },
    /// There is no memory for what would be received.
    #[error("there is no memory for {length} {dtype} elements")]
    Memory { dtype: DType, length: usize },
    /// A message arrived with another type or length than expected.
    #[error("rank {from} sent {sent} under tag {tag}, but rank {to} expected {expected}")]
    Message { from: usize, to: usize, tag: u32, sent: String, expected: String },
    /// An object could not be turned into bytes or back.
    #[error("an object could not be {direction}: {reason}")]
    Object { direction: &'static str, reason: String },
    /// The engine underneath failed.
    #[error("{engine}: {reason}")]
    Engine { engine: &'static str, reason: String },
}

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// It finished its work, or left early.
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
            Self::Mismatch { .. } | Self::UnequalTrade { .. } => {
                "make every rank of the gang issue the same calls in the same order".to_owned()
            }
            Self::Departed { rank, .. } => format!("look at what rank {rank} reported first"),
            Self::Timeout { .. } => {
                "raise the gang timeout if the ranks are slow rather than stuck".to_owned()
            }
            Self::Reentered { .. } => {
                "use the `start_` forms to overlap calls, or give each thread its own sub-gang".to_owned()
            }
            Self::NotReducible { dtype, op } => match op {
                ReduceOp::Avg if !dtype.is_float() => "take the sum and divide it yourself".to_owned(),
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
