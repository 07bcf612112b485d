//! Behaviour across collectives: order of addition, started operations, local
//! errors.

use half::{bf16, f16};
use weightloom_layout::ReduceOp;

use super::{Checker, ConformanceError};
use crate::element::Element;
use crate::error::GangError;
use crate::gang::{Gang, GangExt};

impl Checker {
    /// Sums whose bits depend on the order of addition equal those added in rank
    /// order; 16-bit floats accumulate in `f32` and round once.
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

    /// Several started operations at once, awaited out of order, followed by a
    /// blocking call.
    pub(super) fn pending(&mut self, gang: &dyn Gang) -> Result<(), ConformanceError> {
        let (rank, size) = (gang.rank(), gang.size());
        let counts: Vec<usize> = (0..size).map(|r| r + 1).collect();
        let total: usize = counts.iter().sum();
        let ranks = || 0..size as i64;

        let reduced = gang.start_all_reduce(vec![rank as i64; 3], ReduceOp::Sum);
        let gathered = gang.start_all_gather(vec![rank as i64; counts[rank]], counts.clone());
        let scattered = gang.start_reduce_scatter(vec![rank as i64; total], counts.clone(), ReduceOp::Max);
        let exchanged = gang.start_all_to_all(vec![rank as i64; size], vec![1; size], vec![1; size]);
        let shared = gang.start_broadcast(vec![rank as i64 * 10], size - 1);
        let mut passed = gang.start_barrier();
        let mut last = [1i64];
        self.run("blocking after started".to_owned(), gang.all_reduce(&mut last, ReduceOp::Sum))?;
        self.equal("blocking after started".to_owned(), &last, &[size as i64])?;
        self.equal("started before a blocking call".to_owned(), &passed.is_done(), &true)?;
        self.run("start_barrier".to_owned(), passed.wait())?;

        let shared = self.run("start_broadcast".to_owned(), shared.wait())?;
        self.equal("start_broadcast".to_owned(), &shared, &vec![(size as i64 - 1) * 10])?;
        let exchanged = self.run("start_all_to_all".to_owned(), exchanged.wait())?;
        self.equal("start_all_to_all".to_owned(), &exchanged, &ranks().collect())?;
        let scattered = self.run("start_reduce_scatter".to_owned(), scattered.wait())?;
        self.equal("start_reduce_scatter".to_owned(), &scattered, &vec![size as i64 - 1; counts[rank]])?;
        let gathered = self.run("start_all_gather".to_owned(), gathered.wait())?;
        let expected: Vec<i64> = ranks().flat_map(|r| vec![r; r as usize + 1]).collect();
        self.equal("start_all_gather".to_owned(), &gathered, &expected)?;
        let reduced = self.run("start_all_reduce".to_owned(), reduced.wait())?;
        self.equal("start_all_reduce".to_owned(), &reduced, &vec![ranks().sum(); 3])
    }

    /// A rank rejects invalid operands without the other ranks, and the gang
    /// stays usable.
    pub(super) fn local_errors(&mut self, gang: &dyn Gang) -> Result<(), ConformanceError> {
        let size = gang.size();
        let mut one = [0f32];
        let rejected = [
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
        for (number, result) in rejected.into_iter().enumerate() {
            let local = matches!(
                result,
                Err(GangError::NoSuchRank { .. }
                    | GangError::CountList { .. }
                    | GangError::Length { .. }
                    | GangError::NotReducible { .. }
                    | GangError::SubGang { .. })
            );
            self.equal(format!("local error {number} ({result:?})"), &local, &true)?;
        }
        self.run("barrier after local errors".to_owned(), gang.barrier())
    }
}
