//! Messages between pairs of ranks, matched to receivers by ticket.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use weightloom_layout::DType;

use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::Ticket;

/// One message.
#[derive(Debug)]
pub struct Message {
    /// Its dtype.
    pub dtype: DType,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Message {
    /// Copies elements out of the sender's buffer.
    pub fn new(data: Elements<'_>) -> Self {
        Self { dtype: data.dtype(), bytes: data.bytes().to_vec() }
    }

    /// Copies the message into a receiver's buffer of the same dtype and
    /// length. `from` and `to` are for the error.
    pub fn unpack(
        &self,
        mut into: ElementsMut<'_>,
        from: usize,
        to: usize,
        tag: u32,
    ) -> Result<(), GangError> {
        if self.dtype != into.dtype() || self.bytes.len() != into.bytes().len() {
            let sent = format!("{} {}", self.bytes.len() / self.dtype.size(), self.dtype);
            let expected = format!("{} {}", into.len(), into.dtype());
            return Err(GangError::Message { from, to, tag, sent, expected });
        }
        into.bytes_mut().copy_from_slice(&self.bytes);
        Ok(())
    }
}

/// Messages that have been sent and not yet received, for any number of
/// receivers.
#[derive(Debug, Default)]
pub struct Mail {
    boxes: Mutex<FxHashMap<Address, Letterbox>>,
    changed: Condvar,
}

/// Sender, receiver, tag.
type Address = (usize, usize, u32);

/// The n-th message is for the n-th ticket, those given up left out.
#[derive(Debug, Default)]
struct Letterbox {
    posted: u64,
    tickets: u64,
    waiting: FxHashMap<u64, Message>,
    /// Tickets whose holders stopped waiting before a message came.
    given_up: FxHashSet<u64>,
}

impl Mail {
    /// Delivers a message.
    pub fn post(&self, from: usize, to: usize, tag: u32, message: Message) {
        let mut boxes = self.boxes.lock().unwrap_or_else(PoisonError::into_inner);
        let letterbox = boxes.entry((from, to, tag)).or_default();
        while letterbox.given_up.remove(&letterbox.posted) {
            letterbox.posted += 1;
        }
        letterbox.waiting.insert(letterbox.posted, message);
        letterbox.posted += 1;
        self.changed.notify_all();
    }

    /// Reserves the next message for a receiver.
    pub fn ticket(&self, from: usize, to: usize, tag: u32) -> Ticket {
        let mut boxes = self.boxes.lock().unwrap_or_else(PoisonError::into_inner);
        let letterbox = boxes.entry((from, to, tag)).or_default();
        letterbox.tickets += 1;
        Ticket { from, tag, number: letterbox.tickets - 1 }
    }

    /// The message for a ticket, if it has arrived.
    pub fn try_take(&self, to: usize, ticket: &Ticket) -> Option<Message> {
        let mut boxes = self.boxes.lock().unwrap_or_else(PoisonError::into_inner);
        take(&mut boxes, to, ticket)
    }

    /// Waits for the message for a ticket. Gives up, with `None`, at the
    /// deadline or when `hopeless` says that it will not come.
    pub(crate) fn take(
        &self,
        to: usize,
        ticket: &Ticket,
        deadline: Instant,
        hopeless: impl Fn() -> bool,
    ) -> Option<Message> {
        let mut boxes = self.boxes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(message) = take(&mut boxes, to, ticket) {
                return Some(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || hopeless() {
                give_up(&mut boxes, to, ticket);
                return None;
            }
            boxes = self.changed.wait_timeout(boxes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives a ticket back unused: its message will go to the next one.
    pub fn give_up(&self, to: usize, ticket: &Ticket) {
        give_up(&mut self.boxes.lock().unwrap_or_else(PoisonError::into_inner), to, ticket);
    }

    /// Makes receivers look again whether their wait is hopeless.
    pub(crate) fn wake(&self) {
        let _held = self.boxes.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }
}

fn take(boxes: &mut FxHashMap<Address, Letterbox>, to: usize, ticket: &Ticket) -> Option<Message> {
    let address = (ticket.from, to, ticket.tag);
    let letterbox = boxes.get_mut(&address)?;
    let message = letterbox.waiting.remove(&ticket.number)?;
    // Tags may count up without end, so boxes are not kept for later.
    if letterbox.waiting.is_empty() && letterbox.posted == letterbox.tickets {
        boxes.remove(&address);
    }
    Some(message)
}

fn give_up(boxes: &mut FxHashMap<Address, Letterbox>, to: usize, ticket: &Ticket) {
    if let Some(letterbox) = boxes.get_mut(&(ticket.from, to, ticket.tag)) {
        letterbox.given_up.insert(ticket.number);
    }
}
