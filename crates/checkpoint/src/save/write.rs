//! What a rank writes: exchanged, staged, written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shardloom_gang::{Gang, Redistributor};
use shardloom_layout::{DType, Layout, Prices, plan};

use super::SaveOptions;
use super::target::Opened;
use crate::error::CheckpointError;
use crate::observer::Observer;
use crate::plan::{PlanError, SavePlan, SavePlanner, WriteData, WriteItem};
use crate::state::{Content, State};
use crate::sums::Sums;

/// Bytes that are hashed and written at once: little enough to be still in the
/// cache when they are written.
const STRETCH: usize = 1 << 20;

/// Tensors in the layout that they are written from.
pub(super) type Exchanged = BTreeMap<String, Vec<u8>>;

/// Carries out the plan's exchanges. Every rank.
pub(super) fn exchange(
    plan: &SavePlan,
    state: &State<'_>,
    gang: &Arc<dyn Gang>,
) -> Result<Exchanged, CheckpointError> {
    let mut exchanged = Exchanged::new();
    if plan.exchanges.is_empty() {
        return Ok(exchanged);
    }
    let mut redistributor = Redistributor::new(Arc::clone(gang));
    for step in &plan.exchanges {
        let missing = || PlanError::NoSuchItem { name: step.name.clone() };
        let leaf = state.leaves().get(&step.name).ok_or_else(missing)?;
        let Content::Tensor(tensor) = &leaf.content else { return Err(missing().into()) };
        let (from, to): (Layout, Layout) = match (step.from.parse(), step.to.parse()) {
            (Ok(from), Ok(to)) => (from, to),
            _ => return Err(missing().into()),
        };
        let failed = |message: String| CheckpointError::Exchange { name: step.name.clone(), message };
        // Bits are moved, not values: any type of the same width will do.
        macro_rules! moved {
            ($type:ty, $dtype:expr) => {{
                let way = plan_way(from, to, &tensor.spec.shape, $dtype).map_err(failed)?;
                let local: Vec<$type> = bytemuck::pod_collect_to_vec(tensor.bytes);
                let moved = redistributor.run(&way, local).map_err(|error| failed(error.to_string()))?;
                bytemuck::cast_slice(&moved).to_vec()
            }};
        }
        let bytes = match tensor.spec.dtype.size() {
            1 => moved!(u8, DType::U8),
            2 => moved!(u16, DType::U16),
            4 => moved!(u32, DType::U32),
            _ => moved!(u64, DType::U64),
        };
        exchanged.insert(step.name.clone(), bytes);
    }
    Ok(exchanged)
}

fn plan_way(
    from: Layout,
    to: Layout,
    shape: &shardloom_layout::Shape,
    dtype: DType,
) -> Result<shardloom_layout::Plan, String> {
    plan(from, to, shape, dtype, Prices::default()).map_err(|error| error.to_string())
}

/// Items with their bytes.
pub(crate) struct Batch<'a> {
    items: Vec<(WriteItem, Cow<'a, [u8]>)>,
    /// What was written already, while staging.
    done: Option<Written>,
}

/// What was written, and the sums of it.
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) sums: Sums,
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
                Some(bytes) => Cow::Owned(bytes),
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
    pub(crate) fn of(items: Vec<(WriteItem, Cow<'a, [u8]>)>) -> Self {
        Self { items, done: None }
    }

    /// What there is to write.
    pub(super) fn items(&self) -> impl Iterator<Item = (&WriteItem, &[u8])> {
        self.items.iter().map(|(item, bytes)| (item, &**bytes))
    }

    /// Copies the items, as far as the budget goes, and writes the others at
    /// once. What remains can be written after the state has changed.
    pub(super) fn stage(
        self,
        opened: &Opened,
        options: &SaveOptions,
        observer: &dyn Observer,
    ) -> Result<Batch<'static>, CheckpointError> {
        let mut room = options.budget;
        let (mut kept, mut rest) = (Vec::new(), Vec::new());
        for (item, bytes) in self.items {
            let needed = bytes.len() as u64;
            if needed <= room {
                room -= needed;
                kept.push((item, bytes));
            } else {
                rest.push((item, bytes));
            }
        }
        let kept = copy_all(kept, options.threads);
        // What does not fit is written now, before the caller goes on.
        let done = Batch { items: rest, done: None }.fill(opened, options.threads, observer)?;
        Ok(Batch { items: kept, done: Some(done) })
    }

    /// Writes and syncs the items.
    pub(crate) fn write(
        self,
        opened: &Opened,
        threads: Option<usize>,
        observer: &dyn Observer,
    ) -> Result<Written, CheckpointError> {
        let written = self.fill(opened, threads, observer)?;
        opened.sync()?;
        Ok(written)
    }

    /// Writes everything, but does not make it last.
    pub(crate) fn fill(
        self,
        opened: &Opened,
        threads: Option<usize>,
        observer: &dyn Observer,
    ) -> Result<Written, CheckpointError> {
        let (before, sums) = match self.done {
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
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let work = || {
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Some((name, position)) = piece.sum {
                    sums.add_run(name, position, piece.bytes);
                }
                if let Err(error) = opened.write(piece.file, piece.offset, piece.bytes) {
                    next.store(pieces.len(), Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
                observer.advance(piece.bytes.len() as u64);
            }
        };
        let threads = threads.unwrap_or_else(cores).clamp(1, pieces.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(Written { bytes: before + bytes, sums }),
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Copies in parallel: new memory costs page faults, which threads share.
fn copy_all(
    items: Vec<(WriteItem, Cow<'_, [u8]>)>,
    threads: Option<usize>,
) -> Vec<(WriteItem, Cow<'static, [u8]>)> {
    let threads = threads.unwrap_or_else(cores).max(1);
    let total: usize = items.iter().map(|(_, bytes)| bytes.len()).sum();
    let share = total.div_ceil(threads).max(1);
    let mut hands: Vec<Vec<(WriteItem, Cow<'_, [u8]>)>> = vec![Vec::new()];
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
    let copy = |hand: Vec<(WriteItem, Cow<'_, [u8]>)>| -> Vec<(WriteItem, Cow<'static, [u8]>)> {
        hand.into_iter().map(|(item, bytes)| (item, Cow::Owned(bytes.into_owned()))).collect()
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
    /// The tensor, and the number of the first element in it.
    sum: Option<(&'a str, u64)>,
}

/// Cuts an item into pieces that follow one another in a file.
fn cut<'a>(
    item: &'a WriteItem,
    bytes: &'a [u8],
    opened: &Opened,
    pieces: &mut Vec<Piece<'a>>,
) -> Result<(), CheckpointError> {
    let name = item.index.name.as_str();
    if opened.has_written(name) {
        return Ok(());
    }
    let missing = || PlanError::NoSuchItem { name: name.to_owned() };
    let place = opened.place(name).ok_or_else(missing)?;
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
            pieces.push(Piece {
                file: place.file,
                offset: place.offset + ahead,
                bytes: piece,
                sum: Some((name, position)),
            });
            position += (piece.len() / width) as u64;
            local += piece.len() as u64;
            part = more;
        }
    }
    Ok(())
}
