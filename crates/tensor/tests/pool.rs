//! The pool's size. One test, because a process has one pool.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use weightloom_errors::Hint as _;
use weightloom_tensor::{Tensor, no_grad, threads};

#[test]
fn the_pool_is_made_once_and_shared() {
    threads::set_count(3).unwrap();
    assert_eq!(threads::count(), 3);
    threads::set_count(3).unwrap();
    let error = threads::set_count(5).unwrap_err();
    assert_eq!(error.to_string(), "the pool runs with 3 threads already, so it cannot be made with 5");
    assert!(error.hint().unwrap().contains("WEIGHTLOOM_THREADS=5"));
    // Several threads, as ranks are, use it at once and get what one alone gets.
    let x =
        Tensor::from_slice(&(0..90_000).map(|i| (i % 97) as f32).collect::<Vec<_>>(), &[300, 300]).unwrap();
    let alone = x.matmul(&x).unwrap().to_vec::<f32>().unwrap();
    // A limit holds for its thread alone, and can only be lowered.
    threads::at_most(2, || {
        assert_eq!(threads::count(), 2);
        threads::at_most(9, || assert_eq!(threads::count(), 2));
        threads::at_most(0, || assert_eq!(threads::count(), 1));
        std::thread::scope(|scope| drop(scope.spawn(|| assert_eq!(threads::count(), 3))));
        assert!(x.matmul(&x).unwrap().to_vec::<f32>().unwrap() == alone);
    });
    assert_eq!(threads::count(), 3);
    // Inside the pool it is the same, and what was said outside still holds.
    let here = std::thread::current().id();
    no_grad(|| {
        threads::at_most(2, || {
            threads::inside(|| {
                assert_ne!(std::thread::current().id(), here);
                assert_eq!(threads::count(), 2);
                assert!(x.matmul(&x.requires_grad()).unwrap().to_vec::<f32>().unwrap() == alone);
                assert!(!x.add(&x.requires_grad()).unwrap().tracks_gradient());
                threads::inside(|| assert_eq!(threads::count(), 2));
            });
        });
        threads::at_most(1, || threads::inside(|| assert_eq!(std::thread::current().id(), here)));
    });
    // A tape stays with its thread.
    threads::inside(|| assert_eq!(std::thread::current().id(), here));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(x.matmul(&x).unwrap().to_vec::<f32>().unwrap() == alone));
        }
    });
}
