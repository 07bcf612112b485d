//! Point-to-point messages, and objects.

use serde::{Deserialize, Serialize};

use super::{Checker, ConformanceError, roots};
use crate::error::GangError;
use crate::gang::{Gang, GangExt};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Object {
    name: String,
    numbers: Vec<f64>,
    inner: Option<Box<Object>>,
}

fn object(rank: usize) -> Object {
    Object {
        name: format!("rank {rank}"),
        numbers: (0..rank % 7 * 40).map(|i| i as f64 / 3.0).collect(),
        inner: (!rank.is_multiple_of(4)).then(|| Box::new(object(rank - 1))),
    }
}

impl Checker {
    pub(super) fn messages(&mut self, gang: &dyn Gang) -> Result<(), ConformanceError> {
        let (rank, size) = (gang.rank(), gang.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        // All ranks send before any receives, also more than an engine would
        // buffer by itself.
        for length in [0, 1, 1_000, 300_000] {
            let case = format!("ring of {length} in a gang of {size}");
            let data = vec![rank as f32; length];
            self.run(case.clone(), gang.send_slice(&data, next, 1))?;
            let mut received = vec![-1f32; length];
            self.run(case.clone(), gang.recv(&mut received, previous, 1))?;
            self.equal(case, &received, &vec![previous as f32; length])?;
        }

        // Tags separate messages; tickets go by the order of reservation.
        let case = format!("tags and tickets in a gang of {size}");
        let early = gang.start_recv::<u64>(1, previous, 7);
        let late = gang.start_recv::<u64>(1, previous, 7);
        for (value, tag) in [(30, 8), (10, 7), (20, 7)] {
            self.run(case.clone(), gang.send_slice(&[value + rank as u64], next, tag))?;
        }
        let mut other = [0u64];
        self.run(case.clone(), gang.recv(&mut other, previous, 8))?;
        let late = self.run(case.clone(), late.wait())?;
        let early = self.run(case.clone(), early.wait())?;
        let expected = [10, 20, 30].map(|value| value + previous as u64);
        self.equal(case, &[early[0], late[0], other[0]], &expected)?;

        let case = format!("message of another length in a gang of {size}");
        self.run(case.clone(), gang.send_slice(&[1f32, 2.0], next, 9))?;
        let result = gang.recv(&mut [0f32], previous, 9);
        self.equal(case, &matches!(result, Err(GangError::Message { tag: 9, .. })), &true)?;

        // A started receive does not delay collectives.
        let case = format!("receive across a collective in a gang of {size}");
        let waiting = gang.start_recv::<u8>(1, previous, 10);
        self.run(case.clone(), gang.barrier())?;
        self.run(case.clone(), gang.send_slice(&[rank as u8], next, 10))?;
        let received = self.run(case.clone(), waiting.wait())?;
        self.equal(case, &received, &vec![previous as u8])
    }

    pub(super) fn objects(&mut self, gang: &dyn Gang) -> Result<(), ConformanceError> {
        let (rank, size) = (gang.rank(), gang.size());
        let all: Vec<Object> = (0..size).map(object).collect();
        let case = format!("objects in a gang of {size}");
        let gathered = self.run(case.clone(), gang.all_gather_objects(&object(rank)))?;
        self.equal(case.clone(), &gathered, &all)?;
        for root in roots(size) {
            let expected = &all[root];
            let mine = object(rank);
            let shared = gang.broadcast_object((rank == root).then_some(&mine), root);
            let shared = self.run(case.clone(), shared)?;
            self.equal(case.clone(), &shared, expected)?;
            let gathered = self.run(case.clone(), gang.gather_objects(&mine, root))?;
            self.equal(case.clone(), &gathered, &(rank == root).then(|| all.clone()))?;
        }
        Ok(())
    }
}
