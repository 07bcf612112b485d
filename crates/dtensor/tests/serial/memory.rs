//! What a redistribution keeps alive.

use weightloom_dtensor::{DTensor, DistContext, backward};
use weightloom_gang::{GangExt as _, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
use weightloom_tensor::{Stream, memory};

#[test]
fn what_was_moved_is_freed_when_nobody_needs_it() {
    let _serial = crate::serial();
    threads::run(2, GangOptions::default(), |gang| {
        let mesh = Mesh::new(&[("dp", 2)]).unwrap();
        let dist = DistContext::new(std::sync::Arc::clone(&gang));
        let rows = Layout::new(mesh, &[Placement::Shard(0)]).unwrap();
        let shape = Shape::new(&[1024, 1024]).unwrap();
        let x = DTensor::normal(&dist, DType::F32, &shape, rows, Stream { seed: 1, number: 1 }).unwrap();
        let x = x.requires_grad();
        gang.barrier().unwrap();
        let before = memory::statistics().in_use;
        gang.barrier().unwrap();
        // Neither sums nor moves need for the way back what they were given.
        let total = x.redistribute(Layout::replicated(mesh)).unwrap().sum_all().unwrap();
        gang.barrier().unwrap();
        assert!(memory::statistics().in_use < before + (1 << 20), "a gathered tensor is still held");
        gang.barrier().unwrap();
        let gradients = backward([(total, None)]).unwrap();
        assert_eq!(gradients.of(&x).unwrap().unwrap().layout(), rows);
    })
    .unwrap();
}
