//! Uploading files that several ranks hold parts of.
//!
//! An object cannot be written by two ranks. So each file has one rank that
//! uploads it, and the others send it their bytes in the order of the file.
//! They do so in rounds, which bounds the memory for bytes in flight and lets
//! all ranks stop when one of them fails.

use std::borrow::Cow;

use weightloom_gang::{Gang, GangExt};

use super::batch::WriteChunk;
use super::open_target::ObjectFiles;
use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::observer::Observer;

/// Bytes of each uploader's files that are sent in one round, about.
const ROUND: u64 = 64 << 20;

/// The tag of messages with bytes to upload.
const TAG: u32 = 0x5d21_0000;

/// A chunk of a file and the rank that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Scheduled {
    file: usize,
    offset: u64,
    rank: usize,
    /// The number of the chunk among those of its rank.
    number: usize,
    length: u64,
}

/// Uploads all shared files. `chunks` are this rank's, in the order of the
/// files. Every rank.
pub(super) fn upload_shared(
    files: ObjectFiles<'_>,
    chunks: &[WriteChunk<'_>],
    sums: &ChunkSums,
    gang: &dyn Gang,
    observer: &dyn Observer,
) -> Result<(), CheckpointError> {
    let (rank, world) = (gang.rank(), gang.size());
    let schedule = schedule(chunks, gang)?;
    let mut writer = files.writer((0..files.len()).filter(|file| file % world == rank));
    let mut received = Vec::new();
    let mut open: Vec<&[Scheduled]> = schedule.iter().map(Vec::as_slice).collect();
    while open.iter().any(|rest| !rest.is_empty()) {
        let mut uploaded = Ok(());
        // Sending never waits, so all sends come before the first receive.
        let mut own_round: &[Scheduled] = &[];
        for (uploader, rest) in open.iter_mut().enumerate() {
            let (round, later) = rest.split_at(round_length(rest));
            *rest = later;
            if uploader == rank {
                own_round = round;
                continue;
            }
            for chunk in round.iter().filter(|chunk| chunk.rank == rank) {
                let chunk = &chunks[chunk.number];
                let bytes = host_bytes(chunk, &mut uploaded);
                sums.add_run(chunk.name, chunk.position, &bytes);
                gang.send_slice(&bytes, uploader, TAG)?;
                observer.advance(bytes.len() as u64);
            }
        }
        for &Scheduled { file, offset, rank: holder, number, length } in own_round {
            let bytes = if holder == rank {
                let chunk = &chunks[number];
                let bytes = host_bytes(chunk, &mut uploaded);
                sums.add_run(chunk.name, chunk.position, &bytes);
                observer.advance(length);
                bytes
            } else {
                received.resize(length as usize, 0);
                gang.recv(&mut received, holder, TAG)?;
                Cow::Borrowed(&received[..])
            };
            // After a failure, the rest of the round is received and dropped.
            uploaded = uploaded.and_then(|()| writer.write(file, offset, &bytes));
        }
        collective_result(gang, uploaded)?;
    }
    collective_result(gang, writer.finish())
}

/// The bytes of a chunk. If its device fails, zeros, so that the others still receive
/// what they wait for; the round ends with the error.
fn host_bytes<'a>(chunk: &WriteChunk<'a>, outcome: &mut Result<(), CheckpointError>) -> Cow<'a, [u8]> {
    chunk.bytes.to_host().unwrap_or_else(|error| {
        if outcome.is_ok() {
            *outcome = Err(error.into());
        }
        Cow::Owned(vec![0; chunk.bytes.len()])
    })
}

/// Every uploader's chunks, in the order of its files.
fn schedule(chunks: &[WriteChunk<'_>], gang: &dyn Gang) -> Result<Vec<Vec<Scheduled>>, CheckpointError> {
    let own: Vec<(usize, u64, u64)> =
        chunks.iter().map(|chunk| (chunk.file, chunk.offset, chunk.bytes.len() as u64)).collect();
    let mut schedule = vec![Vec::new(); gang.size()];
    for (rank, theirs) in gang.all_gather_objects(&own)?.into_iter().enumerate() {
        for (number, (file, offset, length)) in theirs.into_iter().enumerate() {
            schedule[file % gang.size()].push(Scheduled { file, offset, rank, number, length });
        }
    }
    schedule.iter_mut().for_each(|chunks| chunks.sort_unstable());
    Ok(schedule)
}

/// How many of the chunks make up one round; at least one, if there are any.
fn round_length(chunks: &[Scheduled]) -> usize {
    let mut bytes = 0;
    let full = chunks.iter().position(|chunk| {
        let is_full = bytes >= ROUND;
        bytes += chunk.length;
        is_full
    });
    full.unwrap_or(chunks.len())
}
