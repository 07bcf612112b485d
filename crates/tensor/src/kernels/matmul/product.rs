//! One product: operands packed once, then tiles side by side.
//!
//! The result is cut into tasks of some rows and columns. A task adds up its
//! sums in memory of its own, block by block along the depth, and then writes
//! its part of the result. How tasks are cut depends on the number of threads;
//! sums do not, see [`tile`](super::tile).

use bytemuck::Pod;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::pack::{Strip, pack};
use super::scheme::Scheme;
use super::tile::{Panels, ROWS};
use super::{Finish, Matrix, Spread};
use crate::element::Float;
use crate::error::TensorError;
use crate::memory::Block;
use crate::vectors::dispatch;

/// The most packed values of the depth that are multiplied at once: with them a panel of
/// columns just fills a 32 KiB cache.
const DEPTH: usize = 256;

/// Rows of a task.
const TASK_ROWS: usize = 64;

/// The most panels of columns in a task.
const TASK_PANELS: usize = 8;

/// The most packed values of one operand held at once.
const PACKED: usize = 4 << 20;

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
    let width = S::columns();
    let depth = lhs.columns.div_ceil(S::DEPTH);
    let at_once = |unit: usize| (PACKED / depth.max(1) / unit).max(1) * unit;
    let (rows_at_once, columns_at_once) = (at_once(TASK_ROWS), at_once(width * TASK_PANELS));
    for column in (0..n).step_by(columns_at_once) {
        let columns = columns_at_once.min(n - column);
        let right = Right::new::<S>(rhs, column, columns, m, spread)?;
        for row in (0..m).step_by(rows_at_once) {
            let rows = rows_at_once.min(m - row);
            let strip = Strip::of_rows(lhs).lines(row, rows);
            let left = packed::<S>(strip, rows, ROWS, depth, Fringe::Cut, spread)?;
            let part = Part { left: cast::<S>(&left), right: &right, depth, width, n, row, column, finish };
            part.multiply::<S>(&mut out[row * n..(row + rows) * n], columns, spread)?;
        }
    }
    Ok(())
}

/// What becomes of a last panel that is not full.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fringe {
    /// It is narrower.
    Cut,
    /// It is filled up with zeros.
    Filled,
}

/// All panels of a strip.
fn packed<S: Scheme>(
    strip: Strip<'_, S::Source>,
    lines: usize,
    width: usize,
    depth: usize,
    fringe: Fringe,
    spread: Spread,
) -> Result<Block, TensorError> {
    let total = if fringe == Fringe::Filled { lines.next_multiple_of(width) } else { lines };
    let mut block = Block::new(total * depth * size_of::<S::Packed>())?;
    let panels: &mut [S::Packed] = bytemuck::cast_slice_mut(block.bytes_mut());
    let together = width * TASK_PANELS;
    let some = |(number, out): (usize, &mut [S::Packed])| {
        pack_panels::<S>(strip.lines(number * together, together), width, depth, out);
    };
    if depth > 0 {
        match spread {
            Spread::Alone => panels.chunks_mut(together * depth).enumerate().for_each(some),
            Spread::Pool => panels.par_chunks_mut(together * depth).enumerate().for_each(some),
        }
    }
    Ok(block)
}

