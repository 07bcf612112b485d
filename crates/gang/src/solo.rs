//! The gang of one rank.

use std::sync::Arc;

use crate::call::{Call, Transfer};
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, Job, Lane, Ticket, check_sub_gang};
use crate::mail::{Mail, Message};
use crate::options::GangOptions;
use crate::pending::Queued;

/// Creates a gang of one rank.
///
/// Collectives copy their buffers, and messages that the rank sends to itself
/// arrive.
pub fn solo(options: GangOptions) -> Arc<dyn Gang> {
    Arc::new(Queued::new(Solo { mail: Mail::default(), options }))
}

struct Solo {
    mail: Mail,
    options: GangOptions,
}

fn check_rank(rank: usize) -> Result<(), GangError> {
    if rank == 0 { Ok(()) } else { Err(GangError::NoSuchRank { rank, size: 1 }) }
}

impl Gang for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn engine(&self) -> &'static str {
        "solo"
    }

    fn members(&self) -> &[usize] {
        &[0]
    }

    fn run(&self, call: Call<'_>) -> Result<(), GangError> {
        let name = call.signature().name();
        match call.into_transfer() {
            // The sum, mean, product and extremes of a single value are itself.
            Transfer::None | Transfer::AllReduce { .. } | Transfer::Broadcast { .. } => Ok(()),
            Transfer::AllReduceInto { send, mut recv, .. }
            | Transfer::AllGather { send, mut recv, .. }
            | Transfer::ReduceScatter { send, mut recv, .. }
            | Transfer::Exchange { send, mut recv, .. } => {
                if send.len() != recv.len() {
                    let (sent, expected) = (send.len(), recv.len());
                    return Err(GangError::CountMismatch { call: name, from: 0, to: 0, sent, expected });
                }
                recv.bytes_mut().copy_from_slice(send.bytes());
                Ok(())
            }
        }
    }

    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
        check_rank(to)?;
        self.mail.post(0, 0, tag, Message::new(data));
        Ok(())
    }

    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError> {
        check_rank(from)?;
        Ok(self.mail.ticket(from, 0, tag))
    }

    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError> {
        check_rank(ticket.from)?;
        match self.mail.take(0, &ticket, self.options.deadline(), || false) {
            Some(message) => message.unpack(into, 0, 0, ticket.tag),
            None => Err(GangError::Timeout {
                ranks: vec![0],
                call: format!("a message under tag {}", ticket.tag),
                after: self.options.timeout,
            }),
        }
    }

    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
        check_sub_gang(0, 1, ranks)?;
        Ok(solo(self.options))
    }

    fn defer(&self, _lane: Lane, job: Job) {
        job(self);
    }
}
