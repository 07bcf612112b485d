//! Collectives, blocking and started.

use half::{bf16, f16};
use weightloom_layout::{DType, ReduceOp};

use super::values::{Values, combined, contribution};
use super::{Checker, ConformanceError, roots};
use crate::call::Call;
use crate::element::{Element, Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, GangExt};
use crate::reduce::check_reducible;

/// How much each rank contributes: the same, uneven, nothing but for one rank,
/// nothing at all, and more than fits in one block or packet (together, so that
/// large gangs are not held up by it).
fn payloads(ranks: usize) -> Vec<Vec<usize>> {
    let many = 12_500 / ranks;
    vec![
        vec![5; ranks],
        (0..ranks).map(|rank| (rank * 3 + 2) % 7).collect(),
        (0..ranks).map(|rank| if rank + 1 == ranks { 4 } else { 0 }).collect(),
        vec![0; ranks],
        (0..ranks).map(|rank| many + rank % 5 * 601).collect(),
    ]
}

impl Checker {
    pub(super) fn collectives(&mut self, gang: &dyn Gang, dtype: DType) -> Result<(), ConformanceError> {
        for counts in payloads(gang.size()) {
            self.moves(gang, dtype, &counts)?;
            for op in ReduceOp::ALL {
                if check_reducible(dtype, op).is_ok() {
                    self.reductions(gang, dtype, op, &counts)?;
                }
            }
        }
        Ok(())
    }

    fn moves(&mut self, gang: &dyn Gang, dtype: DType, counts: &[usize]) -> Result<(), ConformanceError> {
        let (rank, size) = (gang.rank(), gang.size());
        let total: usize = counts.iter().sum();

        let case = format!("all_gather of {counts:?} {dtype} in a gang of {size}");
        let send = Values::of(dtype, (0..counts[rank]).map(|i| contribution(dtype, rank, i)));
        let mut recv = Values::zeroed(dtype, total);
        let result = gang.run(Call::AllGather {
            send: elements(dtype, &send),
            recv: elements_mut(dtype, &mut recv),
            counts,
        });
        self.run(case.clone(), result)?;
        let all: Vec<f64> =
            (0..size).flat_map(|r| (0..counts[r]).map(move |i| contribution(dtype, r, i))).collect();
        self.equal(case, recv.bytes(), Values::of(dtype, all.into_iter()).bytes())?;

        for root in roots(size) {
            let count = counts[root];
            let case = format!("broadcast of {count} {dtype} from {root} of {size}");
            let mut buffer = Values::of(dtype, (0..count).map(|i| contribution(dtype, rank, i)));
            let result = gang.run(Call::Broadcast { buffer: elements_mut(dtype, &mut buffer), root });
            self.run(case.clone(), result)?;
            let expected = Values::of(dtype, (0..count).map(|i| contribution(dtype, root, i)));
            self.equal(case, buffer.bytes(), expected.bytes())?;
        }

        // What rank a sends rank b, and which values: uneven in both.
        let traded = |from: usize, to: usize| counts[(from + 2 * to) % size];
        let value = |from: usize, to: usize, i: usize| contribution(dtype, from * 5 + to, i);
        let send_counts: Vec<usize> = (0..size).map(|to| traded(rank, to)).collect();
        let recv_counts: Vec<usize> = (0..size).map(|from| traded(from, rank)).collect();
        let case = format!("all_to_all of {send_counts:?} {dtype} for {recv_counts:?} in a gang of {size}");
        let sent: Vec<f64> =
            (0..size).flat_map(|to| (0..traded(rank, to)).map(move |i| value(rank, to, i))).collect();
        let send = Values::of(dtype, sent.into_iter());
        let mut recv = Values::zeroed(dtype, recv_counts.iter().sum());
        let result = gang.run(Call::AllToAll {
            send: elements(dtype, &send),
            send_counts: &send_counts,
            recv: elements_mut(dtype, &mut recv),
            recv_counts: &recv_counts,
        });
        self.run(case.clone(), result)?;
        let expected: Vec<f64> =
            (0..size).flat_map(|from| (0..traded(from, rank)).map(move |i| value(from, rank, i))).collect();
        self.equal(case, recv.bytes(), Values::of(dtype, expected.into_iter()).bytes())
    }

