//! The model's thread.
//!
//! It processes one request at a time. A request that panics gets an error
//! response, and the thread continues: requests never modify the model.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use weightloom_hub::{HubError, TextGenerator};
use weightloom_nn::GenerateRequest;
use weightloom_tensor::memory;

use crate::admission::Admitted;
use crate::api_error::ApiError;
use crate::error::ServeError;
use crate::events::Event;
use crate::request::CompletionRequest;

/// A request in the queue of the model's thread.
pub(crate) struct Job {
    pub(crate) queued: QueuedRequest,
    pub(crate) events: EventSender,
}

/// A request with its permit. Either side may take it: the model's thread to
/// process it, or its connection to cancel it, which frees the permit.
#[derive(Clone)]
pub(crate) struct QueuedRequest(Arc<Mutex<Option<Permitted>>>);

type Permitted = (Arc<CompletionRequest>, Admitted);

impl QueuedRequest {
    pub(crate) fn new(request: Arc<CompletionRequest>, permit: Admitted) -> Self {
        Self(Arc::new(Mutex::new(Some((request, permit)))))
    }

    /// Takes the request, unless it was taken before.
    pub(crate) fn take(&self) -> Option<Permitted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Starts the thread. It ends when the sender is dropped, and then signals the
/// receiver.
pub(crate) fn start(
    generator: Arc<TextGenerator>,
) -> Result<(Sender<Job>, oneshot::Receiver<()>), ServeError> {
    let (jobs, queue) = channel();
    let (ended, end) = oneshot::channel();
    let work = move || {
        process_all(&queue, |request, events| process(&generator, request, events));
        drop(generator);
        let _ = ended.send(());
    };
    let thread = thread::Builder::new().name("model".to_owned()).spawn(work);
    thread.map_err(|error| ServeError::Thread { message: error.to_string() })?;
    Ok((jobs, end))
}

type EventSender = mpsc::Sender<Event>;

/// How long the model waits for a client that does not read its events. The
/// others wait as well, so it is short.
const SLOW_CLIENT: Duration = Duration::from_secs(2);

/// Freed memory that is kept for the next tensors.
const MAX_CACHED_BYTES: usize = 256 << 20;

/// Sends an event, unless the client has left or does not read.
fn send(events: &EventSender, event: Event) -> ControlFlow<()> {
    let mut event = event;
    let waits_until = Instant::now() + SLOW_CLIENT;
    loop {
        event = match events.try_send(event) {
            Ok(()) => return ControlFlow::Continue(()),
            Err(TrySendError::Full(event)) if Instant::now() < waits_until => event,
            Err(_) => return ControlFlow::Break(()),
        };
        thread::sleep(Duration::from_millis(1));
    }
}

fn process_all(
    queue: &Receiver<Job>,
    process: impl Fn(&CompletionRequest, &EventSender) -> Result<(), HubError>,
) {
    while let Ok(Job { queued, events }) = queue.recv() {
        let Some((request, permit)) = queued.take().filter(|_| !events.is_closed()) else { continue };
        let last = match catch_unwind(AssertUnwindSafe(|| process(&request, &events))) {
            Ok(Ok(())) => Event::Done,
            Ok(Err(error)) => Event::Failed(ApiError::from_model(&error, request.endpoint.prompt_field())),
            Err(_) => Event::Failed(ApiError::internal("the model panicked on this request")),
        };
        drop(request);
        // What a long request has freed goes back to the system.
        release_memory();
        // Before the last event, since the client may then send another request.
        drop(permit);
        let _ = send(&events, last);
    }
}

fn process(
    generator: &TextGenerator,
    request: &CompletionRequest,
    events: &EventSender,
) -> Result<(), HubError> {
    // The channel is closed if the client has left, the time is up, or the server stops.
    let check = || {
        release_memory();
        if events.is_closed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if let Some(count) = request.prompt_logprobs() {
        let rows: Vec<&[u32]> = request.prompts.iter().map(|prompt| prompt.tokens.as_slice()).collect();
        let Some(scores) = generator.score_checked(&rows, count, check)? else { return Ok(()) };
        if send(events, Event::Scores(scores)).is_break() {
            return Ok(());
        }
    }
    if request.max_new_tokens == 0 {
        return Ok(());
    }
    let stop = &request.params.stop;
    let request = GenerateRequest {
        prompts: (0..request.rows()).map(|row| request.prompt_of(row).tokens.clone()).collect(),
        max_new_tokens: request.max_new_tokens,
        sampling: request.params.sampling.clone(),
        stop_tokens: Vec::new(),
        top_logprobs: request.top_logprobs,
    };
    generator.generate_checked(&request, stop, check, |token| send(events, Event::Token(token.clone())))?;
    Ok(())
}

fn release_memory() {
    if memory::statistics().cached > MAX_CACHED_BYTES {
        memory::release();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_hub::StopCriteria;
    use weightloom_nn::Sampling;

    use super::*;
    use crate::admission::Admission;
    use crate::generation_params::{GenerationParams, StreamMode};
    use crate::options::ServeOptions;
    use crate::request::Endpoint;

    fn job(max_new_tokens: usize, admission: &Admission) -> (Job, mpsc::Receiver<Event>) {
        let params = GenerationParams {
            n: 1,
            sampling: Sampling::default(),
            stop: StopCriteria::default(),
            stream_mode: StreamMode::Off,
        };
        let request = CompletionRequest {
            endpoint: Endpoint::Chat,
            prompts: Vec::new(),
            max_new_tokens,
            params,
            top_logprobs: None,
        };
        let (sender, events) = mpsc::channel(8);
        let permit = admission.admit(0, "prompt").unwrap();
        (Job { queued: QueuedRequest::new(Arc::new(request), permit), events: sender }, events)
    }

    #[test]
    fn a_panic_gets_an_error_and_the_next_request_is_processed() {
        let options = ServeOptions { max_waiting: 2, ..ServeOptions::new("m") };
        let permits = Admission::new(&options);
        let (jobs, queue) = channel();
        let mut receivers = Vec::new();
        let (abandoned, _) = job(2, &permits);
        for (job, events) in [job(1, &permits), job(0, &permits)] {
            jobs.send(job).unwrap();
            receivers.push(events);
        }
        jobs.send(abandoned).unwrap();
        drop(jobs);
        let process = |request: &CompletionRequest, _: &EventSender| match request.max_new_tokens {
            0 => Ok(()),
            1 => panic!("as expected"),
            _ => unreachable!("the request was cancelled"),
        };
        process_all(&queue, process);
        let describe = |event: Option<Event>| match event {
            Some(Event::Failed(error)) => error.message().to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(describe(receivers[0].blocking_recv()), "the model panicked on this request");
        assert_eq!(describe(receivers[1].blocking_recv()), "Some(Done)");
        let places: Vec<_> = (0..3).map(|_| permits.admit(0, "prompt")).collect();
        assert!(places.iter().all(Result::is_ok), "all places are free again");
    }
}
