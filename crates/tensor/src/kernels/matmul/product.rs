//! One product: operands packed once, then tiles side by side.
//!
//! The result is cut into tasks of some rows and columns. A task adds up its
//! sums in memory of its own, block by block along the depth, and then writes
//! its part of the result. How tasks are cut depends on the number of threads;
//! sums do not, see [`tile`](super::tile).

use bytemuck::Pod;
use pulp::{Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::few;
use super::pack::{Strip, pack};
use super::scheme::Scheme;
use super::tile::{Begin, Panels, ROWS};
use super::{Finish, Matrix, Spread};
use crate::element::Float;
use crate::error::TensorError;
use crate::memory::Block;
use crate::parallel::{share, try_share};
use crate::threads;
use crate::vectors::dispatch;

/// The most packed values of the depth that are multiplied at once: with them a panel of
/// columns just fills a 32 KiB cache.
const DEPTH: usize = 256;

/// The same where columns are used by one task alone: long runs of memory
/// matter more than the nearest cache.
const LOOSE_DEPTH: usize = 1024;

/// The most packed values of the depth between two times that all threads wait
/// for each other.
const STAGE: usize = 384;

/// Rows of a task.
const TASK_ROWS: usize = 64;

/// Tasks for each thread, where there is enough to do.
const TASKS: usize = 8;

/// The most panels of columns in a task.
const TASK_PANELS: usize = 8;

/// The most packed values of one operand held at once, as far as rows and
/// columns of a task allow.
const PACKED: usize = 1 << 19;

/// Bytes that the widest vector is aligned to.
const LINE: usize = 64;

/// `lhs @ rhs` into a row-major result.
pub(super) fn multiply<S: Scheme>(
    lhs: Matrix<'_, S::Source>,
    rhs: Matrix<'_, S::Source>,
    out: &mut [S::Source],
    finish: &Finish<'_, S::Source>,
    spread: Spread,
) -> Result<(), TensorError> {
    let (m, n) = (lhs.rows, rhs.columns);
    assert!(lhs.is_inside() && rhs.is_inside() && rhs.rows == lhs.columns && out.len() == m * n);
    if out.is_empty() {
        return Ok(());
    }
    let whole_depth = lhs.columns.div_ceil(S::DEPTH);
    let sums = Sums::of::<S>(out, n);
    // Sums that stay in the result can be added to later, so only some of the
    // depth needs to be packed at a time. With few rows little is packed anyway.
    let stage = if sums == Sums::InResult && m > TASK_ROWS { STAGE } else { usize::MAX };
    let depth = evenly(whole_depth, stage, 1);
    let rows_at_once = evenly(m, PACKED / depth, TASK_ROWS);
    // Columns that each task packs on its way, or none, need not be cut.
    let columns_packed = if m > TASK_ROWS { PACKED / depth } else { n };
    let columns_at_once = evenly(n, columns_packed, S::columns() * TASK_PANELS);
    for column in (0..n).step_by(columns_at_once) {
        let columns = columns_at_once.min(n - column);
        for from in (0..whole_depth.max(1)).step_by(depth) {
            let depth = depth.min(whole_depth - from);
            let stage = Stage { first: from == 0, last: from + depth >= whole_depth };
            let columns_here = Strip::of_columns(rhs).lines(column, columns);
            let columns_here = columns_here.depth(from * S::DEPTH, depth * S::DEPTH);
            // With few rows no two tasks share columns, and each packs its own.
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
                pack_all::<S>(left_panels.chain(right.into_iter().flatten()), spread);
                let right = match &shared {
                    Some(block) => Right::Packed(cast::<S>(block)),
                    None => Right::Loose(columns_here),
                };
                let (left, right) = (cast::<S>(&left), &right);
                let part = Part { left, right, depth, n, row, column, finish, sums, stage };
                part.multiply::<S>(&mut out[row * n..(row + rows) * n], columns, spread)?;
            }
        }
    }
    Ok(())
}

/// The size of equal parts of a whole, multiples of `unit` and about `most`.
fn evenly(whole: usize, most: usize, unit: usize) -> usize {
    let most = (most / unit).max(1) * unit;
    whole.div_ceil(whole.div_ceil(most).max(1)).next_multiple_of(unit).max(1)
}