    fn reductions(
        &mut self,
        gang: &dyn Gang,
        dtype: DType,
        op: ReduceOp,
        counts: &[usize],
    ) -> Result<(), ConformanceError> {
        let (rank, size) = (gang.rank(), gang.size());
        let total: usize = counts.iter().sum();
        let mine = || Values::of(dtype, (0..total).map(|i| contribution(dtype, rank, i)));
        let sums =
            |range: std::ops::Range<usize>| Values::of(dtype, range.map(|i| combined(dtype, op, size, i)));

        let case = format!("all_reduce({op}) of {total} {dtype} in a gang of {size}");
        let mut buffer = mine();
        let result = gang.run(Call::AllReduce { buffer: elements_mut(dtype, &mut buffer), op });
        self.run(case.clone(), result)?;
        self.equal(case, buffer.bytes(), sums(0..total).bytes())?;

        let case = format!("all_reduce_into({op}) of {total} {dtype} in a gang of {size}");
        let (send, mut recv) = (mine(), Values::zeroed(dtype, total));
        let result = gang.run(Call::AllReduceInto {
            send: elements(dtype, &send),
            recv: elements_mut(dtype, &mut recv),
            op,
        });
        self.run(case.clone(), result)?;
        self.equal(case.clone(), send.bytes(), mine().bytes())?;
        self.equal(case, recv.bytes(), sums(0..total).bytes())?;

        let case = format!("reduce_scatter({op}) of {counts:?} {dtype} in a gang of {size}");
        let send = mine();
        let mut recv = Values::zeroed(dtype, counts[rank]);
        let result = gang.run(Call::ReduceScatter {
            send: elements(dtype, &send),
            recv: elements_mut(dtype, &mut recv),
            counts,
            op,
        });
        self.run(case.clone(), result)?;
        let start: usize = counts[..rank].iter().sum();
        self.equal(case, recv.bytes(), sums(start..start + counts[rank]).bytes())
    }

    /// Sums whose bits depend on the order of addition come out as they do when
    /// added in rank order, halves in `f32` with one rounding.
    pub(super) fn rounding(&mut self, gang: &dyn Gang) -> Result<(), ConformanceError> {
        let awkward = |rank: usize, i: usize| {
            let sign = if (rank + i).is_multiple_of(2) { 1.0 } else { -1.0 };
            sign * (1.0 + i as f32 / 7.0) * 10f32.powi((rank * 3 + i) as i32 % 5 - 2)
        };
        self.rounding_of::<f32, f32>(gang, awkward, |sum, x| sum + x, |x| x, |sum| sum)?;
        self.rounding_of::<f64, f64>(
            gang,
            |rank, i| f64::from(awkward(rank, i)) / 3.0,
            |sum, x| sum + x,
            |x| x,
            |sum| sum,
        )?;
        self.rounding_of::<bf16, f32>(
            gang,
            |rank, i| bf16::from_f32(awkward(rank, i)),
            |sum, x| sum + x,
            bf16::to_f32,
            bf16::from_f32,
        )?;
        self.rounding_of::<f16, f32>(
            gang,
            |rank, i| f16::from_f32(awkward(rank, i)),
            |sum, x| sum + x,
            f16::to_f32,
            f16::from_f32,
        )
    }

    fn rounding_of<T: Element + std::fmt::Debug, W: Copy>(
        &mut self,
        gang: &dyn Gang,
        value: impl Fn(usize, usize) -> T,
        add: impl Fn(W, W) -> W,
        widen: impl Fn(T) -> W,
        narrow: impl Fn(W) -> T,
    ) -> Result<(), ConformanceError> {
        for length in [3, 1_000, 200_000 / gang.size()] {
            let case = format!("order of addition of {length} {} in a gang of {}", T::DTYPE, gang.size());
            let mut buffer: Vec<T> = (0..length).map(|i| value(gang.rank(), i)).collect();
            self.run(case.clone(), gang.all_reduce(&mut buffer, ReduceOp::Sum))?;
            let expected: Vec<T> = (0..length)
                .map(|i| {
                    let first = widen(value(0, i));
                    narrow((1..gang.size()).fold(first, |sum, rank| add(sum, widen(value(rank, i)))))
                })
                .collect();
            self.equal(case, bytemuck::cast_slice::<T, u8>(&buffer), bytemuck::cast_slice(&expected))?;
        }
        Ok(())
    }

