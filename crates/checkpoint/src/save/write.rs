//! What a rank writes: exchanged, staged, written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weightloom_gang::{Gang, Redistributor};
use weightloom_layout::{DType, Plan, Prices, plan};

use super::SaveOptions;
use super::stream::Stream;
use super::target::OpenTarget;
use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::observer::Observer;
use crate::plan::{PlanError, Redistribution, SavePlan, SavePlanner, WriteData, WriteItem};
use crate::state::{Bytes, Content, State};

/// Bytes that are hashed and written at once: little enough to be still in the
/// cache when they are written.
const STRETCH: usize = 512 << 10;

/// Tensors in the layout that they are written from.
pub(super) type Exchanged = BTreeMap<String, Vec<u8>>;

/// Carries out the plan's redistributions. Every rank. What this rank does not write
/// afterwards is not kept.
pub(super) fn exchange(
    plan: &SavePlan,
    state: &State<'_>,
    gang: &Arc<dyn Gang>,
) -> Result<Exchanged, CheckpointError> {
    let mut exchanged = Exchanged::new();
    if plan.redistributions.is_empty() {
        return Ok(exchanged);
    }
    // Everything that may fail on one rank alone comes before the redistributions.
    let moves: Result<Vec<PlannedMove<'_>>, CheckpointError> =
        plan.redistributions.iter().map(|step| PlannedMove::new(step, state, gang.rank())).collect();
    let moves = collective_result(&**gang, moves)?;
    let mut redistributor = Redistributor::new(Arc::clone(gang));
    for one in moves {
        let Some(bytes) = one.run(&mut redistributor)? else { continue };
        if plan.items.iter().any(|item| item.index.name == one.name) {
            exchanged.insert(one.name.to_owned(), bytes);
        }
    }
    Ok(exchanged)
}

/// One exchange, ready to be done.
struct PlannedMove<'a> {
    name: &'a str,
    plan: Plan,
    /// This rank's part; `None` if it has no part in this.
    bytes: Option<&'a [u8]>,
}

impl<'a> PlannedMove<'a> {
    fn new(step: &'a Redistribution, state: &'a State<'_>, rank: usize) -> Result<Self, CheckpointError> {
        let name = step.name.as_str();
        let failed = |message: String| CheckpointError::Redistribute { name: name.to_owned(), message };
        // Bits are moved, not values: any type of the same width will do.
        let bits = match step.dtype.size() {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::U64,
        };
        let plan = plan(step.from, step.to, &step.shape, bits, Prices::default())
            .map_err(|error| failed(error.to_string()))?;
        let bytes =
            match (state.leaves().get(name).map(|leaf| &leaf.content), step.from.mesh().position(rank)) {
                (Some(Content::Tensor(tensor)), Ok(_)) => Some(&*tensor.bytes),
                (_, Err(_)) => None,
                _ => return Err(PlanError::NoSuchItem { name: name.to_owned() }.into()),
            };
        Ok(Self { name, plan, bytes })
    }

    fn run(&self, redistributor: &mut Redistributor) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(bytes) = self.bytes else { return Ok(None) };
        macro_rules! moved {
            ($type:ty) => {{
                let local: Vec<$type> = bytemuck::pod_collect_to_vec(bytes);
                let moved = redistributor.run(&self.plan, local).map_err(|error| {
                    CheckpointError::Redistribute { name: self.name.to_owned(), message: error.to_string() }
                })?;
                bytemuck::cast_slice(&moved).to_vec()
            }};
        }
        Ok(Some(match self.plan.dtype().size() {
            1 => moved!(u8),
            2 => moved!(u16),
            4 => moved!(u32),
            _ => moved!(u64),
        }))
    }
}

/// Items with their bytes.
pub(crate) struct Batch<'a> {
    items: Vec<(WriteItem, Bytes<'a>)>,
    /// What was written already, while staging.
    done: Option<Written>,
}

