//! The MPI calls we use, behind types that keep their promises.
//!
//! MPI is initialised for use from several threads before any [`Comm`] exists
//! and stays so while one does. Errors inside MPI end the job with MPI's own
//! message (its default error handler), so return codes carry no news.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use mpi::ffi;

/// A communicator: ranks, and a space of messages of their own.
pub(crate) struct Comm {
    raw: ffi::MPI_Comm,
    rank: usize,
    size: usize,
}

// SAFETY: a communicator is a handle to state inside MPI, which was initialised
// with MPI_THREAD_MULTIPLE and locks for itself.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// What a message is for; one tag each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Channel {
    /// Messages that users send.
    Mail = 1,
    /// Reports to and verdicts from the neighbours in the agreement tree.
    Agree = 2,
    /// Data of collectives.
    Collective = 3,
    /// Agreements about forming a sub-gang.
    Form = 4,
}

/// Counts of MPI calls are `int`s.
pub(crate) const MAX_COUNT: usize = c_int::MAX as usize;

fn int(count: usize) -> c_int {
    c_int::try_from(count).expect("callers keep counts below MAX_COUNT")
}

/// A send that MPI may not have finished reading.
pub(crate) struct Outgoing {
    request: ffi::MPI_Request,
    /// Kept alive and unmoved until the request is complete.
    bytes: Vec<u8>,
}

// SAFETY: a request is a handle into MPI like a communicator.
unsafe impl Send for Outgoing {}

/// A message that has been matched and must now be received.
pub(crate) struct Incoming {
    message: ffi::MPI_Message,
    /// The sender.
    pub(crate) from: usize,
    length: usize,
}

