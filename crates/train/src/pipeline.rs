//! The order of a pipeline's work, as data.
//!
//! A model is cut into stages, and a batch into micro-batches. Stage `s` lives
//! on rank `s % ranks`. A [`Schedule`] is a complete program for each rank: what
//! it computes, what it sends and what it waits for, in order. Nothing else
//! decides anything while a step runs, so a program can be looked at, proven
//! and timed before it does:
//!
//! - [`Schedule::new`] builds GPipe, 1F1B and interleaved 1F1B;
//! - [`check`] proves that a schedule does all work once, in an order that
//!   cannot get stuck, or names what is wrong;
//! - [`timeline`] says when everything happens for given costs, how long ranks
//!   are idle, and how much they must keep; [`draw`] shows it.
//!
//! An executor of a schedule needs one queue for each pair of ranks and
//! kind of [`Payload`]: messages arrive in the order in which they are asked
//! for. Sending does not wait; receiving does.

mod build;
mod check;
mod draw;
mod error;
mod timeline;

use std::fmt;

pub use build::PipelineError;
pub use check::check;
pub use draw::draw;
pub use error::{ProgramError, Wait};
pub use timeline::{CostError, Costs, Span, Timeline, timeline};

/// A program for each rank of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// What each rank does, in order.
    pub ranks: Vec<Vec<Action>>,
    /// Stages of the model. Stage `s` lives on rank `s % ranks`.
    pub stages: usize,
    /// Micro-batches of a step.
    pub micro_batches: usize,
}

impl Schedule {
    /// The rank that a stage lives on.
    pub fn rank_of(&self, stage: usize) -> usize {
        stage % self.ranks.len().max(1)
    }

    /// The stages that live on a rank.
    pub fn stages_of(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        (rank..self.stages).step_by(self.ranks.len().max(1))
    }

    /// The ranks that a message goes from and to, if any stage needs it.
    pub fn way(&self, message: Message) -> Option<(usize, usize)> {
        let to = match message.payload {
            Payload::Activation => Some(message.stage + 1).filter(|stage| *stage < self.stages),
            Payload::Gradient => message.stage.checked_sub(1),
        };
        to.map(|to| (self.rank_of(message.stage), self.rank_of(to)))
    }
}

/// One thing that a rank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Computes a stage's activations of a micro-batch.
    Forward {
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro: usize,
    },
    /// Computes the gradients of a stage's parameters and inputs.
    Backward {
        /// The stage.
        stage: usize,
        /// The micro-batch.
        micro: usize,
    },
    /// Hands a message over, without waiting for it to arrive.
    Send {
        /// The rank it goes to.
        peer: usize,
        /// What is sent.
        message: Message,
    },
    /// Waits for a message.
    Receive {
        /// The rank it comes from.
        peer: usize,
        /// What is received.
        message: Message,
    },
}

/// What goes from one rank to another, named by the stage that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// What it is.
    pub payload: Payload,
    /// The stage that made it.
    pub stage: usize,
    /// The micro-batch.
    pub micro: usize,
}

/// What a message is. Messages of one kind between two ranks are received in
/// the order in which they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// What a stage computed, for the next stage.
    Activation,
    /// The gradient of what a stage was given, for the stage before it.
    Gradient,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forward { stage, micro } => write!(f, "forward of stage {stage}, micro-batch {micro}"),
            Self::Backward { stage, micro } => write!(f, "backward of stage {stage}, micro-batch {micro}"),
            Self::Send { peer, message } => write!(f, "sending {message} to rank {peer}"),
            Self::Receive { peer, message } => write!(f, "receiving {message} from rank {peer}"),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = match self.payload {
            Payload::Activation => "activation",
            Payload::Gradient => "gradient",
        };
        write!(f, "the {payload} of stage {}, micro-batch {}", self.stage, self.micro)
    }
}
