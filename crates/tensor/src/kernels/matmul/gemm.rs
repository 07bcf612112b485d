//! Blocked GEMM: operands are packed once, then tiles are multiplied in parallel.
//!
//! The result is split into tasks of some rows and columns. A task accumulates its
//! sums block by block along the depth and then writes its part of the result. The
//! split into tasks depends on the number of threads; sums do not, see
//! [`microkernel`](super::microkernel).

use bytemuck::Pod;
use pulp::{Simd, WithSimd};

use super::microkernel::{Begin, Panels, ROWS};
use super::pack::{Strip, pack};
use super::pack_format::PackFormat;
#[cfg(target_arch = "x86_64")]
use super::small_m;
use super::{Epilogue, Matrix, Threading};
use crate::element::Float;
use crate::error::Result;
use crate::memory::Block;
use crate::parallel::{share, try_share};
use crate::threads;
use crate::vectors::dispatch;

/// The most packed values of the depth that are multiplied at once: a panel of
/// columns of this depth fills a 32 KiB L1 cache.
const DEPTH: usize = 256;

/// The same where only one task uses the columns: long runs of memory matter more
/// than the L1 cache.
const UNSHARED_DEPTH: usize = 1024;

/// The most packed values of the depth between two barriers of all threads.
const STAGE: usize = 384;

/// Rows of a task.
const TASK_ROWS: usize = 64;

/// Tasks for each thread, where there is enough to do.
const TASKS: usize = 8;

/// The most panels of columns in a task.
const TASK_PANELS: usize = 8;

/// The most packed values of one operand at a time, in whole tasks.
const PACKED: usize = 1 << 19;

/// The alignment of the widest vector, in bytes.
const LINE: usize = 64;

/// `lhs @ rhs` into a row-major result.
pub(super) fn multiply<S: PackFormat>(
    lhs: Matrix<'_, S::Source>,
    rhs: Matrix<'_, S::Source>,
    out: &mut [S::Source],
    epilogue: &Epilogue<'_, S::Source>,
    threading: Threading,
) -> Result<()> {
    let (m, n) = (lhs.rows, rhs.columns);
    assert!(lhs.is_inside() && rhs.is_inside() && rhs.rows == lhs.columns && out.len() == m * n);
    if out.is_empty() {
        return Ok(());
    }
    let whole_depth = lhs.columns.div_ceil(S::DEPTH);
    let sums = Sums::of::<S>(out, n);
    // Sums in the result can accumulate later, so only a part of the depth needs to
    // be packed at a time. With few rows little is packed anyway.
    let stage = if sums == Sums::InResult && m > TASK_ROWS { STAGE } else { usize::MAX };
    let depth = evenly(whole_depth, stage, 1);
    let rows_at_once = evenly(m, PACKED / depth, TASK_ROWS);
    // Columns that each task packs itself need no split.
    let columns_packed = if m > TASK_ROWS { PACKED / depth } else { n };
    let columns_at_once = evenly(n, columns_packed, S::columns() * TASK_PANELS);
    for column in (0..n).step_by(columns_at_once) {
        let columns = columns_at_once.min(n - column);
        for from in (0..whole_depth.max(1)).step_by(depth) {
            let depth = depth.min(whole_depth - from);
            let stage = Stage { first: from == 0, last: from + depth >= whole_depth };
            let columns_here = Strip::of_columns(rhs).lines(column, columns);
            let columns_here = columns_here.depth(from * S::DEPTH, depth * S::DEPTH);
            // With few rows no two tasks share columns, so each packs its own.
            let mut shared = match m > TASK_ROWS {
                true => {
                    Some(Block::new(columns.next_multiple_of(S::columns()) * depth * size_of::<S::Packed>())?)
                }
                false => None,
            };
            for row in (0..m).step_by(rows_at_once) {
                let rows = rows_at_once.min(m - row);
                let rows_here = Strip::of_rows(lhs).lines(row, rows).depth(from * S::DEPTH, depth * S::DEPTH);
                let mut left = Block::new(rows * depth * size_of::<S::Packed>())?;
                let right = shared.as_mut().filter(|_| row == 0);
                let right = right.map(|block| panels::<S>(block, columns_here, S::columns(), depth));
                let left_panels = panels::<S>(&mut left, rows_here, ROWS, depth);
                pack_all::<S>(left_panels.chain(right.into_iter().flatten()), threading);
                let right = match &shared {
                    Some(block) => Right::Packed(cast::<S>(block)),
                    None => Right::Unpacked(columns_here),
                };
                let (left, right) = (cast::<S>(&left), &right);
                let part = PackedBlock { left, right, depth, n, row, column, epilogue, sums, stage };
                part.multiply::<S>(&mut out[row * n..(row + rows) * n], columns, threading)?;
            }
        }
    }
    Ok(())
}