impl Comm {
    /// A communicator of all processes that is ours alone.
    pub(crate) fn world() -> Self {
        let mut raw = MaybeUninit::uninit();
        // SAFETY: MPI is initialised; MPI_Comm_dup writes the new handle.
        let raw = unsafe {
            ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, raw.as_mut_ptr());
            raw.assume_init()
        };
        Self::of(raw)
    }

    fn of(raw: ffi::MPI_Comm) -> Self {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: `raw` is a valid communicator; both calls write an int.
        unsafe {
            ffi::MPI_Comm_rank(raw, &raw mut rank);
            ffi::MPI_Comm_size(raw, &raw mut size);
        }
        Self { raw, rank: rank as usize, size: size as usize }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The communicator of some of the ranks, in the order listed; called by
    /// exactly those. It is never freed: gangs are few and live long, and
    /// freeing needs all ranks to agree on the moment.
    pub(crate) fn subset(&self, ranks: &[usize]) -> Self {
        let listed: Vec<c_int> = ranks.iter().map(|&rank| int(rank)).collect();
        let mut whole = MaybeUninit::uninit();
        let mut part = MaybeUninit::uninit();
        let mut raw = MaybeUninit::uninit();
        // SAFETY: every handle is written by the call before the one that
        // reads it, and `listed` outlives the call that reads it.
        let raw = unsafe {
            ffi::MPI_Comm_group(self.raw, whole.as_mut_ptr());
            ffi::MPI_Group_incl(whole.assume_init(), int(listed.len()), listed.as_ptr(), part.as_mut_ptr());
            ffi::MPI_Comm_create_group(
                self.raw,
                part.assume_init(),
                Channel::Form as c_int,
                raw.as_mut_ptr(),
            );
            ffi::MPI_Group_free(part.as_mut_ptr());
            ffi::MPI_Group_free(whole.as_mut_ptr());
            raw.assume_init()
        };
        Self::of(raw)
    }

    /// Begins a send.
    ///
    /// # Safety
    ///
    /// The bytes stay where they are, unchanged, until the request is complete.
    unsafe fn begin_send(&self, bytes: &[u8], to: usize, channel: Channel) -> ffi::MPI_Request {
        let mut request = MaybeUninit::uninit();
        // SAFETY: MPI_Isend writes the request; the bytes are the caller's
        // promise.
        unsafe {
            ffi::MPI_Isend(
                bytes.as_ptr().cast(),
                int(bytes.len()),
                ffi::RSMPI_UINT8_T,
                int(to),
                channel as c_int,
                self.raw,
                request.as_mut_ptr(),
            );
            request.assume_init()
        }
    }

    /// Hands bytes to MPI, which sends them in its own time.
    pub(crate) fn send(&self, bytes: Vec<u8>, to: usize, channel: Channel) -> Outgoing {
        // SAFETY: the bytes live in the returned value, which does not give
        // them up before the request is complete.
        let request = unsafe { self.begin_send(&bytes, to, channel) };
        Outgoing { request, bytes }
    }

    /// Sends a few bytes at once. MPI buffers messages this short.
    pub(crate) fn send_short(&self, bytes: &[u8], to: usize, channel: Channel) {
        // SAFETY: the call returns when the bytes may be reused.
        unsafe {
            ffi::MPI_Send(
                bytes.as_ptr().cast(),
                int(bytes.len()),
                ffi::RSMPI_UINT8_T,
                int(to),
                channel as c_int,
                self.raw,
            );
        }
    }

    /// A message from a rank, or from any, if one has come.
    pub(crate) fn poll(&self, from: Option<usize>, channel: Channel) -> Option<Incoming> {
        let mut found = 0;
        let mut message = MaybeUninit::uninit();
        let mut status = MaybeUninit::<ffi::MPI_Status>::uninit();
        let mut length = 0;
        // SAFETY: MPI_Improbe writes message and status if it sets `found`,
        // and only then are they read.
        unsafe {
            let source = from.map_or(ffi::RSMPI_ANY_SOURCE, int);
            ffi::MPI_Improbe(
                source,
                channel as c_int,
                self.raw,
                &raw mut found,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            );
            if found == 0 {
                return None;
            }
            let status = status.assume_init();
            ffi::MPI_Get_count(&raw const status, ffi::RSMPI_UINT8_T, &raw mut length);
            Some(Incoming {
                message: message.assume_init(),
                from: status.MPI_SOURCE as usize,
                length: length as usize,
            })
        }
    }

    /// Sends and receives at once, in whatever order MPI manages, and waits
    /// for all of it. Ranks pair up: what one sends another, that one receives.
    /// Messages longer than `limit` go in pieces.
    pub(crate) fn trade(&self, sends: &[(usize, &[u8])], recvs: &mut [(usize, &mut [u8])], limit: usize) {
        let mut requests: Vec<ffi::MPI_Request> = Vec::with_capacity(sends.len() + recvs.len());
        for (from, into) in recvs.iter_mut() {
            for piece in into.chunks_mut(limit) {
                let mut request = MaybeUninit::uninit();
                // SAFETY: `piece` is borrowed until this function returns,
                // which is after MPI_Waitall.
                requests.push(unsafe {
                    ffi::MPI_Irecv(
                        piece.as_mut_ptr().cast(),
                        int(piece.len()),
                        ffi::RSMPI_UINT8_T,
                        int(*from),
                        Channel::Collective as c_int,
                        self.raw,
                        request.as_mut_ptr(),
                    );
                    request.assume_init()
                });
            }
        }
        for (to, bytes) in sends {
            for piece in bytes.chunks(limit) {
                // SAFETY: as above.
                requests.push(unsafe { self.begin_send(piece, *to, Channel::Collective) });
            }
        }
        // SAFETY: the requests are valid and their buffers alive.
        unsafe {
            ffi::MPI_Waitall(int(requests.len()), requests.as_mut_ptr(), ffi::RSMPI_STATUSES_IGNORE);
        }
    }

    /// MPI's own all-gather. `counts` are bytes per rank and sum to no more
    /// than [`MAX_COUNT`].
    pub(crate) fn all_gather(&self, send: &[u8], counts: &[usize], recv: &mut [u8]) {
        let mut offset = 0;
        let mut offsets = Vec::with_capacity(counts.len());
        for &count in counts {
            offsets.push(int(offset));
            offset += count;
        }
        assert!(counts.len() == self.size && offset == recv.len() && counts[self.rank] == send.len());
        let counts: Vec<c_int> = counts.iter().map(|&count| int(count)).collect();
        // SAFETY: lengths were just compared; MPI writes only inside `recv`.
        unsafe {
            ffi::MPI_Allgatherv(
                send.as_ptr().cast(),
                int(send.len()),
                ffi::RSMPI_UINT8_T,
                recv.as_mut_ptr().cast(),
                counts.as_ptr(),
                offsets.as_ptr(),
                ffi::RSMPI_UINT8_T,
                self.raw,
            );
        }
    }

    /// MPI's own broadcast, in pieces of at most `limit` bytes.
    pub(crate) fn broadcast(&self, bytes: &mut [u8], root: usize, limit: usize) {
        for piece in bytes.chunks_mut(limit) {
            // SAFETY: MPI reads or writes exactly `piece`.
            unsafe {
                ffi::MPI_Bcast(
                    piece.as_mut_ptr().cast(),
                    int(piece.len()),
                    ffi::RSMPI_UINT8_T,
                    int(root),
                    self.raw,
                );
            }
        }
    }
}

