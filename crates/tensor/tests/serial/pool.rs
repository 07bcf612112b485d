//! The size of the thread pool.

use weightloom_errors::Hint as _;
use weightloom_tensor::{Tensor, threads};

use crate::THREADS;

#[test]
fn the_pool_is_made_once_and_shared() {
    let _serial = crate::serial();
    assert_eq!(threads::count(), THREADS);
    threads::set_count(THREADS).unwrap();
    let error = threads::set_count(7).unwrap_err();
    assert_eq!(error.to_string(), "cannot set the thread count to 7: the pool already runs with 5 threads");
    assert!(error.hint().unwrap().contains("WEIGHTLOOM_THREADS=7"));
    // Several threads, as ranks are, use it at once and get what one alone gets.
    let x =
        Tensor::from_slice(&(0..90_000).map(|i| (i % 97) as f32).collect::<Vec<_>>(), &[300, 300]).unwrap();
    let alone = x.matmul(&x).unwrap().to_vec::<f32>().unwrap();
    // A limit holds for its thread alone, and can only be lowered.
    threads::at_most(2, || {
        assert_eq!(threads::count(), 2);
        threads::at_most(9, || assert_eq!(threads::count(), 2));
        threads::at_most(0, || assert_eq!(threads::count(), 1));
        std::thread::scope(|scope| drop(scope.spawn(|| assert_eq!(threads::count(), THREADS))));
        assert!(x.matmul(&x).unwrap().to_vec::<f32>().unwrap() == alone);
    });
    assert_eq!(threads::count(), THREADS);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(x.matmul(&x).unwrap().to_vec::<f32>().unwrap() == alone));
        }
    });
}
