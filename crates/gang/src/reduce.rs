//! Reductions over ranks.
//!
//! Every engine reduces in rank order, element by element: the result for an
//! element is `((x0 ∘ x1) ∘ x2) ∘ …`, independent of the number of elements and
//! of how they are split into blocks. So results are equal bit for bit from run
//! to run and from engine to engine. `bf16` and `f16` accumulate in `f32`
//! and round once; integers wrap; a NaN wins a maximum or minimum, because a
//! reduction that hides a NaN hides an error.

use bytemuck::Pod;
use half::{bf16, f16};
use weightloom_layout::{DType, ReduceOp};

use crate::error::GangError;

/// Elements reduced at a time: accumulators and inputs stay in the L1 cache.
const BLOCK: usize = 1024;

/// Checks that a dtype supports a reduction.
pub fn check_reducible(dtype: DType, op: ReduceOp) -> Result<(), GangError> {
    let possible = match dtype {
        // Eight-bit floats are for storage; sums in them are noise.
        DType::F8E4M3 | DType::F8E5M2 => false,
        DType::Bool => matches!(op, ReduceOp::Max | ReduceOp::Min),
        _ => dtype.is_float() || op != ReduceOp::Avg,
    };
    if possible { Ok(()) } else { Err(GangError::NotReducible { dtype, op }) }
}

/// Reduces equally long `parts`, which are in rank order, into `out`.
///
/// Leaves `out` unchanged if [`check_reducible`] rejects the reduction.
pub fn reduce_into(dtype: DType, op: ReduceOp, parts: &[&[u8]], out: &mut [u8]) {
    // Slices without elements need not be aligned.
    if !out.is_empty() {
        with_arithmetic(dtype, op, Into { parts, out });
    }
}

/// Reduces `own`, which belongs to rank `rank`, with the equally long `others`
/// into `own`.
///
/// Leaves `own` unchanged if [`check_reducible`] rejects the reduction.
pub fn reduce_in_place(dtype: DType, op: ReduceOp, others: &[&[u8]], own: &mut [u8], rank: usize) {
    if !own.is_empty() {
        let (before, after) = others.split_at(rank.min(others.len()));
        with_arithmetic(dtype, op, InPlace { before, own, after });
    }
}

/// Reduces equally long `parts`, which are in rank order, into each of them.
pub(crate) fn reduce_into_all(dtype: DType, op: ReduceOp, parts: &mut [&mut [u8]]) {
    with_arithmetic(dtype, op, IntoAll { parts });
}

/// How elements of one type are loaded, combined and stored.
trait Arithmetic {
    type Stored: Pod;
    type Accumulator: Copy + Default;
    fn load(stored: Self::Stored) -> Self::Accumulator;
    fn combine(a: Self::Accumulator, b: Self::Accumulator) -> Self::Accumulator;
    fn store(accumulated: Self::Accumulator, ranks: usize) -> Self::Stored;
}

/// A loop that is compiled once for every kind of arithmetic.
trait Work {
    fn run<A: Arithmetic>(self);
}

struct Into<'a, 'b> {
    parts: &'a [&'b [u8]],
    out: &'a mut [u8],
}

impl Work for Into<'_, '_> {
    fn run<A: Arithmetic>(self) {
        let out: &mut [A::Stored] = bytemuck::cast_slice_mut(self.out);
        let mut accumulators = [A::Accumulator::default(); BLOCK];
        let mut start = 0;
        for block in out.chunks_mut(BLOCK) {
            let accumulators = &mut accumulators[..block.len()];
            for (rank, part) in self.parts.iter().enumerate() {
                let part: &[A::Stored] = bytemuck::cast_slice(part);
                accumulate::<A>(accumulators, &part[start..start + block.len()], rank);
            }
            store::<A>(accumulators, block, self.parts.len());
            start += block.len();
        }
    }
}

struct InPlace<'a, 'b> {
    before: &'a [&'b [u8]],
    own: &'a mut [u8],
    after: &'a [&'b [u8]],
}

impl Work for InPlace<'_, '_> {
    fn run<A: Arithmetic>(self) {
        let own: &mut [A::Stored] = bytemuck::cast_slice_mut(self.own);
        let ranks = self.before.len() + 1 + self.after.len();
        let mut accumulators = [A::Accumulator::default(); BLOCK];
        let mut start = 0;
        for block in own.chunks_mut(BLOCK) {
            let accumulators = &mut accumulators[..block.len()];
            let mut add = |part: &[u8], rank: usize| {
                let part: &[A::Stored] = bytemuck::cast_slice(part);
                accumulate::<A>(accumulators, &part[start..start + block.len()], rank);
            };
            self.before.iter().enumerate().for_each(|(rank, part)| add(part, rank));
            accumulate::<A>(accumulators, block, self.before.len());
            let mut add = |part: &[u8]| {
                let part: &[A::Stored] = bytemuck::cast_slice(part);
                accumulate::<A>(accumulators, &part[start..start + block.len()], ranks);
            };
            self.after.iter().for_each(|part| add(part));
            store::<A>(accumulators, block, ranks);
            start += block.len();
        }
    }
}

