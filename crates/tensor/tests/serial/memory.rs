//! What a tape keeps.

use weightloom_tensor::{Tensor, TensorError, backward, memory, recompute};

const SIZE: usize = 200 * 1000;

fn big() -> Tensor {
    Tensor::from_slice(&vec![0.5f64; SIZE], &[200, 1000]).unwrap().requires_grad()
}

/// The memory that dropping a value frees, in tensors of the size of [`big`].
fn freed_with<T>(held: T) -> f64 {
    let before = memory::statistics().in_use;
    drop(held);
    (before - memory::statistics().in_use) as f64 / (SIZE * 8) as f64
}

#[test]
fn a_tape_keeps_no_more_than_it_needs() {
    let _serial = crate::serial();
    let (x, up) = (big(), big());
    let down = Tensor::from_slice(&vec![0.01; 3000], &[3, 1000]).unwrap().requires_grad();

    // Ten layers of two functions each: twenty saved tensors, or one.
    let layers = |x: &[Tensor]| -> Result<Vec<Tensor>, TensorError> {
        (0..10).try_fold(x[0].clone(), |x, _| x.softmax(1)?.log_softmax(1)).map(|x| vec![x])
    };
    let kept = freed_with(layers(std::slice::from_ref(&x)).unwrap());
    let again = freed_with(recompute(std::slice::from_ref(&x), layers).unwrap());
    assert!(kept > 19.0 && again < 1.5, "{kept} {again}");

    // A gate's result is computed again from what the gate keeps, which here is
    // the parameters themselves.
    let gated = freed_with(x.swiglu(&up).unwrap().linear(&down, None, None).unwrap());
    assert!(gated < 0.1, "{gated}");
    // Additions keep shapes alone.
    let sum = x.add(&up).unwrap().add(&x).unwrap();
    assert!(freed_with(sum) < 1.5);

    // A backward pass frees what it has used, and gradients add up in place.
    memory::reset_high_water();
    let before = memory::statistics().in_use;
    let y = (0..10).try_fold(x.clone(), |sum, _| sum.add(&x)).unwrap();
    let gradients = backward([(y, None)]).unwrap();
    let most = (memory::statistics().high_water - before) as f64 / (SIZE * 8) as f64;
    assert_eq!(gradients.of(&x).unwrap().to_vec::<f64>().unwrap()[..2], [11.0, 11.0]);
    assert!(most < 4.5, "{most}");
}
