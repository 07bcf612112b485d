//! The thread and solo engines: conformance and failing ranks.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weightloom_errors::Hint;
use weightloom_gang::threads::RunError;
use weightloom_gang::{Gang, GangError, GangExt, GangOptions, Transfer, conformance, solo, threads};
use weightloom_layout::ReduceOp;

/// A test that waits this long has failed.
const LONG_TIMEOUT: GangOptions = GangOptions { timeout: Duration::from_secs(600) };
const SHORT_TIMEOUT: GangOptions = GangOptions { timeout: Duration::from_millis(200) };

fn run<T: Send>(ranks: usize, options: GangOptions, work: impl Fn(Arc<dyn Gang>) -> T + Sync) -> Vec<T> {
    threads::run(ranks, options, work).unwrap()
}

fn panicked(rank: usize, message: &str) -> RunError {
    RunError::Panics { panics: vec![(rank, message.to_owned())] }
}

#[test]
fn threads_conform() {
    for ranks in 1..=5 {
        let summaries = run(ranks, LONG_TIMEOUT, |gang| conformance::check(&*gang).unwrap());
        assert!(summaries.iter().all(|summary| summary.cases > 800), "{summaries:?}");
    }
}

#[test]
fn a_world_larger_than_the_machine_conforms() {
    run(13, LONG_TIMEOUT, |gang| conformance::check(&*gang).unwrap());
}

#[test]
fn solo_conforms() {
    let summary = conformance::check(&*solo(LONG_TIMEOUT)).unwrap();
    assert!(summary.cases > 800, "{summary:?}");
}

#[test]
fn the_suite_detects_a_faulty_gang() {
    // Flips a bit in every all-reduce.
    struct Faulty(Arc<dyn Gang>);
    impl Gang for Faulty {
        fn rank(&self) -> usize {
            0
        }
        fn size(&self) -> usize {
            1
        }
        fn engine(&self) -> &'static str {
            "faulty"
        }
        fn members(&self) -> &[usize] {
            &[0]
        }
        fn run(&self, call: weightloom_gang::Call<'_>) -> Result<(), GangError> {
            if !matches!(call.transfer(), Transfer::AllReduce { .. }) {
                return self.0.run(call);
            }
            let Transfer::AllReduce { mut buffer, .. } = call.into_transfer() else { unreachable!() };
            if let Some(first) = buffer.bytes_mut().first_mut() {
                *first ^= 1;
            }
            Ok(())
        }
        fn send(&self, data: weightloom_gang::Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
            self.0.send(data, to, tag)
        }
        fn ticket(&self, from: usize, tag: u32) -> Result<weightloom_gang::Ticket, GangError> {
            self.0.ticket(from, tag)
        }
        fn receive(
            &self,
            ticket: weightloom_gang::Ticket,
            into: weightloom_gang::ElementsMut<'_>,
        ) -> Result<(), GangError> {
            self.0.receive(ticket, into)
        }
        fn sub_gang(&self, _: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
            Ok(Arc::new(Faulty(solo(LONG_TIMEOUT))))
        }
        fn defer(&self, lane: weightloom_gang::Lane, job: weightloom_gang::Job) {
            self.0.defer(lane, job);
        }
    }
    let error = conformance::check(&Faulty(solo(LONG_TIMEOUT))).unwrap_err();
    assert!(error.to_string().starts_with("all_reduce(sum) of 5 f64 in a gang of 1: rank 0 got"), "{error}");
}

