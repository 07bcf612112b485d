//! The engine of messages: conformance, equal bits, and failing ranks.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weightloom_gang::transport::{Inbox, Transport, TransportError, connect};
use weightloom_gang::{Gang, GangError, GangExt, GangOptions, conformance, threads};
use weightloom_layout::ReduceOp;

/// Delivers to the inboxes of threads.
struct Inboxes {
    rank: usize,
    inboxes: Arc<[Inbox]>,
}

impl Transport for Inboxes {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.inboxes.len()
    }

    fn engine(&self) -> &'static str {
        "inboxes"
    }

    fn inbox(&self) -> &Inbox {
        &self.inboxes[self.rank]
    }

    fn send(&self, to: usize, message: &[&[u8]]) -> Result<(), TransportError> {
        self.inboxes[to].deliver(self.rank, message.concat());
        Ok(())
    }

    fn flush(&self, _: Instant) -> Result<(), TransportError> {
        Ok(())
    }
}

/// Runs ranks on threads, and returns what each returned.
fn run<T: Send>(ranks: usize, timeout: Duration, work: impl Fn(Arc<dyn Gang>, &Inbox) -> T + Sync) -> Vec<T> {
    let inboxes: Arc<[Inbox]> = (0..ranks).map(|_| Inbox::default()).collect();
    let work = &work;
    thread::scope(|scope| {
        let started: Vec<_> = (0..ranks)
            .map(|rank| {
                let inboxes = Arc::clone(&inboxes);
                scope.spawn(move || {
                    let gang =
                        connect(Inboxes { rank, inboxes: Arc::clone(&inboxes) }, GangOptions { timeout });
                    work(gang, &inboxes[rank])
                })
            })
            .collect();
        started.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

const LONG: Duration = Duration::from_secs(120);

#[test]
fn messages_conform() {
    for ranks in [1, 2, 3, 4, 5, 7] {
        for summary in run(ranks, LONG, |gang, _| conformance::check(&*gang)) {
            assert!(summary.unwrap().cases > 800);
        }
    }
}

#[test]
fn bits_are_those_of_thread_ranks() {
    let awkward = |rank: usize, i: usize| {
        ((i * 31 + rank * 17) % 1000) as f32 * 0.1 * 10f32.powi((rank * 3 + i) as i32 % 7 - 3)
    };
    for length in [5, 3_000, 200_003] {
        let reduced = |gang: Arc<dyn Gang>| {
            let mut values: Vec<f32> = (0..length).map(|i| awkward(gang.rank(), i)).collect();
            gang.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        let expected = threads::run(4, GangOptions::default(), reduced).unwrap();
        assert_eq!(run(4, LONG, |gang, _| reduced(gang)), expected);
    }
}

fn errors(outcomes: Vec<Result<(), GangError>>) -> Vec<String> {
    outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect()
}

#[test]
fn different_calls_are_named_on_every_rank() {
    let outcomes = run(4, LONG, |gang, _| match gang.rank() {
        3 => gang.all_reduce(&mut [0f32; 4], ReduceOp::Sum),
        _ => gang.barrier(),
    });
    let named = "rank 1 called barrier, but rank 3 called all_reduce(sum) of 4 f32";
    assert_eq!(errors(outcomes), [named; 4]);
}

#[test]
fn different_counts_are_named_on_every_rank() {
    let outcomes = run(4, LONG, |gang, _| {
        let mut counts = [1; 4];
        if gang.rank() == 1 {
            counts[2] = 3;
        }
        let send = vec![0u8; counts.iter().sum()];
        gang.all_to_all(&send, &counts, &mut [0; 4], &[1; 4])
    });
    let named = "in all_to_all, rank 1 sends 3 elements to rank 2, which expects 1";
    assert_eq!(errors(outcomes), [named; 4]);
}

#[test]
fn a_stuck_rank_is_named_instead_of_those_that_wait_for_it() {
    // Rank 5 is a child of rank 2, a child of rank 0.
    for stuck in [5, 2, 0] {
        let begun = Instant::now();
        let outcomes = run(6, Duration::from_millis(600), |gang, _| match gang.rank() {
            rank if rank == stuck => Err(GangError::NoSuchRank { rank, size: 6 }),
            _ => gang.barrier(),
        });
        let named = format!("rank {stuck} did not join barrier within 0.6 s");
        for (rank, error) in errors(outcomes).into_iter().enumerate().filter(|(rank, _)| *rank != stuck) {
            assert_eq!(error, named, "on rank {rank}");
        }
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn after_a_failure_every_call_returns_it() {
    let outcomes = run(2, Duration::from_millis(200), |gang, _| match gang.rank() {
        0 => {
            let first = gang.barrier().unwrap_err();
            assert_eq!(gang.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap_err(), first);
            assert_eq!(gang.sub_gang(&[0]).map(drop).unwrap_err(), first);
            first.to_string()
        }
        _ => String::new(),
    });
    assert_eq!(outcomes[0], "rank 1 did not join barrier within 0.2 s");
}

#[test]
fn a_lost_connection_ends_waits_at_once() {
    let begun = Instant::now();
    let outcomes = run(2, LONG, |gang, inbox| match gang.rank() {
        0 => {
            inbox.lose("closed by peer");
            let barrier = gang.barrier().unwrap_err().to_string();
            let received = gang.recv(&mut [0u8], 1, 3).unwrap_err().to_string();
            format!("{barrier}\n{received}")
        }
        _ => String::new(),
    });
    let lost = "inboxes: the connection was lost while rank 1 was awaited in";
    assert_eq!(
        outcomes[0],
        format!("{lost} barrier: closed by peer\n{lost} a message to rank 0 under tag 3: closed by peer")
    );
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn foreign_bytes_are_ignored() {
    for outcome in run(2, LONG, |gang, inbox| {
        inbox.deliver(1 - gang.rank(), vec![1, 2, 3]);
        inbox.deliver(1 - gang.rank(), vec![0xff; 64]);
        let mut sum = [1u32];
        gang.all_reduce(&mut sum, ReduceOp::Sum).map(|()| sum)
    }) {
        assert_eq!(outcome, Ok([2]));
    }
}