/// The size of equal parts of about `most`, in multiples of `unit`.
fn evenly(whole: usize, most: usize, unit: usize) -> usize {
    let most = (most / unit).max(1) * unit;
    whole.div_ceil(whole.div_ceil(most).max(1)).next_multiple_of(unit).max(1)
}

/// The memory that sums accumulate in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// The result itself, if it has the type of sums and rows of whole vectors.
    InResult,
    /// Scratch memory of the task, which covers the whole depth.
    Apart,
}

impl Sums {
    fn of<S: PackFormat>(out: &[S::Source], n: usize) -> Self {
        let aligned =
            out.as_ptr().addr().is_multiple_of(LINE) && (n * size_of::<S::Sum>()).is_multiple_of(LINE);
        let whole = n.is_multiple_of(S::columns());
        if S::Source::COMPUTES_IN_ITSELF && aligned && whole { Self::InResult } else { Self::Apart }
    }
}

/// Whether a stage is the first or last part of the depth.
#[derive(Clone, Copy)]
struct Stage {
    first: bool,
    last: bool,
}

/// Neighbouring panels to pack.
struct PanelsToPack<'a, 'out, S: PackFormat> {
    strip: Strip<'a, S::Source>,
    width: usize,
    depth: usize,
    out: &'out mut [S::Packed],
}

/// All panels of a strip, several at a time.
fn panels<'a, 'out, S: PackFormat>(
    block: &'out mut Block,
    strip: Strip<'a, S::Source>,
    width: usize,
    depth: usize,
) -> impl Iterator<Item = PanelsToPack<'a, 'out, S>> + Send {
    let out: &mut [S::Packed] = bytemuck::cast_slice_mut(block.bytes_mut());
    let together = width * TASK_PANELS;
    out.chunks_mut((together * depth).max(1)).enumerate().map(move |(number, out)| {
        let strip = strip.lines(number * together, together);
        PanelsToPack { strip, width, depth, out }
    })
}

fn pack_all<'a, 'out, S: PackFormat + 'a + 'out>(
    all: impl Iterator<Item = PanelsToPack<'a, 'out, S>> + Send,
    threading: Threading,
) {
    match threading {
        Threading::Single => all.for_each(dispatch),
        Threading::Pool => share(all, dispatch),
    }
}

impl<S: PackFormat> WithSimd for PanelsToPack<'_, '_, S> {
    type Output = ();

    /// Packs in the order that reads memory in long runs: for interleaved lines, a
    /// part of the depth for all panels, then the next part.
    #[inline(always)]
    fn with_simd<W: Simd>(self, _: W) {
        let Self { strip, width, depth, out } = self;
        let together = if strip.lies_along_depth() { depth.max(1) } else { 16 };
        for from in (0..depth).step_by(together) {
            let run = together.min(depth - from);
            for (panel, out) in out.chunks_mut(width * depth).enumerate() {
                let here = out.len() / depth;
                let strip = strip.lines(panel * width, here).depth(from * S::DEPTH, run * S::DEPTH);
                pack::<S>(strip, here, &mut out[from * here..(from + run) * here]);
            }
        }
    }
}

fn cast<S: PackFormat>(block: &Block) -> &[S::Packed] {
    bytemuck::cast_slice(block.bytes())
}