#[test]
fn different_calls_are_named_on_every_rank() {
    let errors = run(3, LONG_TIMEOUT, |gang| match gang.rank() {
        1 => gang.barrier().unwrap_err(),
        _ => gang.all_reduce(&mut [0f32; 4], ReduceOp::Sum).unwrap_err(),
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("rank 1 called barrier"), "{text}");
        assert!(text.contains("called all_reduce(sum) of 4 f32"), "{text}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn the_same_call_with_other_operands_is_named() {
    let check = |first: fn(&dyn Gang) -> Result<(), GangError>,
                 second: fn(&dyn Gang) -> Result<(), GangError>| {
        let texts = run(2, LONG_TIMEOUT, move |gang| {
            let call = if gang.rank() == 0 { first } else { second };
            call(&*gang).unwrap_err().to_string()
        });
        assert_eq!(texts[0], texts[1]);
        texts[0].clone()
    };
    let text = check(
        |gang| gang.all_reduce(&mut [0f32; 4], ReduceOp::Sum),
        |gang| gang.all_reduce(&mut [0f32; 5], ReduceOp::Sum),
    );
    assert!(text.contains("4 f32") && text.contains("5 f32"), "{text}");
    let text = check(
        |gang| gang.all_reduce(&mut [0f32; 4], ReduceOp::Sum),
        |gang| gang.all_reduce(&mut [0f32; 4], ReduceOp::Max),
    );
    assert!(text.contains("(sum)") && text.contains("(max)"), "{text}");
    let text = check(
        |gang| gang.all_reduce(&mut [0f32; 4], ReduceOp::Sum),
        |gang| gang.all_reduce(&mut [0i32; 4], ReduceOp::Sum),
    );
    assert!(text.contains("f32") && text.contains("i32"), "{text}");
    let text = check(|gang| gang.broadcast(&mut [0u8; 2], 0), |gang| gang.broadcast(&mut [0u8; 2], 1));
    assert!(text.contains("with root 0") && text.contains("with root 1"), "{text}");
    let text = check(
        |gang| gang.all_gather(&[0u8; 2], &[2, 1], &mut [0; 3]),
        |gang| gang.all_gather(&[0u8; 2], &[1, 2], &mut [0; 3]),
    );
    assert!(text.contains("all_gather of 3 u8 with counts #"), "{text}");
    let text = check(
        |gang| gang.all_to_all(&[0u8; 3], &[1, 2], &mut [0; 2], &[1, 1]),
        |gang| gang.all_to_all(&[0u8; 2], &[1, 1], &mut [0; 4], &[3, 1]),
    );
    assert_eq!(text, "in all_to_all, rank 0 sends 2 elements to rank 1, which expects 3");
}

#[test]
fn a_failed_gang_returns_the_same_error_again() {
    run(2, LONG_TIMEOUT, |gang| {
        let result = if gang.rank() == 0 { gang.barrier() } else { gang.broadcast(&mut [0u8], 0) };
        let first = result.unwrap_err();
        assert_eq!(gang.barrier(), Err(first));
    });
}

#[test]
fn a_panicking_rank_is_named_at_once() {
    let started = Instant::now();
    let outcome = threads::run(3, LONG_TIMEOUT, |gang| {
        assert!(gang.rank() != 2, "out of luck");
        gang.barrier().unwrap_err()
    });
    assert_eq!(outcome, Err(panicked(2, "out of luck")));

    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn waiting_ranks_get_the_panic_message() {
    let (sender, errors) = std::sync::mpsc::channel();
    let outcome = threads::run(2, LONG_TIMEOUT, |gang| {
        if gang.rank() == 1 {
            panic!("disk on fire");
        }
        sender.send(gang.all_reduce(&mut [1.0f32], ReduceOp::Sum).unwrap_err()).unwrap();
    });
    assert_eq!(outcome.unwrap_err().to_string(), "rank 1 panicked: disk on fire");
    let error = errors.recv().unwrap();
    assert_eq!(
        error.to_string(),
        "rank 1 panicked (`disk on fire`) before it joined all_reduce(sum) of 1 f32"
    );
}

#[test]
fn a_rank_that_panics_with_started_calls_does_not_block_the_others() {
    let begun = Instant::now();
    let (sender, errors) = std::sync::mpsc::channel();
    let outcome = threads::run(2, LONG_TIMEOUT, |gang| {
        let pair = gang.sub_gang(&[0, 1]).unwrap();
        if gang.rank() == 1 {
            // Rank 0 never joins this one; it waits in the other gang.
            let _started = gang.start_barrier();
            panic!("gone");
        }
        sender.send(pair.barrier().unwrap_err()).unwrap();
    });
    assert_eq!(outcome, Err(panicked(1, "gone")));
    assert!(matches!(errors.recv().unwrap(), GangError::Departed { rank: 1, .. }));
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_started_job_may_use_the_gang_it_was_started_on() {
    let sums = run(2, LONG_TIMEOUT, |gang| {
        let again = Arc::clone(&gang);
        let job = move |_: &dyn Gang| {
            let mut one = [1u32];
            again.all_reduce(&mut one, ReduceOp::Sum).map(|()| one[0])
        };
        gang.start(job).wait().unwrap()
    });
    assert_eq!(sums, [2, 2]);
}

#[test]
fn gangs_of_the_same_ranks_do_not_mix() {
    run(2, LONG_TIMEOUT, |root| {
        let a = root.sub_gang(&[0, 1]).unwrap();
        let b = a.sub_gang(&[0, 1]).unwrap();
        let again = root.sub_gang(&[0, 1]).unwrap();
        for gang in [&a, &b, &again, &root] {
            gang.send_slice(&[gang.rank() as u8], 1 - gang.rank(), 0).unwrap();
        }
        // Each rank uses them in another order.
        let sums: Vec<_> = match root.rank() {
            0 => vec![
                a.start_all_reduce(vec![1u32], ReduceOp::Sum),
                b.start_all_reduce(vec![10], ReduceOp::Sum),
            ],
            _ => {
                let second = b.start_all_reduce(vec![10], ReduceOp::Sum);
                vec![a.start_all_reduce(vec![1], ReduceOp::Sum), second]
            }
        };
        let sums: Vec<u32> = sums.into_iter().map(|sum| sum.wait().unwrap()[0]).collect();
        assert_eq!(sums, [2, 20]);
    });
}

#[test]
fn the_timeout_may_be_infinite() {
    let forever = GangOptions { timeout: Duration::MAX };
    let sums = run(2, forever, |gang| {
        let mut one = [1.0f32];
        gang.all_reduce(&mut one, ReduceOp::Sum).unwrap();
        gang.send_slice(&one, 1 - gang.rank(), 0).unwrap();
        gang.recv(&mut one, 1 - gang.rank(), 0).unwrap();
        one[0]
    });
    assert_eq!(sums, [2.0, 2.0]);
}

#[test]
fn a_job_that_panics_does_not_shift_later_calls() {
    let outcome = threads::run(2, SHORT_TIMEOUT, |gang| {
        let job = |gang: &dyn Gang| -> Result<(), GangError> {
            assert!(gang.rank() != 0, "a job gone wrong");
            Ok(())
        };
        let first = gang.start(job).wait();
        let second = gang.start_all_reduce(vec![1u8], ReduceOp::Sum).wait();
        let third = gang.all_reduce(&mut [5u8], ReduceOp::Sum);
        (first.is_ok(), second.is_ok(), third.is_ok())
    });
    assert_eq!(outcome.unwrap(), [(false, false, false), (true, false, false)]);
}

#[test]
fn a_started_job_may_start_another_and_hold_the_last_handle() {
    run(2, LONG_TIMEOUT, |gang| {
        let again = Arc::clone(&gang);
        let nested = gang.start(move |_| {
            thread::sleep(Duration::from_millis(20));
            again.start_all_reduce(vec![1u32], ReduceOp::Sum).wait()
        });
        drop(gang);
        assert_eq!(nested.wait().unwrap(), [2]);
    });
}

#[test]
fn a_receive_that_timed_out_does_not_consume_the_message() {
    run(2, SHORT_TIMEOUT, |gang| {
        if gang.rank() == 0 {
            assert!(gang.recv(&mut [0u8], 1, 4).is_err());
            gang.send_slice(&[1u8], 1, 5).unwrap();
            // On a busy machine it may take more than one timeout to come.
            let mut value = [0u8];
            assert!((0..50).any(|_| gang.recv(&mut value, 1, 4).is_ok()));
            assert_eq!(value, [7]);
        } else {
            while gang.recv(&mut [0u8], 0, 5).is_err() {}
            gang.send_slice(&[7u8], 0, 4).unwrap();
        }
    });
}

#[test]
fn counts_beyond_memory_are_errors() {
    let gang = solo(LONG_TIMEOUT);
    assert!(matches!(gang.start_all_gather(vec![0f64], vec![1 << 61]).wait(), Err(GangError::Memory { .. })));
    let sizes = [usize::MAX, 2];
    let gang = solo(LONG_TIMEOUT);
    assert!(gang.all_to_all::<f64>(&[], &sizes[..1], &mut [], &[0]).is_err());
    run(2, LONG_TIMEOUT, |gang| {
        let half = [1usize << 63; 2];
        let result = gang.all_to_all::<u8>(&[], &half, &mut [], &half);
        assert!(matches!(result, Err(GangError::Length { .. })), "{result:?}");
    });
    let empty = weightloom_gang::Elements::from_bytes(weightloom_layout::DType::F64, &[]);
    assert!(empty.is_ok(), "an empty shard has no alignment");
}

#[test]
fn a_rank_that_leaves_early_is_named_in_sub_gangs_and_messages() {
    let errors = run(4, LONG_TIMEOUT, |gang| {
        let pair = gang.sub_gang(&[gang.rank() / 2 * 2, gang.rank() / 2 * 2 + 1]).unwrap();
        match gang.rank() {
            3 => None,
            2 => Some(pair.barrier().unwrap_err()),
            1 => Some(gang.recv(&mut [0u8], 3, 5).unwrap_err()),
            // A gang without the lost rank continues to work, until
            // its own partner leaves.
            _ => Some(pair.barrier().unwrap_err()),
        }
    });
    let departed = |error: &Option<GangError>| match error {
        Some(GangError::Departed { rank, .. }) => Some(*rank),
        _ => None,
    };
    assert_eq!(errors.iter().map(departed).collect::<Vec<_>>(), [Some(1), Some(3), Some(3), None]);
}

#[test]
fn a_sub_gang_formed_after_a_rank_left_fails() {
    let errors = run(2, LONG_TIMEOUT, |gang| {
        if gang.rank() == 1 {
            return None;
        }
        thread::sleep(Duration::from_millis(50));
        Some(gang.sub_gang(&[0, 1]).unwrap().barrier().unwrap_err())
    });
    assert!(matches!(errors[0], Some(GangError::Departed { rank: 1, .. })));
}

#[test]
fn a_stuck_rank_is_named_after_the_timeout() {
    let errors = run(3, SHORT_TIMEOUT, |gang| {
        if gang.rank() == 1 {
            thread::sleep(Duration::from_secs(2));
            return gang.barrier().unwrap_err();
        }
        gang.barrier().unwrap_err()
    });
    for error in errors {
        assert_eq!(error.to_string(), "rank 1 did not join barrier within 0.2 s");
    }
}

#[test]
fn a_message_that_never_comes_times_out() {
    let results = run(2, SHORT_TIMEOUT, |gang| {
        let result = gang.recv(&mut [0u8], 1 - gang.rank(), 3);
        thread::sleep(Duration::from_millis(500));
        result
    });
    let text = results[0].clone().unwrap_err().to_string();
    assert_eq!(text, "rank 1 did not join a message to rank 0 under tag 3 within 0.2 s");
}

#[test]
fn a_second_thread_of_a_rank_is_rejected() {
    run(2, LONG_TIMEOUT, |gang| {
        if gang.rank() == 0 {
            let other = Arc::clone(&gang);
            let first = thread::spawn(move || other.barrier());
            thread::sleep(Duration::from_millis(100));
            let error = gang.all_reduce(&mut [0u8], ReduceOp::Max).unwrap_err();
            assert!(matches!(error, GangError::Reentered { rank: 0, .. }), "{error}");
            gang.send_slice(&[0u8], 1, 0).unwrap();
            first.join().unwrap().unwrap();
        } else {
            gang.recv(&mut [0u8], 0, 0).unwrap();
            gang.barrier().unwrap();
        }
    });
}

#[test]
fn dropped_handles_still_complete() {
    let sums = run(2, LONG_TIMEOUT, |gang| {
        drop(gang.start_all_reduce(vec![1f32; 1000], ReduceOp::Sum));
        let mut one = [1.0f32];
        gang.all_reduce(&mut one, ReduceOp::Sum).unwrap();
        drop(gang.start_barrier());
        one[0]
    });
    assert_eq!(sums, [2.0, 2.0]);
}

#[test]
fn started_calls_overlap_with_work() {
    // Rank 1 joins late; rank 0 is free in the meantime.
    run(2, LONG_TIMEOUT, |gang| {
        if gang.rank() == 1 {
            gang.recv(&mut [0u8], 0, 0).unwrap();
        }
        let mut pending = gang.start_all_reduce(vec![gang.rank() as f64], ReduceOp::Sum);
        if gang.rank() == 0 {
            assert!(!pending.is_done());
            gang.send_slice(&[0u8], 1, 0).unwrap();
        }
        assert_eq!(pending.wait().unwrap(), [1.0]);
    });
}

#[test]
fn results_are_the_same_bits_every_time() {
    let sum = || {
        run(5, LONG_TIMEOUT, |gang| {
            let mut values: Vec<f32> =
                (0..10_007).map(|i| ((i * 31 + gang.rank() * 17) % 1000) as f32 * 0.1 - 50.0).collect();
            gang.all_reduce(&mut values, ReduceOp::Avg).unwrap();
            values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>()
        })
    };
    let first = sum();
    assert!(first.windows(2).all(|pair| pair[0] == pair[1]));
    (0..10).for_each(|_| assert_eq!(sum(), first));
}
