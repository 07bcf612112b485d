//! The model's thread.
//!
//! It processes one request at a time. A request that panics gets an error
//! response, and the thread continues: requests never modify the model.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use weightloom_hub::{HubError, TextGenerator};
use weightloom_nn::GenerateRequest;

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

type Permitted = (Arc<CompletionRequest>, OwnedSemaphorePermit);

impl QueuedRequest {
    pub(crate) fn new(request: Arc<CompletionRequest>, permit: OwnedSemaphorePermit) -> Self {
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

type EventSender = mpsc::UnboundedSender<Event>;

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
        // Before the last event, since the client may then send another request.
        drop(permit);
        let _ = events.send(last);
    }
}

fn process(
    generator: &TextGenerator,
    request: &CompletionRequest,
    events: &EventSender,
) -> Result<(), HubError> {
    if let Some(count) = request.prompt_logprobs() {
        let rows: Vec<&[u32]> = request.prompts.iter().map(|prompt| prompt.tokens.as_slice()).collect();
        let scores = generator.score(&rows, count)?;
        if events.send(Event::Scores(scores)).is_err() {
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
    generator.generate(&request, stop, |token| match events.send(Event::Token(token.clone())) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use tokio::sync::Semaphore;
    use weightloom_hub::StopCriteria;
    use weightloom_nn::Sampling;

    use super::*;
    use crate::generation_params::{GenerationParams, StreamMode};
    use crate::request::Endpoint;

    fn job(max_new_tokens: usize, permits: &Arc<Semaphore>) -> (Job, mpsc::UnboundedReceiver<Event>) {
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
        let (sender, events) = mpsc::unbounded_channel();
        let permit = Arc::clone(permits).try_acquire_owned().unwrap();
        (Job { queued: QueuedRequest::new(Arc::new(request), permit), events: sender }, events)
    }

    #[test]
    fn a_panic_gets_an_error_and_the_next_request_is_processed() {
        let permits = Arc::new(Semaphore::new(3));
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
        assert_eq!(permits.available_permits(), 3);
    }
}
