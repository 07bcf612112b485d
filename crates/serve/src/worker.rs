//! The thread on which the model works.
//!
//! It takes one request after the other. A request that panics is answered
//! with an error, and the next one is taken: the model itself is never changed
//! by a request.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use weightloom_hub::{HubError, WriteRequest, Writer};

use crate::ask::Ask;
use crate::error::ServeError;
use crate::events::Event;
use crate::refusal::Refusal;

/// One request, for the model.
pub(crate) struct Job {
    pub(crate) order: Order,
    pub(crate) tell: mpsc::UnboundedSender<Event>,
}

/// What is asked, and its place among those that wait. Whoever asked may take
/// it back: what is left in the queue then is empty, and the place is free.
#[derive(Clone)]
pub(crate) struct Order(Arc<Mutex<Option<Placed>>>);

type Placed = (Arc<Ask>, OwnedSemaphorePermit);

impl Order {
    pub(crate) fn new(ask: Arc<Ask>, place: OwnedSemaphorePermit) -> Self {
        Self(Arc::new(Mutex::new(Some((ask, place)))))
    }

    /// What is asked, unless it was taken already.
    pub(crate) fn take(&self) -> Option<Placed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Starts the thread. It ends when nobody can send any more, which the second
/// result hears of. How many jobs wait is limited by their places.
pub(crate) fn start(writer: Arc<Writer>) -> Result<(Sender<Job>, oneshot::Receiver<()>), ServeError> {
    let (jobs, queue) = channel();
    let (ended, end) = oneshot::channel();
    let work = move || {
        take_all(&queue, |ask, tell| perform(&writer, ask, tell));
        drop(writer);
        let _ = ended.send(());
    };
    let thread = thread::Builder::new().name("model".to_owned()).spawn(work);
    thread.map_err(|error| ServeError::Thread { message: error.to_string() })?;
    Ok((jobs, end))
}

type Tell = mpsc::UnboundedSender<Event>;

fn take_all(queue: &Receiver<Job>, perform: impl Fn(&Ask, &Tell) -> Result<(), HubError>) {
    while let Ok(Job { order, tell }) = queue.recv() {
        let Some((ask, place)) = order.take().filter(|_| !tell.is_closed()) else { continue };
        let last = match catch_unwind(AssertUnwindSafe(|| perform(&ask, &tell))) {
            Ok(Ok(())) => Event::Done,
            Ok(Err(error)) => Event::Failed(Refusal::of_model(&error, ask.form.prompt_field())),
            Err(_) => Event::Failed(Refusal::failed("the model panicked over this request")),
        };
        // Who hears of the end may ask again at once.
        drop(place);
        let _ = tell.send(last);
    }
}

fn perform(writer: &Writer, ask: &Ask, tell: &Tell) -> Result<(), HubError> {
    if let Some(count) = ask.scored() {
        let rows: Vec<&[u32]> = ask.prompts.iter().map(|prompt| prompt.tokens.as_slice()).collect();
        let scores = writer.score(&rows, count)?;
        if tell.send(Event::Scores(scores)).is_err() {
            return Ok(());
        }
    }
    if ask.max_new_tokens == 0 {
        return Ok(());
    }
    let request = WriteRequest {
        prompts: (0..ask.rows()).map(|row| ask.prompt_of(row).tokens.clone()).collect(),
        max_new_tokens: ask.max_new_tokens,
        sampling: ask.manner.sampling.clone(),
        stop: ask.manner.stop.clone(),
        ends: ask.manner.ends,
        likeliest: ask.likeliest,
    };
    writer.write(&request, |piece| match tell.send(Event::Piece(piece.clone())) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use tokio::sync::Semaphore;
    use weightloom_hub::Ends;
    use weightloom_nn::Sampling;

    use super::*;
    use crate::ask::Form;
    use crate::manner::{Delivery, Manner};

    fn job(max_new_tokens: usize, places: &Arc<Semaphore>) -> (Job, mpsc::UnboundedReceiver<Event>) {
        let manner = Manner {
            copies: 1,
            sampling: Sampling::default(),
            stop: Vec::new(),
            ends: Ends::Heeded,
            delivery: Delivery::Whole,
        };
        let ask = Ask { form: Form::Chat, prompts: Vec::new(), max_new_tokens, manner, likeliest: None };
        let (tell, events) = mpsc::unbounded_channel();
        let place = Arc::clone(places).try_acquire_owned().unwrap();
        (Job { order: Order::new(Arc::new(ask), place), tell }, events)
    }

    #[test]
    fn a_panic_is_an_answer_and_the_next_request_is_taken() {
        let places = Arc::new(Semaphore::new(3));
        let (jobs, queue) = channel();
        let mut heard = Vec::new();
        let (abandoned, _) = job(2, &places);
        for (job, events) in [job(1, &places), job(0, &places)] {
            jobs.send(job).unwrap();
            heard.push(events);
        }
        jobs.send(abandoned).unwrap();
        drop(jobs);
        let perform = |ask: &Ask, _: &Tell| match ask.max_new_tokens {
            0 => Ok(()),
            1 => panic!("as expected"),
            _ => unreachable!("nobody listens"),
        };
        take_all(&queue, perform);
        let told = |event: Option<Event>| match event {
            Some(Event::Failed(refusal)) => refusal.message().to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(told(heard[0].blocking_recv()), "the model panicked over this request");
        assert_eq!(told(heard[1].blocking_recv()), "Some(Done)");
        assert_eq!(places.available_permits(), 3);
    }
}
