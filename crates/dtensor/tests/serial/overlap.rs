//! Communication overlaps with computation, and reports its failures.

#![allow(clippy::print_stdout, reason = "measurements are worth printing")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use weightloom_dtensor::{DTensor, DTensorError, DistContext, Release, Role, backward};
use weightloom_errors::Hint as _;
use weightloom_gang::{
    Call, Departure, Elements, ElementsMut, Gang, GangError, GangOptions, Job, Lane, Ticket, threads,
};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
use weightloom_tensor::Stream;

type Before = Arc<dyn Fn(&Call<'_>) -> Result<(), GangError> + Send + Sync>;

/// A gang in which something happens before each collective.
struct Hooked {
    inner: Arc<dyn Gang>,
    before: Before,
}

impl Hooked {
    fn over(
        inner: &Arc<dyn Gang>,
        before: impl Fn(&Call<'_>) -> Result<(), GangError> + Send + Sync + 'static,
    ) -> Arc<dyn Gang> {
        Arc::new(Self { inner: Arc::clone(inner), before: Arc::new(before) })
    }
}

impl Gang for Hooked {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn engine(&self) -> &'static str {
        self.inner.engine()
    }

    fn members(&self) -> &[usize] {
        self.inner.members()
    }

    fn run(&self, call: Call<'_>) -> Result<(), GangError> {
        (self.before)(&call)?;
        self.inner.run(call)
    }

    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
        self.inner.send(data, to, tag)
    }

    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError> {
        self.inner.ticket(from, tag)
    }

    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError> {
        self.inner.receive(ticket, into)
    }

    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
        Ok(Arc::new(Self { inner: self.inner.sub_gang(ranks)?, before: Arc::clone(&self.before) }))
    }

    fn defer(&self, lane: Lane, job: Job) {
        self.inner.defer(lane, job);
    }
}

/// Two ranks that share weights.
struct Layers {
    weights: Vec<DTensor>,
    x: DTensor,
    whole: Layout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Beside,
    InTurn,
}

impl Layers {
    fn new(gang: Arc<dyn Gang>, count: usize, way: Way) -> Result<Self, DTensorError> {
        let mesh = Mesh::new(&[("dp", 2)])?;
        let dist = DistContext::new(gang);
        if way == Way::Beside {
            dist.overlap(mesh)?;
        }
        let shared = Layout::new(mesh, &[Placement::Shard(0)])?;
        let normal = |number: u64| {
            let stream = Stream { seed: 1, number };
            DTensor::normal(&dist, DType::F32, &Shape::new(&[6, 6]).unwrap(), shared, stream)
        };
        let weights = (0..count as u64).map(|at| Ok(normal(at)?.parameter(Role::Trained)));
        let weights = weights.collect::<Result<_, DTensorError>>()?;
        let x = normal(99)?.requires_grad();
        Ok(Self { whole: Layout::replicated(mesh), weights, x })
    }

    fn fetch(&self, layer: usize) -> Result<(), DTensorError> {
        self.weights.get(layer).map_or(Ok(()), |weight| weight.prefetch(self.whole, DType::F32))
    }

    /// A pass forth and back, with work in each layer on both ways.
    fn pass(&self, work: Duration) -> Result<Vec<u32>, DTensorError> {
        let mut x = self.x.clone();
        self.fetch(0)?;
        for (at, weight) in self.weights.iter().enumerate() {
            self.fetch(at + 1)?;
            x = x.register_hook(move || {
                thread::sleep(work);
                Ok(())
            })?;
            x = x.linear(&weight.used(self.whole, DType::F32, Release::Keep)?, None, None)?.tanh()?;
            thread::sleep(work);
        }
        backward([(x.sum_all()?, None)])?;
        let mut bits = Vec::new();
        for weight in &self.weights {
            let gradient = weight.take_gradient()?;
            let values = gradient.map(|gradient| gradient.to_local().to_vec::<f32>()).transpose()?;
            bits.extend(values.unwrap_or_default().iter().map(|value| value.to_bits()));
        }
        Ok(bits)
    }
}

/// A collective that waits for the caller to continue would never end if the caller
/// waited for it.
#[test]
fn the_caller_goes_on_while_ranks_communicate() {
    let _serial = crate::serial();
    threads::run(2, GangOptions::default(), |gang| {
        let caller: ThreadId = thread::current().id();
        let gone_on: Arc<(Mutex<usize>, Condvar)> = Arc::default();
        let (beside, waited) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&gone_on));
        let count = Arc::clone(&beside);
        let watched = Hooked::over(&gang, move |_| {
            assert_ne!(thread::current().id(), caller, "the caller communicates itself");
            let number = count.fetch_add(1, Ordering::SeqCst);
            let (lock, changed) = &*waited;
            let limit = Duration::from_secs(60);
            let (_gone, out) = changed
                .wait_timeout_while(lock.lock().unwrap(), limit, |gone_on| *gone_on <= number)
                .unwrap();
            assert!(!out.timed_out(), "the caller waits for collective {number}");
            Ok(())
        });
        let goes_on = || {
            *gone_on.0.lock().unwrap() += 1;
            gone_on.1.notify_all();
        };
        let layers = Layers::new(watched, 1, Way::Beside).unwrap();
        // A parameter is gathered.
        layers.fetch(0).unwrap();
        goes_on();
        let weight = layers.weights[0].used(layers.whole, DType::F32, Release::Keep).unwrap();
        // The gradient is summed.
        let loss = layers.x.linear(&weight, None, None).unwrap().sum_all().unwrap();
        backward([(loss, None)]).unwrap();
        goes_on();
        assert!(layers.weights[0].take_gradient().unwrap().is_some());
        assert_eq!(beside.load(Ordering::SeqCst), 2, "one gathers, one sums");
    })
    .unwrap();
}