/// The columns of a right operand.
enum Right<'a, P, T> {
    /// Packed, because many rows share them.
    Packed(&'a [P]),
    /// Packed by each task, because no two tasks share any.
    Unpacked(Strip<'a, T>),
}

/// A block of packed rows and columns.
struct PackedBlock<'a, P, T> {
    left: &'a [P],
    right: &'a Right<'a, P, T>,
    depth: usize,
    /// Columns of the whole result.
    n: usize,
    row: usize,
    column: usize,
    epilogue: &'a Epilogue<'a, T>,
    sums: Sums,
    stage: Stage,
}

/// The rows and columns of the result that one task writes.
struct Task<'a, T> {
    row: usize,
    column: usize,
    out: Vec<&'a mut [T]>,
}

impl<P: Pod + Send + Sync, T: Float> PackedBlock<'_, P, T> {
    fn multiply<S: PackFormat<Source = T, Packed = P, Sum = T::Wide>>(
        &self,
        out: &mut [T],
        columns: usize,
        threading: Threading,
    ) -> Result<()> {
        let blocks = (out.len() / self.n).div_ceil(TASK_ROWS);
        let threads = if threading == Threading::Single { 1 } else { threads::count() };
        // Many tasks of one size per thread, so that none waits long for the last.
        let width = S::columns();
        let panels = columns.div_ceil(width);
        let wanted = (TASKS * threads).div_ceil(blocks);
        let panels = evenly(panels, panels.div_ceil(wanted).clamp(1, TASK_PANELS), 1);
        let tasks = self.tasks(out, columns, panels * width);
        let run = |task: Task<'_, T>| self.run::<S>(task);
        match threading {
            Threading::Single => tasks.into_iter().try_for_each(run),
            Threading::Pool => try_share(tasks.into_iter(), run),
        }
    }

    fn tasks<'a>(&self, out: &'a mut [T], columns: usize, task_columns: usize) -> Vec<Task<'a, T>> {
        let across = columns.div_ceil(task_columns);
        let blocks = (out.len() / self.n).div_ceil(TASK_ROWS);
        let mut tasks: Vec<Task<'a, T>> = (0..blocks * across)
            .map(|task| Task {
                row: task / across * TASK_ROWS,
                column: task % across * task_columns,
                out: Vec::with_capacity(TASK_ROWS),
            })
            .collect();
        for (row, line) in out.chunks_exact_mut(self.n).enumerate() {
            let parts = line[self.column..self.column + columns].chunks_mut(task_columns);
            for (place, part) in parts.enumerate() {
                tasks[row / TASK_ROWS * across + place].out.push(part);
            }
        }
        tasks
    }

    fn run<S: PackFormat<Source = T, Packed = P, Sum = T::Wide>>(&self, mut task: Task<'_, T>) -> Result<()> {
        let (rows, columns) = (task.out.len(), task.out[0].len());
        let origin = TaskOrigin { row: self.row + task.row, column: self.column + task.column, n: self.n };
        if self.sums == Sums::InResult {
            {
                let mut sums: Vec<&mut [T::Wide]> =
                    task.out.iter_mut().map(|row| bytemuck::cast_slice_mut(row)).collect();
                self.add::<S>(task.row, task.column, columns, &mut sums)?;
            }
            if self.stage.last && !self.epilogue.is_empty() {
                for (line, out) in task.out.into_iter().enumerate() {
                    dispatch(Line { out, sums: None, epilogue: self.epilogue, origin: origin.down(line) });
                }
            }
            return Ok(());
        }
        let stride = columns.next_multiple_of(S::columns());
        let mut block = Block::new(rows * stride * size_of::<S::Sum>())?;
        let sums: &mut [T::Wide] = bytemuck::cast_slice_mut(block.bytes_mut());
        let mut sums: Vec<&mut [T::Wide]> = sums.chunks_exact_mut(stride).collect();
        self.add::<S>(task.row, task.column, columns, &mut sums)?;
        for (line, (out, sums)) in task.out.into_iter().zip(sums).enumerate() {
            dispatch(Line { out, sums: Some(sums), epilogue: self.epilogue, origin: origin.down(line) });
        }
        Ok(())
    }

    /// Adds the products of some rows and columns to sums.
    fn add<S: PackFormat<Source = T, Packed = P, Sum = T::Wide>>(
        &self,
        row: usize,
        column: usize,
        columns: usize,
        sums: &mut [&mut [T::Wide]],
    ) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        if let Right::Unpacked(strip) = self.right
            && strip.lies_along_depth()
            && (1..=small_m::MAX_ROWS).contains(&sums.len())
            && self.depth > 0
            && S::can_stream()
        {
            let columns = strip.lines(column, columns);
            S::stream(small_m::Lines { rows: self.left, columns, sums });
            return Ok(());
        }
        let width = S::columns();
        let stride = columns.next_multiple_of(width);
        // Blocks of about one size, so that none is too short.
        let most = match self.right {
            Right::Packed(_) => DEPTH,
            Right::Unpacked(_) => UNSHARED_DEPTH,
        };
        let block = evenly(self.depth, most, 1);
        let mut space = match self.right {
            Right::Packed(_) => None,
            Right::Unpacked(_) => Some(Block::new(block * stride * size_of::<P>())?),
        };
        let left = &self.left[row * self.depth..(row + sums.len()) * self.depth];
        for from in (0..self.depth).step_by(block) {
            let depth = from..(from + block).min(self.depth);
            let loose: &[P] = match (self.right, &mut space) {
                (Right::Unpacked(strip), Some(space)) => {
                    let strip = strip.depth(depth.start * S::DEPTH, depth.len() * S::DEPTH);
                    let out = &mut bytemuck::cast_slice_mut(space.bytes_mut())[..depth.len() * stride];
                    let strip = strip.lines(column, columns);
                    dispatch(PanelsToPack::<S> { strip, width, depth: depth.len(), out: &mut *out });
                    out
                }
                _ => &[],
            };
            for first in (0..stride).step_by(width) {
                let columns = match self.right {
                    Right::Packed(panels) => {
                        let panel = (column + first) * self.depth;
                        let here = panel + depth.start * width..panel + depth.end * width;
                        &panels[here]
                    }
                    Right::Unpacked(_) => &loose[first * depth.len()..(first + width) * depth.len()],
                };
                let panel_size = ROWS * self.depth;
                let begin = if self.stage.first && from == 0 { Begin::Zero } else { Begin::Accumulate };
                S::add(Panels { rows: left, panel_size, depth: depth.clone(), columns, sums, first, begin });
            }
        }
        if self.depth == 0 {
            sums.iter_mut().for_each(|sums| sums.fill(num_traits::Zero::zero()));
        }
        Ok(())
    }
}

