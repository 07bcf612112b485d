//! Safe wrappers of the MPI calls we use.
//!
//! MPI is initialised with thread support before any [`Comm`] exists and stays
//! so while one does. Errors inside MPI end the job with MPI's own message (its
//! default error handler), so return codes carry no information.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use mpi::ffi;

/// A communicator.
pub(crate) struct Comm {
    raw: ffi::MPI_Comm,
    rank: usize,
    size: usize,
}

// SAFETY: a communicator is a handle to state inside MPI, which was initialised
// with MPI_THREAD_MULTIPLE and does its own locking.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// The purpose of a message, as an MPI tag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Channel {
    /// Messages that users send.
    Mail = 1,
    /// Reports to and results from neighbours in the agreement tree.
    Agree = 2,
    /// Data of collectives.
    Collective = 3,
    /// Agreements about forming a sub-gang.
    Form = 4,
    /// Questions what a rank does.
    Ask = 5,
    /// Answers to them.
    Answer = 6,
}

/// Limit of counts in MPI calls, which are `int`s.
pub(crate) const MAX_COUNT: usize = c_int::MAX as usize;

fn int(count: usize) -> c_int {
    c_int::try_from(count).expect("callers keep counts below MAX_COUNT")
}

/// A send whose buffer MPI may still read.
pub(crate) struct Outgoing {
    request: ffi::MPI_Request,
    /// Must not move or be freed until the request is complete.
    bytes: Vec<u8>,
}

// SAFETY: a request is a handle into MPI like a communicator.
unsafe impl Send for Outgoing {}

/// A matched message that has not been received.
pub(crate) struct Incoming {
    message: ffi::MPI_Message,
    /// The sender.
    pub(crate) from: usize,
    length: usize,
}

impl Comm {
    /// Duplicates the communicator of all processes.
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

    /// Creates a communicator of the listed ranks, in this order; exactly those
    /// call this. It is never freed: gangs are few and long-lived, and freeing
    /// is a collective call.
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

    /// Starts a send.
    ///
    /// # Safety
    ///
    /// The bytes must stay in place, unchanged, until the request is complete.
    unsafe fn begin_send(&self, bytes: &[u8], to: usize, channel: Channel) -> ffi::MPI_Request {
        let mut request = MaybeUninit::uninit();
        // SAFETY: MPI_Isend writes the request; the caller guarantees the bytes.
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

    /// Starts a send that MPI completes in the background.
    pub(crate) fn send(&self, bytes: Vec<u8>, to: usize, channel: Channel) -> Outgoing {
        // SAFETY: the returned value owns the bytes and keeps them until the
        // request is complete.
        let request = unsafe { self.begin_send(&bytes, to, channel) };
        Outgoing { request, bytes }
    }

    /// Sends a short message, which MPI buffers.
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

    /// Returns a message from a rank, or from any rank, if one has arrived.
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

    /// Sends and receives concurrently and waits for all of it. Every send needs
    /// a matching receive on its peer. Splits messages longer than `limit`.
    pub(crate) fn exchange(&self, sends: &[(usize, &[u8])], recvs: &mut [(usize, &mut [u8])], limit: usize) {
        let mut requests: Vec<ffi::MPI_Request> = Vec::with_capacity(sends.len() + recvs.len());
        for (from, into) in recvs.iter_mut() {
            for chunk in into.chunks_mut(limit) {
                let mut request = MaybeUninit::uninit();
                // SAFETY: `chunk` is borrowed until this function returns,
                // which is after MPI_Waitall.
                requests.push(unsafe {
                    ffi::MPI_Irecv(
                        chunk.as_mut_ptr().cast(),
                        int(chunk.len()),
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
            for chunk in bytes.chunks(limit) {
                // SAFETY: as above.
                requests.push(unsafe { self.begin_send(chunk, *to, Channel::Collective) });
            }
        }
        // SAFETY: the requests are valid and their buffers alive.
        unsafe {
            ffi::MPI_Waitall(int(requests.len()), requests.as_mut_ptr(), ffi::RSMPI_STATUSES_IGNORE);
        }
    }

    /// `MPI_Allgatherv`. `counts` are bytes per rank and sum to at most
    /// [`MAX_COUNT`].
    pub(crate) fn all_gather(&self, send: &[u8], counts: &[usize], recv: &mut [u8]) {
        let mut offset = 0;
        let mut offsets = Vec::with_capacity(counts.len());
        for &count in counts {
            offsets.push(int(offset));
            offset += count;
        }
        assert!(counts.len() == self.size && offset == recv.len() && counts[self.rank] == send.len());
        let counts: Vec<c_int> = counts.iter().map(|&count| int(count)).collect();
        // SAFETY: the lengths match, so MPI writes only inside `recv`.
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

    /// `MPI_Bcast`, in chunks of at most `limit` bytes.
    pub(crate) fn broadcast(&self, bytes: &mut [u8], root: usize, limit: usize) {
        for chunk in bytes.chunks_mut(limit) {
            // SAFETY: MPI reads or writes exactly `chunk`.
            unsafe {
                ffi::MPI_Bcast(
                    chunk.as_mut_ptr().cast(),
                    int(chunk.len()),
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
    /// Whether MPI has finished reading the bytes.
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
            // MPI may still read the bytes. Leak them; this happens only when a
            // job is torn down.
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// Held for reading during MPI calls, and closed for good when MPI is
/// finalised: there is one MPI per process, and no call may follow.
static GATE: RwLock<Gate> = RwLock::new(Gate::Open);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Closed,
}

/// Permission to call MPI.
pub(crate) struct Entered(
    #[expect(dead_code, reason = "held for its effect")] RwLockReadGuard<'static, Gate>,
);

/// Asks for permission to call MPI. `None` after the job has ended.
pub(crate) fn enter() -> Option<Entered> {
    let gate = GATE.read().unwrap_or_else(PoisonError::into_inner);
    (*gate == Gate::Open).then_some(Entered(gate))
}

/// Waits for running MPI calls and prevents new ones.
pub(crate) fn close() {
    *GATE.write().unwrap_or_else(PoisonError::into_inner) = Gate::Closed;
}

/// Ends every process of the job. May be called from a panic hook.
pub(crate) fn abort_job(code: i32) -> ! {
    // SAFETY: called only while MPI is initialised.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
    std::process::abort()
}

/// Whether MPI is initialised and not yet finalised.
pub(crate) fn is_running() -> bool {
    let (mut begun, mut over) = (0, 0);
    // SAFETY: both may be called at any time.
    unsafe {
        ffi::MPI_Initialized(&raw mut begun);
        ffi::MPI_Finalized(&raw mut over);
    }
    begun != 0 && over == 0
}
