//! Point-to-point messages, matched to receivers by ticket.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};
use weightloom_layout::DType;

use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::Ticket;

/// A point-to-point message.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Message {
    pub dtype: DType,
    pub bytes: Vec<u8>,
}

impl Message {
    /// Copies elements out of the sender's buffer.
    pub fn new(data: Elements<'_>) -> Self {
        Self { dtype: data.dtype(), bytes: data.bytes().to_vec() }
    }

    /// Copies the message into a buffer of the same dtype and length. `from`,
    /// `to` and `tag` appear in the error.
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

/// Messages that have been sent and not yet received, of any number of ranks.
#[derive(Debug, Default)]
pub struct Mail {
    mailboxes: Mutex<FxHashMap<Address, Mailbox>>,
    changed: Condvar,
}

/// Sender, receiver, tag.
type Address = (usize, usize, u32);

/// The messages for one address. The n-th message is for the n-th ticket that
/// was not given up.
#[derive(Debug, Default)]
struct Mailbox {
    posted: u64,
    tickets: u64,
    waiting: FxHashMap<u64, Message>,
    /// Tickets whose receivers stopped waiting before a message arrived.
    given_up: FxHashSet<u64>,
}

impl Mail {
    /// Delivers a message.
    pub fn post(&self, from: usize, to: usize, tag: u32, message: Message) {
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let mailbox = mailboxes.entry((from, to, tag)).or_default();
        while mailbox.given_up.remove(&mailbox.posted) {
            mailbox.posted += 1;
        }
        mailbox.waiting.insert(mailbox.posted, message);
        mailbox.posted += 1;
        self.changed.notify_all();
    }

    /// Reserves the next message for a receiver.
    pub fn ticket(&self, from: usize, to: usize, tag: u32) -> Ticket {
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        let mailbox = mailboxes.entry((from, to, tag)).or_default();
        mailbox.tickets += 1;
        Ticket { from, tag, number: mailbox.tickets - 1 }
    }

    /// Returns the message of a ticket if it has arrived.
    pub fn try_take(&self, to: usize, ticket: &Ticket) -> Option<Message> {
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        take(&mut mailboxes, to, ticket)
    }

    /// Waits for the message of a ticket until the deadline, or until
    /// `is_hopeless` returns true.
    pub(crate) fn take(
        &self,
        to: usize,
        ticket: &Ticket,
        deadline: Instant,
        is_hopeless: impl Fn() -> bool,
    ) -> Option<Message> {
        let mut mailboxes = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(message) = take(&mut mailboxes, to, ticket) {
                return Some(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || is_hopeless() {
                give_up(&mut mailboxes, to, ticket);
                return None;
            }
            mailboxes = self.changed.wait_timeout(mailboxes, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns an unused ticket. Its message goes to the next one.
    pub fn give_up(&self, to: usize, ticket: &Ticket) {
        give_up(&mut self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner), to, ticket);
    }

    /// Wakes receivers so that they check again whether their wait is hopeless.
    pub(crate) fn wake(&self) {
        let _held = self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.notify_all();
    }
}

fn take(mailboxes: &mut FxHashMap<Address, Mailbox>, to: usize, ticket: &Ticket) -> Option<Message> {
    let address = (ticket.from, to, ticket.tag);
    let mailbox = mailboxes.get_mut(&address)?;
    let message = mailbox.waiting.remove(&ticket.number)?;
    // Tags may count up without end, so empty mailboxes are removed.
    if mailbox.waiting.is_empty() && mailbox.posted == mailbox.tickets {
        mailboxes.remove(&address);
    }
    Some(message)
}

fn give_up(mailboxes: &mut FxHashMap<Address, Mailbox>, to: usize, ticket: &Ticket) {
    if let Some(mailbox) = mailboxes.get_mut(&(ticket.from, to, ticket.tag)) {
        mailbox.given_up.insert(ticket.number);
    }
}