impl Incoming {
    /// Receives the message.
    pub(crate) fn bytes(mut self) -> Vec<u8> {
        let mut bytes = vec![0u8; self.length];
        // SAFETY: the message was matched, is received once because `self` is
        // consumed, and has exactly this length.
        unsafe {
            ffi::MPI_Mrecv(
                bytes.as_mut_ptr().cast(),
                int(bytes.len()),
                ffi::RSMPI_UINT8_T,
                &raw mut self.message,
                ffi::RSMPI_STATUS_IGNORE,
            );
        }
        bytes
    }
}

impl Outgoing {
    /// Whether MPI is done with the bytes.
    pub(crate) fn is_done(&mut self) -> bool {
        let mut done = 0;
        // SAFETY: the request is valid; a completed one is set to the null
        // request, for which MPI_Test succeeds at once.
        unsafe {
            ffi::MPI_Test(&raw mut self.request, &raw mut done, ffi::RSMPI_STATUS_IGNORE);
        }
        done != 0
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let done = enter().is_some_and(|_entered| self.is_done());
        if !done {
            // MPI may still read the bytes. Losing a little memory is the safe
            // way out; this happens only when a job is torn down.
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// Held for reading while MPI is used, and closed for good when it is
/// finalised: MPI must not be called after that, and it is one per process.
static GATE: RwLock<Gate> = RwLock::new(Gate::Open);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Closed,
}

/// The right to call MPI.
pub(crate) struct Entered(
    #[expect(dead_code, reason = "held for its effect")] RwLockReadGuard<'static, Gate>,
);

/// Asks for the right to call MPI. `None` once the job has ended.
pub(crate) fn enter() -> Option<Entered> {
    let gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    (*gate == Gate::Open).then_some(Entered(gate))
}

/// Waits until nobody is inside MPI and lets nobody in any more.
pub(crate) fn close() {
    *GATE.write().unwrap_or_else(PoisonError::into_inner) = Gate::Closed;
}

/// Ends every process of the job from anywhere, such as a panic hook.
pub(crate) fn abort_job(code: i32) -> ! {
    // SAFETY: called only while MPI is initialised.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
    std::process::abort()
}

/// Whether MPI can be called: after it was initialised, before it was
/// finalised.
pub(crate) fn is_running() -> bool {
    let (mut begun, mut over) = (0, 0);
    // SAFETY: both may be called at any time.
    unsafe {
        ffi::MPI_Initialized(&raw mut begun);
        ffi::MPI_Finalized(&raw mut over);
    }
    begun != 0 && over == 0
}
