//! What can be wrong with a schedule.

use std::fmt;

use shardloom_layout::Hint;

use super::{Action, Message};

/// Why a schedule does not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A stage, micro-batch or rank that there is not.
    #[error(
        "rank {rank}, action {position}: {action}, but there are {stages} stages, {micro_batches} micro-batches and {ranks} ranks"
    )]
    Range {
        /// The rank whose program it is.
        rank: usize,
        /// Which of its actions, from 0.
        position: usize,
        /// The action.
        action: Action,
        /// Stages that there are.
        stages: usize,
        /// Micro-batches that there are.
        micro_batches: usize,
        /// Ranks that there are.
        ranks: usize,
    },
    /// A stage computed where it does not live.
    #[error("rank {rank}, action {position}: {action}, but that stage lives on rank {home}")]
    WrongRank {
        /// The rank whose program it is.
        rank: usize,
        /// Which of its actions, from 0.
        position: usize,
        /// The action.
        action: Action,
        /// Where the stage lives.
        home: usize,
    },
    /// A message between other ranks than those of its stages.
    #[error("rank {rank}, action {position}: {action}, but that goes from rank {from} to rank {to}")]
    WrongPeer {
        /// The rank whose program it is.
        rank: usize,
        /// Which of its actions, from 0.
        position: usize,
        /// The action.
        action: Action,
        /// Where it must come from.
        from: usize,
        /// Where it must go to.
        to: usize,
    },
    /// A message that no other rank needs.
    #[error("rank {rank}, action {position}: {action}, but no other rank needs that")]
    Pointless {
        /// The rank whose program it is.
        rank: usize,
        /// Which of its actions, from 0.
        position: usize,
        /// The action.
        action: Action,
    },
    /// The same thing done twice.
    #[error("rank {rank} does the same twice, as its actions {first} and {second}: {action}")]
    Repeated {
        /// The rank.
        rank: usize,
        /// Which of its actions, from 0.
        first: usize,
        /// And which again.
        second: usize,
        /// The action.
        action: Action,
    },
    /// Work that is never done.
    #[error("rank {rank} never does this: {action}")]
    Missing {
        /// The rank that should.
        rank: usize,
        /// The action.
        action: Action,
    },
    /// A message that nobody waits for.
    #[error("rank {from} sends {message} to rank {to}, which never receives it")]
    Unreceived {
        /// Where it comes from.
        from: usize,
        /// Where it should go to.
        to: usize,
        /// The message.
        message: Message,
    },
    /// A message that never comes.
    #[error("rank {to} waits for {message} from rank {from}, which never sends it")]
    Unsent {
        /// Where it should come from.
        from: usize,
        /// Who waits for it.
        to: usize,
        /// The message.
        message: Message,
    },
    /// Something done before what it needs.
    #[error("rank {rank}, action {position}: {action}, before its action {later}, which that needs: {needs}")]
    TooEarly {
        /// The rank.
        rank: usize,
        /// Which of its actions, from 0.
        position: usize,
        /// The action.
        action: Action,
        /// Where what it needs stands.
        later: usize,
        /// What it needs.
        needs: Action,
    },
    /// Something done without what it needs.
    #[error("rank {rank}, action {position}: {action}, without ever {needs}")]
    NoInput {
        /// The rank.
        rank: usize,
        /// Which of its actions, from 0.
        position: usize,
        /// The action.
        action: Action,
        /// What it needs.
        needs: Action,
    },
    /// Messages asked for in another order than they are sent in.
    #[error("rank {to} asks rank {from} for {asked}, but {sent} was sent before it")]
    OutOfOrder {
        /// Where they come from.
        from: usize,
        /// Where they go to.
        to: usize,
        /// The message that is asked for.
        asked: Message,
        /// The message that comes.
        sent: Message,
    },
    /// Ranks that wait for each other.
    #[error("ranks wait for each other: {}", joined(cycle))]
    Deadlock {
        /// Who waits for what; each for the next one, and the last for the
        /// first.
        cycle: Vec<Wait>,
    },
}

impl Hint for Fault {
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
            Self::TooEarly { later, .. } => format!("move it behind action {later}"),
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