struct IntoAll<'a, 'b> {
    parts: &'a mut [&'b mut [u8]],
}

impl Work for IntoAll<'_, '_> {
    fn run<A: Arithmetic>(self) {
        let ranks = self.parts.len();
        let total = self.parts.first().map_or(0, |part| part.len() / size_of::<A::Stored>());
        let mut accumulators = [A::Accumulator::default(); BLOCK];
        let mut start = 0;
        while start < total {
            let end = total.min(start + BLOCK);
            let accumulators = &mut accumulators[..end - start];
            for (rank, part) in self.parts.iter().enumerate() {
                let part: &[A::Stored] = bytemuck::cast_slice(part);
                accumulate::<A>(accumulators, &part[start..end], rank);
            }
            for part in self.parts.iter_mut() {
                let part: &mut [A::Stored] = bytemuck::cast_slice_mut(part);
                store::<A>(accumulators, &mut part[start..end], ranks);
            }
            start = end;
        }
    }
}

fn accumulate<A: Arithmetic>(accumulators: &mut [A::Accumulator], values: &[A::Stored], rank: usize) {
    if rank == 0 {
        for (accumulator, &value) in accumulators.iter_mut().zip(values) {
            *accumulator = A::load(value);
        }
    } else {
        for (accumulator, &value) in accumulators.iter_mut().zip(values) {
            *accumulator = A::combine(*accumulator, A::load(value));
        }
    }
}

fn store<A: Arithmetic>(accumulators: &[A::Accumulator], out: &mut [A::Stored], ranks: usize) {
    for (out, &accumulator) in out.iter_mut().zip(accumulators) {
        *out = A::store(accumulator, ranks);
    }
}

macro_rules! float {
    ($name:ident, $stored:ty, $wide:ty, $load:expr, $store:expr) => {
        mod $name {
            use super::*;

            macro_rules! operation {
                ($op:ident, $combine:expr, $finish:expr) => {
                    pub(super) struct $op;

                    impl Arithmetic for $op {
                        type Stored = $stored;
                        type Accumulator = $wide;

                        fn load(stored: $stored) -> $wide {
                            $load(stored)
                        }

                        fn combine(a: $wide, b: $wide) -> $wide {
                            $combine(a, b)
                        }

                        fn store(accumulated: $wide, ranks: usize) -> $stored {
                            $store($finish(accumulated, ranks as $wide))
                        }
                    }
                };
            }

            operation!(Sum, |a, b| a + b, |sum, _| sum);
            operation!(Avg, |a, b| a + b, |sum: $wide, ranks: $wide| sum / ranks);
            operation!(Prod, |a, b| a * b, |product, _| product);
            operation!(Max, |a: $wide, b: $wide| if b > a || b.is_nan() { b } else { a }, |max, _| max);
            operation!(Min, |a: $wide, b: $wide| if b < a || b.is_nan() { b } else { a }, |min, _| min);
        }
    };
}

float!(f64_, f64, f64, |x| x, |x| x);
float!(f32_, f32, f32, |x| x, |x| x);
float!(bf16_, bf16, f32, bf16::to_f32, bf16::from_f32);
float!(f16_, f16, f32, f16::to_f32, f16::from_f32);

struct Sum<T>(T);
struct Prod<T>(T);
struct Max<T>(T);
struct Min<T>(T);

macro_rules! integer {
    ($($int:ty),*) => {
        $(
            integer!($int, Sum, |a: $int, b: $int| a.wrapping_add(b));
            integer!($int, Prod, |a: $int, b: $int| a.wrapping_mul(b));
            integer!($int, Max, |a: $int, b: $int| a.max(b));
            integer!($int, Min, |a: $int, b: $int| a.min(b));
        )*
    };
    ($int:ty, $op:ident, $combine:expr) => {
        impl Arithmetic for $op<$int> {
            type Stored = $int;
            type Accumulator = $int;

            fn load(stored: $int) -> $int {
                stored
            }

            fn combine(a: $int, b: $int) -> $int {
                $combine(a, b)
            }

            fn store(accumulated: $int, _: usize) -> $int {
                accumulated
            }
        }
    };
}

integer!(i64, i32, i16, i8, u64, u32, u16, u8);