/// Where sums are while they grow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    /// In the result itself, which is of the type they are added up in and
    /// whose rows are whole vectors.
    InResult,
    /// In memory of the task, which sees all of the depth.
    Apart,
}

impl Sums {
    fn of<S: Scheme>(out: &[S::Source], n: usize) -> Self {
        let aligned =
            out.as_ptr().addr().is_multiple_of(LINE) && (n * size_of::<S::Sum>()).is_multiple_of(LINE);
        let whole = n.is_multiple_of(S::columns());
        if S::Source::COMPUTES_IN_ITSELF && aligned && whole { Self::InResult } else { Self::Apart }
    }
}

/// Which part of the depth is multiplied.
#[derive(Clone, Copy)]
struct Stage {
    first: bool,
    last: bool,
}

/// Neighbouring panels to be packed.
struct Unpacked<'a, 'out, S: Scheme> {
    strip: Strip<'a, S::Source>,
    width: usize,
    depth: usize,
    out: &'out mut [S::Packed],
}

/// All panels of a strip, some at a time.
fn panels<'a, 'out, S: Scheme>(
    block: &'out mut Block,
    strip: Strip<'a, S::Source>,
    width: usize,
    depth: usize,
) -> impl Iterator<Item = Unpacked<'a, 'out, S>> + Send {
    let out: &mut [S::Packed] = bytemuck::cast_slice_mut(block.bytes_mut());
    let together = width * TASK_PANELS;
    out.chunks_mut((together * depth).max(1)).enumerate().map(move |(number, out)| {
        let strip = strip.lines(number * together, together);
        Unpacked { strip, width, depth, out }
    })
}

fn pack_all<'a, 'out, S: Scheme + 'a + 'out>(
    all: impl Iterator<Item = Unpacked<'a, 'out, S>> + Send,
    spread: Spread,
) {
    match spread {
        Spread::Alone => all.for_each(dispatch),
        Spread::Pool => share(all, dispatch),
    }
}

impl<S: Scheme> WithSimd for Unpacked<'_, '_, S> {
    type Output = ();

    /// Packs in the order that reads memory in long runs: where lines lie side
    /// by side, some of the depth for all panels and then the next.
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

fn cast<S: Scheme>(block: &Block) -> &[S::Packed] {
    bytemuck::cast_slice(block.bytes())
}

/// The columns of a right operand.
enum Right<'a, P, T> {
    /// Packed beforehand, because many rows use them.
    Packed(&'a [P]),
    /// Packed by each task on its way, because no two tasks share any.
    Loose(Strip<'a, T>),
}

/// Rows and columns that are packed at one time.
struct Part<'a, P, T> {
    left: &'a [P],
    right: &'a Right<'a, P, T>,
    depth: usize,
    /// Columns of the whole result.
    n: usize,
    row: usize,
    column: usize,
    finish: &'a Finish<'a, T>,
    sums: Sums,
    stage: Stage,
}

/// The part of a result that one task writes.
struct Task<'a, T> {
    row: usize,
    column: usize,
    out: Vec<&'a mut [T]>,
}