/// The position of a task in the whole result.
#[derive(Clone, Copy)]
struct TaskOrigin {
    row: usize,
    column: usize,
    n: usize,
}

impl TaskOrigin {
    fn down(self, rows: usize) -> Self {
        Self { row: self.row + rows, ..self }
    }
}

/// Stores one row of a task from its sums, which may be in the row already.
struct Line<'a, T: Float> {
    out: &'a mut [T],
    sums: Option<&'a [T::Wide]>,
    epilogue: &'a Epilogue<'a, T>,
    origin: TaskOrigin,
}

impl<T: Float> WithSimd for Line<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { out, sums, epilogue, origin } = self;
        if let Some(sums) = sums
            && epilogue.is_empty()
        {
            out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = T::narrow(sum));
            return;
        }
        let start = origin.row * origin.n + origin.column;
        let bias = epilogue.bias.map(|bias| &bias[origin.column..origin.column + out.len()]);
        let residual = epilogue.residual.map(|residual| &residual[start..start + out.len()]);
        // Add in wide numbers and round once, a short piece at a time.
        const PIECE: usize = 256;
        let mut held = [<T::Wide as num_traits::Zero>::zero(); PIECE];
        for (number, out) in out.chunks_mut(PIECE).enumerate() {
            let (from, held) = (number * PIECE, &mut held[..out.len()]);
            match sums {
                Some(sums) => held.copy_from_slice(&sums[from..from + held.len()]),
                None => held.iter_mut().zip(&*out).for_each(|(held, out)| *held = out.widen()),
            }
            for more in [bias, residual].into_iter().flatten() {
                held.iter_mut().zip(&more[from..]).for_each(|(held, more)| *held += more.widen());
            }
            out.iter_mut().zip(held).for_each(|(out, held)| *out = T::narrow(*held));
        }
    }
}