fn with_arithmetic(dtype: DType, op: ReduceOp, work: impl Work) {
    macro_rules! float_ops {
        ($name:ident) => {
            match op {
                ReduceOp::Sum => work.run::<$name::Sum>(),
                ReduceOp::Avg => work.run::<$name::Avg>(),
                ReduceOp::Max => work.run::<$name::Max>(),
                ReduceOp::Min => work.run::<$name::Min>(),
                ReduceOp::Prod => work.run::<$name::Prod>(),
            }
        };
    }
    macro_rules! integer_ops {
        ($int:ty) => {
            match op {
                ReduceOp::Sum => work.run::<Sum<$int>>(),
                ReduceOp::Max => work.run::<Max<$int>>(),
                ReduceOp::Min => work.run::<Min<$int>>(),
                ReduceOp::Prod => work.run::<Prod<$int>>(),
                ReduceOp::Avg => {}
            }
        };
    }
    match dtype {
        DType::F64 => float_ops!(f64_),
        DType::F32 => float_ops!(f32_),
        DType::Bf16 => float_ops!(bf16_),
        DType::F16 => float_ops!(f16_),
        DType::I64 => integer_ops!(i64),
        DType::I32 => integer_ops!(i32),
        DType::I16 => integer_ops!(i16),
        DType::I8 => integer_ops!(i8),
        DType::U64 => integer_ops!(u64),
        DType::U32 => integer_ops!(u32),
        DType::U16 => integer_ops!(u16),
        DType::U8 | DType::Bool => integer_ops!(u8),
        DType::F8E4M3 | DType::F8E5M2 => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduce<T: Pod>(dtype: DType, op: ReduceOp, parts: &[&[T]]) -> Vec<T> {
        let bytes: Vec<&[u8]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
        let mut out = vec![T::zeroed(); parts[0].len()];
        reduce_into(dtype, op, &bytes, bytemuck::cast_slice_mut(&mut out));
        let mut all: Vec<Vec<T>> = parts.iter().map(|part| part.to_vec()).collect();
        let mut views: Vec<&mut [u8]> = all.iter_mut().map(|part| bytemuck::cast_slice_mut(part)).collect();
        reduce_into_all(dtype, op, &mut views);
        for part in &all {
            assert_eq!(bytemuck::cast_slice::<T, u8>(part), bytemuck::cast_slice::<T, u8>(&out));
        }
        for (own_rank, part) in parts.iter().enumerate() {
            let mut own = part.to_vec();
            let others: Vec<&[u8]> = bytes
                .iter()
                .enumerate()
                .filter(|(rank, _)| *rank != own_rank)
                .map(|(_, part)| *part)
                .collect();
            reduce_in_place(dtype, op, &others, bytemuck::cast_slice_mut(&mut own), own_rank);
            assert_eq!(bytemuck::cast_slice::<T, u8>(&own), bytemuck::cast_slice::<T, u8>(&out));
        }
        out
    }

    #[test]
    fn halves_accumulate_wide_and_round_once() {
        // 256 + 1 is not a bf16; 256 + 1 + 1 is.
        let parts = [256.0f32, 1.0, 1.0].map(|x| vec![bf16::from_f32(x)]);
        let parts: Vec<&[bf16]> = parts.iter().map(Vec::as_slice).collect();
        assert_eq!(reduce(DType::Bf16, ReduceOp::Sum, &parts), [bf16::from_f32(258.0)]);
        // Partial sums of f16 values may exceed the range of f16.
        let parts = [60000.0f32, 60000.0, -60000.0].map(|x| vec![f16::from_f32(x)]);
        let parts: Vec<&[f16]> = parts.iter().map(Vec::as_slice).collect();
        assert_eq!(reduce(DType::F16, ReduceOp::Sum, &parts), [f16::from_f32(60000.0)]);
    }

    #[test]
    fn a_nan_wins_at_any_rank() {
        for rank in 0..3 {
            let mut values = [[1.0f32], [5.0], [3.0]];
            values[rank] = [f32::NAN];
            let parts: Vec<&[f32]> = values.iter().map(|v| &v[..]).collect();
            assert!(reduce(DType::F32, ReduceOp::Max, &parts)[0].is_nan());
            assert!(reduce(DType::F32, ReduceOp::Min, &parts)[0].is_nan());
        }
    }

    #[test]
    fn elements_are_reduced_in_rank_order_across_blocks() {
        let values: Vec<Vec<f32>> = (0..3)
            .map(|rank| {
                (0..3 * BLOCK + 7)
                    .map(|i| ((i * 37 + rank * 101) % 1000) as f32 * 1e-3 + 1e4f32.powi(rank as i32 - 1))
                    .collect()
            })
            .collect();
        let parts: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
        let expected: Vec<f32> =
            (0..values[0].len()).map(|i| (values[0][i] + values[1][i]) + values[2][i]).collect();
        assert_eq!(reduce(DType::F32, ReduceOp::Sum, &parts), expected);
        let expected: Vec<f32> = expected.iter().map(|sum| sum / 3.0).collect();
        assert_eq!(reduce(DType::F32, ReduceOp::Avg, &parts), expected);
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(reduce(DType::U8, ReduceOp::Sum, &[&[200u8], &[100]]), [44]);
        assert_eq!(reduce(DType::I8, ReduceOp::Prod, &[&[-128i8], &[-1]]), [-128]);
    }

    #[test]
    fn unsupported_reductions_are_rejected() {
        let error = check_reducible(DType::I32, ReduceOp::Avg).unwrap_err();
        assert_eq!(error.to_string(), "cannot reduce i32 elements with avg");
        assert!(check_reducible(DType::F8E4M3, ReduceOp::Max).is_err());
        assert!(check_reducible(DType::Bool, ReduceOp::Max).is_ok());
    }
}