impl<P: Pod + Send + Sync, T: Float> Part<'_, P, T> {
    fn multiply<S: Scheme<Source = T, Packed = P, Sum = T::Wide>>(
        &self,
        out: &mut [T],
        columns: usize,
        spread: Spread,
    ) -> Result<(), TensorError> {
        let blocks = (out.len() / self.n).div_ceil(TASK_ROWS);
        let threads = if spread == Spread::Alone { 1 } else { threads::count() };
        // Many tasks for each thread and of one size, so that none waits long for the last.
        let width = S::columns();
        let panels = columns.div_ceil(width);
        let wanted = (TASKS * threads).div_ceil(blocks);
        let panels = evenly(panels, panels.div_ceil(wanted).clamp(1, TASK_PANELS), 1);
        let tasks = self.tasks(out, columns, panels * width);
        let run = |task: Task<'_, T>| self.run::<S>(task);
        match spread {
            Spread::Alone => tasks.into_iter().try_for_each(run),
            Spread::Pool => try_share(tasks.into_iter(), run),
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

    fn run<S: Scheme<Source = T, Packed = P, Sum = T::Wide>>(
        &self,
        mut task: Task<'_, T>,
    ) -> Result<(), TensorError> {
        let (rows, columns) = (task.out.len(), task.out[0].len());
        let place = Place { row: self.row + task.row, column: self.column + task.column, n: self.n };
        if self.sums == Sums::InResult {
            {
                let mut sums: Vec<&mut [T::Wide]> =
                    task.out.iter_mut().map(|row| bytemuck::cast_slice_mut(row)).collect();
                self.add::<S>(task.row, task.column, columns, &mut sums)?;
            }
            if self.stage.last && !self.finish.is_nothing() {
                for (line, out) in task.out.into_iter().enumerate() {
                    dispatch(Line { out, sums: None, finish: self.finish, place: place.down(line) });
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
            dispatch(Line { out, sums: Some(sums), finish: self.finish, place: place.down(line) });
        }
        Ok(())
    }

    /// Adds the products of some rows and columns to sums.
    fn add<S: Scheme<Source = T, Packed = P, Sum = T::Wide>>(
        &self,
        row: usize,
        column: usize,
        columns: usize,
        sums: &mut [&mut [T::Wide]],
    ) -> Result<(), TensorError> {
        #[cfg(target_arch = "x86_64")]
        if let Right::Loose(strip) = self.right
            && strip.lies_along_depth()
            && (1..=few::FEW).contains(&sums.len())
            && self.depth > 0
            && S::streams()
        {
            let columns = strip.lines(column, columns);
            S::stream(few::Lines { rows: self.left, columns, sums });
            return Ok(());
        }
        let width = S::columns();
        let stride = columns.next_multiple_of(width);
        // Blocks of about one size, so that none is too short to be worth it.
        let most = match self.right {
            Right::Packed(_) => DEPTH,
            Right::Loose(_) => LOOSE_DEPTH,
        };
        let block = evenly(self.depth, most, 1);
        let mut space = match self.right {
            Right::Packed(_) => None,
            Right::Loose(_) => Some(Block::new(block * stride * size_of::<P>())?),
        };
        let left = &self.left[row * self.depth..(row + sums.len()) * self.depth];
        for from in (0..self.depth).step_by(block) {
            let depth = from..(from + block).min(self.depth);
            let loose: &[P] = match (self.right, &mut space) {
                (Right::Loose(strip), Some(space)) => {
                    let strip = strip.depth(depth.start * S::DEPTH, depth.len() * S::DEPTH);
                    let out = &mut bytemuck::cast_slice_mut(space.bytes_mut())[..depth.len() * stride];
                    let strip = strip.lines(column, columns);
                    dispatch(Unpacked::<S> { strip, width, depth: depth.len(), out: &mut *out });
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
                    Right::Loose(_) => &loose[first * depth.len()..(first + width) * depth.len()],
                };
                let panel_size = ROWS * self.depth;
                let begin = if self.stage.first && from == 0 { Begin::Zero } else { Begin::Found };
                S::add(Panels { rows: left, panel_size, depth: depth.clone(), columns, sums, first, begin });
            }
        }
        if self.depth == 0 {
            sums.iter_mut().for_each(|sums| sums.fill(num_traits::Zero::zero()));
        }
        Ok(())
    }
}

/// Where a row of a task begins in the whole result.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    column: usize,
    n: usize,
}

impl Place {
    fn down(self, rows: usize) -> Self {
        Self { row: self.row + rows, ..self }
    }
}

/// One row of a task, from its sums; they may be in the row already.
struct Line<'a, T: Float> {
    out: &'a mut [T],
    sums: Option<&'a [T::Wide]>,
    finish: &'a Finish<'a, T>,
    place: Place,
}

impl<T: Float> WithSimd for Line<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { out, sums, finish, place } = self;
        if let Some(sums) = sums
            && finish.is_nothing()
        {
            out.iter_mut().zip(sums).for_each(|(out, &sum)| *out = T::narrow(sum));
            return;
        }
        let start = place.row * place.n + place.column;
        let bias = finish.bias.map(|bias| &bias[place.column..place.column + out.len()]);
        let residual = finish.residual.map(|residual| &residual[start..start + out.len()]);
        // Sums are rounded once: in wide numbers, a short piece at a time.
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