/// Communication and work take as long as each other, so that half of the time
/// can be saved. Both only sleep, which a busy machine does not hinder; and
/// where it does, another try may be luckier.
#[test]
fn overlap_saves_time() {
    let _serial = crate::serial();
    const WAIT: Duration = Duration::from_millis(4);
    let timed = |way: Way| {
        let all = threads::run(2, GangOptions::default(), |gang| {
            let slow = Hooked::over(&gang, |_| {
                thread::sleep(WAIT);
                Ok(())
            });
            let layers = Layers::new(slow, 10, way).unwrap();
            let begun = Instant::now();
            let bits = layers.pass(WAIT).unwrap();
            (begun.elapsed(), bits)
        });
        all.unwrap().remove(0)
    };
    let mut shares = Vec::new();
    for _ in 0..3 {
        let ((beside, found), (in_turn, expected)) = (timed(Way::Beside), timed(Way::InTurn));
        assert_eq!(found, expected);
        shares.push(beside.as_secs_f64() / in_turn.as_secs_f64());
        println!("beside {beside:?}, in turn {in_turn:?}");
        if shares.iter().any(|share| *share <= 0.75) {
            return;
        }
    }
    panic!("the time that overlap takes, as a share of that without: {shares:?}");
}

fn broken() -> GangError {
    GangError::Timeout { ranks: vec![7], call: "a broken link".to_owned(), after: Duration::from_secs(1) }
}

/// The results of both ranks if rank 1 fails before its collective with
/// some number.
fn with_failure(
    number: usize,
    trouble: impl Fn() -> Result<(), GangError> + Send + Sync + Copy + 'static,
) -> Vec<Result<Vec<u32>, DTensorError>> {
    // Long enough to tell a reported failure from a time-out.
    let options = GangOptions { timeout: Duration::from_secs(120) };
    let begun = Instant::now();
    let results = threads::run(2, options, |gang| {
        let rank = gang.rank();
        let count = AtomicUsize::new(0);
        let watched = Hooked::over(&gang, move |_| {
            let met = rank == 1 && count.fetch_add(1, Ordering::SeqCst) == number;
            if met { trouble() } else { Ok(()) }
        });
        Layers::new(watched, 40, Way::Beside)?.pass(Duration::ZERO)
    });
    assert!(begun.elapsed() < options.timeout, "ranks wait for one that has failed");
    results.unwrap()
}

/// Of 40 layers, 40 collectives gather and 40 sum.
const TROUBLES: [usize; 6] = [0, 1, 39, 40, 45, 79];

#[test]
fn a_rank_that_fails_beside_its_computation_is_told_and_the_others_too() {
    let _serial = crate::serial();
    assert!(with_failure(usize::MAX, || Err(broken())).iter().all(Result::is_ok));
    for number in TROUBLES {
        let results = with_failure(number, || Err(broken()));
        assert_eq!(results[1], Err(DTensorError::Gang(broken())), "collective {number}");
        let departed = |error: &DTensorError| {
            matches!(
                error,
                DTensorError::Gang(GangError::Departed { rank: 1, departure: Departure::Returned, .. })
            )
        };
        assert!(results[0].as_ref().is_err_and(departed), "collective {number}: {:?}", results[0]);
    }
}

#[test]
fn a_job_that_panics_is_told() {
    let _serial = crate::serial();
    for number in TROUBLES {
        let results = with_failure(number, || panic!("on purpose"));
        let error = results[1].as_ref().unwrap_err();
        assert_eq!(*error, DTensorError::BackgroundPanic, "collective {number}");
        assert_eq!(error.to_string(), "the background communication thread panicked");
        assert!(error.hint().is_none());
        assert!(
            matches!(results[0], Err(DTensorError::Gang(GangError::Departed { rank: 1, .. }))),
            "{:?}",
            results[0]
        );
    }
}

/// What a rank has begun beside its computation does not keep it from leaving.
#[test]
fn a_rank_that_gives_up_does_not_hold_the_others() {
    let _serial = crate::serial();
    let options = GangOptions { timeout: Duration::from_secs(120) };
    let begun = Instant::now();
    let results = threads::run(2, options, |gang| {
        let layers = Layers::new(Arc::clone(&gang), 4, Way::Beside)?;
        layers.fetch(0)?;
        layers.fetch(1)?;
        if gang.rank() == 1 {
            return Err(DTensorError::DryRun { what: "give up" });
        }
        layers.pass(Duration::ZERO)
    });
    assert!(begun.elapsed() < options.timeout, "ranks wait for one that has failed");
    let results = results.unwrap();
    assert_eq!(results[1], Err(DTensorError::DryRun { what: "give up" }));
    assert!(
        matches!(results[0], Err(DTensorError::Gang(GangError::Departed { rank: 1, .. }))),
        "{:?}",
        results[0]
    );
}