/// What was written, and the sums of it.
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) sums: ChunkSums,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        planner: &dyn SavePlanner,
        state: &'a State<'_>,
        plan: &SavePlan,
        mut exchanged: Exchanged,
    ) -> Result<Self, CheckpointError> {
        let mut items = Vec::with_capacity(plan.items.len());
        for item in &plan.items {
            let bytes = match exchanged.remove(&item.index.name) {
                Some(bytes) => Bytes::Owned(bytes),
                None => planner.data(state, item)?,
            };
            if bytes.len() as u64 != item.bytes() {
                return Err(PlanError::NoSuchItem { name: item.index.name.clone() }.into());
            }
            items.push((item.clone(), bytes));
        }
        Ok(Self { items, done: None })
    }

    /// Items whose bytes are written by other means, or are given.
    pub(crate) fn of(items: Vec<(WriteItem, Bytes<'a>)>) -> Self {
        Self { items, done: None }
    }

    /// What there is to write.
    pub(super) fn items(&self) -> impl Iterator<Item = (&WriteItem, &[u8])> {
        self.items.iter().map(|(item, bytes)| (item, &**bytes))
    }

    /// Copies the items that may change, as far as the budget goes, and writes
    /// the others at once. What remains can be written after the state has
    /// changed.
    pub(super) fn stage(
        self,
        opened: &OpenTarget,
        options: &SaveOptions,
        observer: &dyn Observer,
    ) -> Result<Batch<'static>, CheckpointError> {
        // An object is written at once, now or later.
        let needed = |bytes: &Bytes<'_>| match bytes {
            Bytes::Borrowed(bytes) => bytes.len() as u64,
            Bytes::Owned(_) | Bytes::Shared(_) => 0,
        };
        let total: u64 = self.items.iter().map(|(_, bytes)| needed(bytes)).sum();
        if opened.is_streamed() && total > options.budget {
            let done = self.fill(opened, options.threads, observer)?;
            return Ok(Batch { items: Vec::new(), done: Some(done) });
        }
        let mut room = options.budget;
        let (mut kept, mut rest) = (Vec::new(), Vec::new());
        for (item, bytes) in self.items {
            let needed = needed(&bytes);
            if needed <= room {
                room -= needed;
                kept.push((item, bytes));
            } else {
                rest.push((item, bytes));
            }
        }
        let kept = copy_all(kept, options.threads);
        // What does not fit is written now, before the caller goes on.
        let done = match rest.is_empty() {
            true => None,
            false => Some(Batch { items: rest, done: None }.fill(opened, options.threads, observer)?),
        };
        Ok(Batch { items: kept, done })
    }

    /// Writes and syncs the items.
    pub(crate) fn write(
        self,
        opened: &OpenTarget,
        threads: Option<usize>,
        observer: &dyn Observer,
    ) -> Result<Written, CheckpointError> {
        let written = self.fill(opened, threads, observer)?;
        opened.sync()?;
        Ok(written)
    }

    /// Writes everything, but does not make it last.
    fn fill(
        self,
        opened: &OpenTarget,
        threads: Option<usize>,
        observer: &dyn Observer,
    ) -> Result<Written, CheckpointError> {
        let (before, sums) = match self.done {
            Some(done) if self.items.is_empty() => return Ok(done),
            Some(done) => (done.bytes, done.sums),
            None => (0, opened.empty_sums()),
        };
        let bytes: u64 = self.items.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        observer.begin("writing", bytes);
        let mut pieces = Vec::new();
        for (item, bytes) in &self.items {
            cut(item, bytes, opened, &mut pieces)?;
        }
        // In the order of the files.
        pieces.sort_by_key(|piece| (piece.file, piece.offset));
        match opened.stream()? {
            Some(stream) => upload(stream, &pieces, &sums, observer)?,
            None => put_in_place(&pieces, opened, &sums, threads.unwrap_or_else(cores), observer)?,
        }
        Ok(Written { bytes: before + bytes, sums })
    }
}

