//! What can be wrong with a schedule.

use std::fmt;

use weightloom_errors::Hint;

use super::{Action, Message};

/// Why a schedule does not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ProgramError {
    /// A stage, micro-batch or rank that there is not.
    #[error(
        "rank {rank}, action {position}: {action}, but there are {stages} stages, {micro_batches} micro-batches and {ranks} ranks"
    )]
    Range { rank: usize, position: usize, action: Action, stages: usize, micro_batches: usize, ranks: usize },
    /// A stage computed where it does not live.
    #[error("rank {rank}, action {position}: {action}, but that stage lives on rank {home}")]
    WrongRank { rank: usize, position: usize, action: Action, home: usize },
    /// A message between other ranks than those of its stages.
    #[error("rank {rank}, action {position}: {action}, but that goes from rank {from} to rank {to}")]
    WrongPeer { rank: usize, position: usize, action: Action, from: usize, to: usize },
    /// A message that no other rank needs.
    #[error("rank {rank}, action {position}: {action}, but no other rank needs that")]
    Pointless { rank: usize, position: usize, action: Action },
    /// The same thing done twice.
    #[error("rank {rank} does the same twice, as its actions {first} and {second}: {action}")]
    Repeated { rank: usize, first: usize, second: usize, action: Action },
    /// Work that is never done.
    #[error("rank {rank} never does this: {action}")]
    Missing { rank: usize, action: Action },
    /// A message that nobody waits for.
    #[error("rank {from} sends {message} to rank {to}, which never receives it")]
    Unreceived { from: usize, to: usize, message: Message },
    /// A message that never comes.
    #[error("rank {to} waits for {message} from rank {from}, which never sends it")]
    Unsent { from: usize, to: usize, message: Message },
    /// Something done before what it needs.
    #[error("rank {rank}, action {position}: {action}, before its action {later}, which that needs: {needs}")]
    TooEarly { rank: usize, position: usize, action: Action, later: usize, needs: Action },
    /// Something done without what it needs.
    #[error("rank {rank}, action {position}: {action}, without ever {needs}")]
    NoInput { rank: usize, position: usize, action: Action, needs: Action },
    /// Messages asked for in another order than they are sent in.
    #[error("rank {to} asks rank {from} for {asked}, but {sent} was sent before it")]
    OutOfOrder { from: usize, to: usize, asked: Message, sent: Message },
    /// Ranks that wait for each other.
    #[error("ranks wait for each other: {}", joined(cycle))]
    Deadlock {
        /// Who waits for what; each for the next one, and the last for the
        /// first.
        cycle: Vec<Wait>,
    },
}

impl Hint for ProgramError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Range { .. } => "count stages, micro-batches and ranks from 0".to_owned(),
            Self::WrongRank { home, .. } => format!("move it to rank {home}"),
            Self::WrongPeer { from, to, .. } => {
                format!("let rank {from} send it to rank {to}, and rank {to} receive it")
            }
            Self::Pointless { .. } => "leave it out: stages of one rank hand over by themselves".to_owned(),
            Self::Repeated { second, .. } => format!("leave action {second} out"),
            Self::Missing { rank, .. } => format!("add it to the program of rank {rank}"),
            Self::Unreceived { to, .. } => format!("let rank {to} receive it before it is needed"),
            Self::Unsent { from, .. } => format!("let rank {from} send it once it is made"),
            Self::TooEarly { later, .. } => format!("move it after action {later}"),
            Self::NoInput { .. } => "add what it needs in front of it".to_owned(),
            Self::OutOfOrder { .. } => "send in the order in which messages are received".to_owned(),
            Self::Deadlock { cycle } => match cycle.first() {
                Some(wait) => format!(
                    "let rank {} send {} before it waits itself, or rank {} wait for it later",
                    wait.peer, wait.message, wait.rank
                ),
                None => return None,
            },
        })
    }
}

/// One rank that waits for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The rank that waits.
    pub rank: usize,
    /// Which of its actions, from 0.
    pub position: usize,
    /// The rank that is to send.
    pub peer: usize,
    /// What is waited for.
    pub message: Message,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} for {} from rank {}", self.rank, self.message, self.peer)
    }
}

fn joined(cycle: &[Wait]) -> String {
    cycle.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