    /// The started forms, several under way at once, waited for out of order,
    /// with a blocking call behind them.
    pub(super) fn pending(&mut self, gang: &dyn Gang) -> Result<(), ConformanceError> {
        let (rank, size) = (gang.rank(), gang.size());
        let counts: Vec<usize> = (0..size).map(|r| r + 1).collect();
        let total: usize = counts.iter().sum();
        let ranks = || 0..size as i64;

        let reduced = gang.start_all_reduce(vec![rank as i64; 3], ReduceOp::Sum);
        let gathered = gang.start_all_gather(vec![rank as i64; counts[rank]], counts.clone());
        let scattered = gang.start_reduce_scatter(vec![rank as i64; total], counts.clone(), ReduceOp::Max);
        let traded = gang.start_all_to_all(vec![rank as i64; size], vec![1; size], vec![1; size]);
        let shared = gang.start_broadcast(vec![rank as i64 * 10], size - 1);
        let mut passed = gang.start_barrier();
        let mut last = [1i64];
        self.run("blocking behind started".to_owned(), gang.all_reduce(&mut last, ReduceOp::Sum))?;
        self.equal("blocking behind started".to_owned(), &last, &[size as i64])?;
        self.equal("started before a blocking call".to_owned(), &passed.is_done(), &true)?;
        self.run("start_barrier".to_owned(), passed.wait())?;

        let shared = self.run("start_broadcast".to_owned(), shared.wait())?;
        self.equal("start_broadcast".to_owned(), &shared, &vec![(size as i64 - 1) * 10])?;
        let traded = self.run("start_all_to_all".to_owned(), traded.wait())?;
        self.equal("start_all_to_all".to_owned(), &traded, &ranks().collect())?;
        let scattered = self.run("start_reduce_scatter".to_owned(), scattered.wait())?;
        self.equal("start_reduce_scatter".to_owned(), &scattered, &vec![size as i64 - 1; counts[rank]])?;
        let gathered = self.run("start_all_gather".to_owned(), gathered.wait())?;
        let expected: Vec<i64> = ranks().flat_map(|r| vec![r; r as usize + 1]).collect();
        self.equal("start_all_gather".to_owned(), &gathered, &expected)?;
        let reduced = self.run("start_all_reduce".to_owned(), reduced.wait())?;
        self.equal("start_all_reduce".to_owned(), &reduced, &vec![ranks().sum(); 3])
    }

    /// What a rank can know to be wrong by itself is refused before anybody
    /// else is involved, and harms nothing.
    pub(super) fn refusals(&mut self, gang: &dyn Gang) -> Result<(), ConformanceError> {
        let size = gang.size();
        let mut one = [0f32];
        let refused = [
            gang.broadcast(&mut one, size),
            gang.all_gather(&[0f32], &vec![1; size + 1], &mut one),
            gang.all_gather(&[0f32], &vec![2; size], &mut vec![0f32; 2 * size]),
            gang.all_reduce(&mut [1i32], ReduceOp::Avg),
            gang.send_slice(&one, size, 0),
            gang.recv(&mut one, size, 0),
            gang.sub_gang(&[gang.rank(), gang.rank()]).map(drop),
            gang.sub_gang(&[size]).map(drop),
            gang.sub_gang(&[]).map(drop),
        ];
        for (number, result) in refused.into_iter().enumerate() {
            let local = matches!(
                result,
                Err(GangError::NoSuchRank { .. }
                    | GangError::CountList { .. }
                    | GangError::Length { .. }
                    | GangError::NotReducible { .. }
                    | GangError::SubGang { .. })
            );
            self.equal(format!("refusal {number} ({result:?})"), &local, &true)?;
        }
        self.run("barrier after refusals".to_owned(), gang.barrier())
    }
}

fn elements(dtype: DType, values: &Values) -> Elements<'_> {
    Elements::from_bytes(dtype, values.bytes()).expect("values are aligned")
}

fn elements_mut(dtype: DType, values: &mut Values) -> ElementsMut<'_> {
    ElementsMut::from_bytes(dtype, values.bytes_mut()).expect("values are aligned")
}