/// Hashes and writes pieces from the first to the last.
fn upload(
    mut stream: Stream,
    pieces: &[Piece<'_>],
    sums: &ChunkSums,
    observer: &dyn Observer,
) -> Result<(), CheckpointError> {
    for piece in pieces {
        sums.add_run(piece.name, piece.position, piece.bytes);
        stream.put(piece.offset, piece.bytes)?;
        observer.advance(piece.bytes.len() as u64);
    }
    stream.finish()
}

/// Hashes and writes pieces where they belong.
///
/// A filesystem lets one thread at a time write to a file; others would only
/// stand in line. So one writes, in order, and the others hash.
fn put_in_place(
    pieces: &[Piece<'_>],
    opened: &OpenTarget,
    sums: &ChunkSums,
    threads: usize,
    observer: &dyn Observer,
) -> Result<(), CheckpointError> {
    let next = AtomicUsize::new(0);
    let hash = || {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            sums.add_run(piece.name, piece.position, piece.bytes);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(pieces.len()) {
            scope.spawn(hash);
        }
        for piece in pieces {
            if threads < 2 {
                sums.add_run(piece.name, piece.position, piece.bytes);
            }
            if let Err(error) = opened.write(piece.file, piece.offset, piece.bytes) {
                next.store(pieces.len(), Ordering::Relaxed);
                return Err(error);
            }
            observer.advance(piece.bytes.len() as u64);
        }
        // Whoever is done with writing helps.
        if threads >= 2 {
            hash();
        }
        Ok(())
    })
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Copies in parallel: new memory costs page faults, which threads share.
fn copy_all(items: Vec<(WriteItem, Bytes<'_>)>, threads: Option<usize>) -> Vec<(WriteItem, Bytes<'static>)> {
    let threads = threads.unwrap_or_else(cores).max(1);
    let total: usize = items.iter().map(|(_, bytes)| bytes.len()).sum();
    let share = total.div_ceil(threads).max(1);
    let mut hands: Vec<Vec<(WriteItem, Bytes<'_>)>> = vec![Vec::new()];
    let mut held = 0;
    for item in items {
        if held >= share {
            hands.push(Vec::new());
            held = 0;
        }
        held += item.1.len();
        if let Some(hand) = hands.last_mut() {
            hand.push(item);
        }
    }
    let copy = |hand: Vec<(WriteItem, Bytes<'_>)>| -> Vec<(WriteItem, Bytes<'static>)> {
        hand.into_iter().map(|(item, bytes)| (item, bytes.kept())).collect()
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = hands.drain(1..).map(|hand| scope.spawn(move || copy(hand))).collect();
        let mut copied = hands.pop().map(copy).unwrap_or_default();
        for other in others {
            copied.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        copied
    })
}

/// Bytes that go to one place.
struct Piece<'a> {
    file: usize,
    offset: u64,
    bytes: &'a [u8],
    /// The tensor.
    name: &'a str,
    /// The number of the first element in it.
    position: u64,
}

/// Cuts an item into pieces that follow one another in a file.
fn cut<'a>(
    item: &'a WriteItem,
    bytes: &'a [u8],
    opened: &OpenTarget,
    pieces: &mut Vec<Piece<'a>>,
) -> Result<(), CheckpointError> {
    let name = item.index.name.as_str();
    if opened.has_written(name) {
        return Ok(());
    }
    let missing = || PlanError::NoSuchItem { name: name.to_owned() };
    let place = opened.location(name).ok_or_else(missing)?;
    let (width, runs) = match &item.data {
        WriteData::Bytes { length, .. } => (1, vec![0..*length as usize]),
        WriteData::Tensor { dtype, shape, region } => {
            let runs = region.runs(shape).map_err(|_| missing())?;
            (dtype.size(), runs.collect())
        }
    };
    let mut rest = bytes;
    let mut local = 0u64;
    for run in runs {
        let mut position = run.start as u64;
        let (mut part, behind) = rest.split_at(run.len() * width);
        rest = behind;
        while !part.is_empty() {
            let (piece, more) = part.split_at(part.len().min(STRETCH));
            let ahead = opened.ahead(position * width as u64, local);
            let offset = place.offset + ahead;
            pieces.push(Piece { file: place.file, offset, bytes: piece, name, position });
            position += (piece.len() / width) as u64;
            local += piece.len() as u64;
            part = more;
        }
    }
    Ok(())
}
