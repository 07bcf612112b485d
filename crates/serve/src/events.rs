//! Events that the model's thread sends to a request.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use weightloom_hub::StreamedToken;
use weightloom_nn::TokenLogprobs;

use crate::api_error::ApiError;
use crate::worker::QueuedRequest;

/// Caps "no limit" values, which would overflow the clock.
const MAX_TIMEOUT: Duration = Duration::from_secs(1 << 30);

/// Events that may wait for a client that reads slowly.
pub(crate) const EVENTS: usize = 1 << 14;

/// Progress of a request.
#[derive(Debug)]
pub(crate) enum Event {
    /// The log-probabilities of the tokens of each prompt.
    Scores(Vec<Vec<TokenLogprobs>>),
    Token(StreamedToken),
    Done,
    Failed(ApiError),
}

/// Where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerState {
    Running,
    /// Accepts no new requests, and finishes the current ones.
    Draining,
    /// Ends the current requests with an error.
    Aborting,
}

/// The event stream of a request. Dropping it cancels the request, which frees
/// its place in the queue.
pub(crate) struct Events {
    events: mpsc::Receiver<Event>,
    queued: QueuedRequest,
    server_state: watch::Receiver<ServerState>,
    deadline: Instant,
    timeout: Duration,
}

impl Events {
    pub(crate) fn new(
        events: mpsc::Receiver<Event>,
        queued: QueuedRequest,
        server_state: watch::Receiver<ServerState>,
        arrived: Instant,
        timeout: Duration,
    ) -> Self {
        let deadline = arrived + timeout.min(MAX_TIMEOUT);
        Self { events, queued, server_state, deadline, timeout }
    }

    /// Waits for the next event. A failure, a timeout or an aborting server is
    /// an error.
    pub(crate) async fn next(&mut self) -> Result<Event, ApiError> {
        let Self { events, server_state, deadline, timeout, .. } = self;
        tokio::select! {
            biased;
            event = events.recv() => match event {
                Some(Event::Failed(error)) => Err(error),
                Some(event) => Ok(event),
                None => Err(ApiError::internal("the model's thread has ended")),
            },
            () = sleep_until(*deadline) => Err(ApiError::timeout(timeout.as_secs_f64())),
            _ = server_state.wait_for(|state| *state == ServerState::Aborting) => Err(ApiError::shutting_down()),
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        drop(self.queued.take());
    }
}