/// Packs neighbouring panels in the order that reads memory in long runs: where
/// lines lie side by side, some of the depth for all panels and then the next.
fn pack_panels<S: Scheme>(strip: Strip<'_, S::Source>, width: usize, depth: usize, out: &mut [S::Packed]) {
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

fn cast<S: Scheme>(block: &Block) -> &[S::Packed] {
    bytemuck::cast_slice(block.bytes())
}

/// The columns of a right operand.
enum Right<'a, T> {
    /// Packed beforehand, because many rows use them.
    Packed(Block),
    /// Packed by each task on its way, because no two tasks share any.
    Loose(Strip<'a, T>),
}

impl<'a, T> Right<'a, T> {
    fn new<S: Scheme<Source = T>>(
        matrix: Matrix<'a, T>,
        column: usize,
        columns: usize,
        rows: usize,
        spread: Spread,
    ) -> Result<Self, TensorError> {
        let depth = matrix.rows.div_ceil(S::DEPTH);
        let strip = Strip::of_columns(matrix).lines(column, columns);
        if rows <= TASK_ROWS {
            return Ok(Self::Loose(strip));
        }
        Ok(Self::Packed(packed::<S>(strip, columns, S::columns(), depth, Fringe::Filled, spread)?))
    }
}

/// Rows and columns that are packed at one time.
struct Part<'a, P, T> {
    left: &'a [P],
    right: &'a Right<'a, T>,
    depth: usize,
    width: usize,
    /// Columns of the whole result.
    n: usize,
    row: usize,
    column: usize,
    finish: &'a Finish<'a, T>,
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
        let threads = if spread == Spread::Alone { 1 } else { rayon::current_num_threads() };
        // Several tasks for each thread, so that none waits long for the last.
        let panels = columns.div_ceil(self.width);
        let wanted = (4 * threads).div_ceil(blocks);
        let panels = panels.div_ceil(wanted).clamp(1, TASK_PANELS);
        let tasks = self.tasks(out, columns, panels * self.width);
        let run = |task: Task<'_, T>| self.run::<S>(task);
        match spread {
            Spread::Alone => tasks.into_iter().try_for_each(run),
            Spread::Pool => tasks.into_par_iter().try_for_each(run),
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

    fn run<S: Scheme<Source = T, Packed = P, Sum = T::Wide>>(&self, task: Task<'_, T>) -> Result<(), TensorError> {
        let (rows, columns) = (task.out.len(), task.out[0].len());
        let stride = columns.next_multiple_of(self.width);
        let mut sums = Block::new(rows * stride * size_of::<S::Sum>())?;
        let sums: &mut [S::Sum] = bytemuck::cast_slice_mut(sums.bytes_mut());
        sums.fill(num_traits::Zero::zero());
        let mut loose = match self.right {
            Right::Packed(_) => None,
            Right::Loose(_) => Some(Block::new(DEPTH * stride * size_of::<P>())?),
        };
        let left = &self.left[task.row * self.depth..(task.row + rows) * self.depth];
        // Blocks of about one size, so that none is too short to be worth it.
        let block = self.depth.div_ceil(self.depth.div_ceil(DEPTH).max(1)).max(1);
        for from in (0..self.depth).step_by(block) {
            let depth = from..(from + block).min(self.depth);
            let loose: &[P] = match (self.right, &mut loose) {
                (Right::Loose(strip), Some(block)) => {
                    let strip = strip.depth(depth.start * S::DEPTH, depth.len() * S::DEPTH);
                    let out = &mut bytemuck::cast_slice_mut(block.bytes_mut())[..depth.len() * stride];
                    pack_panels::<S>(strip.lines(task.column, columns), self.width, depth.len(), out);
                    out
                }
                _ => &[],
            };
            for first in (0..stride).step_by(self.width) {
                let columns = match self.right {
                    Right::Packed(block) => {
                        let panel = (task.column + first) * self.depth;
                        let here = panel + depth.start * self.width..panel + depth.end * self.width;
                        &cast::<S>(block)[here]
                    }
                    Right::Loose(_) => &loose[first * depth.len()..(first + self.width) * depth.len()],
                };
                S::add(Panels {
                    rows: left,
                    panel_size: ROWS * self.depth,
                    depth: depth.clone(),
                    count: rows,
                    columns,
                    sums,
                    first,
                    stride,
                });
            }
        }
        for (line, (out, sums)) in task.out.into_iter().zip(sums.chunks_exact(stride)).enumerate() {
            let place = (self.row + task.row + line) * self.n + self.column + task.column;
            let column = self.column + task.column;
            dispatch(Line { out, sums, finish: self.finish, place, column });
        }
        Ok(())
    }
}

/// One row of a task, from its sums.
struct Line<'a, T: Float> {
    out: &'a mut [T],
    sums: &'a [T::Wide],
    finish: &'a Finish<'a, T>,
    /// Where this row of the task begins in the whole result.
    place: usize,
    column: usize,
}

impl<T: Float> WithSimd for Line<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { out, sums, finish, place, column } = self;
        let count = out.len();
        let each = out.iter_mut().zip(sums);
        match (finish.bias, finish.residual) {
            (None, None) => each.for_each(|(out, &sum)| *out = T::narrow(sum)),
            (Some(bias), None) => {
                each.zip(&bias[column..]).for_each(|((out, &sum), b)| *out = T::narrow(sum + b.widen()));
            }
            (None, Some(residual)) => {
                let residual = &residual[place..place + count];
                each.zip(residual).for_each(|((out, &sum), r)| *out = T::narrow(sum + r.widen()));
            }
            (Some(bias), Some(residual)) => {
                let more = bias[column..].iter().zip(&residual[place..place + count]);
                each.zip(more)
                    .for_each(|((out, &sum), (b, r))| *out = T::narrow(sum + b.widen() + r.widen()));
            }
        }
    }
}
