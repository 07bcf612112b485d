//! What a request hears from the model.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use weightloom_hub::Piece;
use weightloom_nn::Likeliest;

use crate::refusal::Refusal;
use crate::worker::Order;

/// What the model tells about a request.
#[derive(Debug)]
pub(crate) enum Event {
    /// How likely the tokens of each prompt are.
    Scores(Vec<Vec<Likeliest>>),
    /// A token was written.
    Piece(Piece),
    /// All is written.
    Done,
    /// It failed.
    Failed(Refusal),
}

/// How far the server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It runs.
    Open,
    /// It accepts nothing new.
    Closing,
    /// It waits for nothing any more.
    Cut,
}

/// What a request hears from the model. Whoever drops it wants no more: the
/// model then turns to the next request, and a place in the queue is free.
pub(crate) struct Events {
    events: mpsc::UnboundedReceiver<Event>,
    order: Order,
    phase: watch::Receiver<Phase>,
    deadline: Instant,
    limit: Duration,
}

impl Events {
    pub(crate) fn new(
        events: mpsc::UnboundedReceiver<Event>,
        order: Order,
        phase: watch::Receiver<Phase>,
        arrived: Instant,
        limit: Duration,
    ) -> Self {
        // Somebody who has no limit may say a very large one.
        let deadline = arrived + limit.min(Duration::from_secs(1 << 30));
        Self { events, order, phase, deadline, limit }
    }

    /// The next event; failures and the ends of patience are errors.
    pub(crate) async fn next(&mut self) -> Result<Event, Refusal> {
        let Self { events, phase, deadline, limit, .. } = self;
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(Event::Failed(refusal)) => Err(refusal),
                Some(event) => Ok(event),
                None => Err(Refusal::failed("the model's thread is gone")),
            },
            () = sleep_until(*deadline) => Err(Refusal::late(limit.as_secs_f64())),
            _ = phase.wait_for(|phase| *phase == Phase::Cut) => Err(Refusal::closing()),
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        drop(self.order.take());
    }
}
