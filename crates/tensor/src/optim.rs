//! Fused optimizer updates, and the norm that gradients are clipped by.
//!
//! An [`UpdateRule`] computes the new values of one element.
//! [`fused_update`] applies it in one pass over parameter, gradient and states,
//! in place, vectorized and on several threads. To add an optimizer, implement
//! the trait, here or in another crate:
//!
//! ```
//! use weightloom_tensor::{Tensor, UpdateRule, Wide, fused_update, scalar};
//!
//! /// Lion without weight decay.
//! #[derive(Clone, Copy)]
//! struct Lion {
//!     learning_rate: f64,
//!     beta1: f64,
//!     beta2: f64,
//! }
//!
//! impl UpdateRule<1> for Lion {
//!     const NAME: &'static str = "lion";
//!     const FLOPS: u64 = 8;
//!
//!     #[inline(always)]
//!     fn update<W: Wide>(&self, parameter: W, gradient: W, [momentum]: [W; 1]) -> (W, [W; 1]) {
//!         let blend = |beta: f64| momentum * scalar(beta) + gradient * scalar(1.0 - beta);
//!         (parameter - blend(self.beta1).signum() * scalar(self.learning_rate), [blend(self.beta2)])
//!     }
//! }
//!
//! let lion = Lion { learning_rate: 0.25, beta1: 0.9, beta2: 0.99 };
//! let mut parameter = Tensor::from_slice(&[1.0_f32, 1.0], &[2])?;
//! let mut momentum = Tensor::from_slice(&[0.0_f32, 0.0], &[2])?;
//! let gradient = Tensor::from_slice(&[3.0_f32, -0.5], &[2])?;
//! fused_update(lion, &mut parameter, &gradient, [&mut momentum])?;
//! assert_eq!(parameter.to_vec::<f32>()?, [0.75, 1.25]);
//! # Ok::<(), weightloom_tensor::TensorError>(())
//! ```

mod adamw;
mod sgd;

use num_traits::ToPrimitive as _;
use pulp::{Simd, WithSimd};
use weightloom_layout::{DType, Shape};

use crate::backend::meta::{record, volume};
use crate::backend::{Cpu, Meta, on};
use crate::device::Device;
use crate::element::{Float, Wide, with_float, with_gradient};
use crate::error::{Result, TensorError};
use crate::kernels::copy_on_write::CopyOnWrite;
use crate::kernels::lanes;
use crate::ops::{check_same_device, common};
use crate::parallel::{PIECE, map, share};
use crate::tensor::Tensor;
use crate::vectors::dispatch;

pub use adamw::{AdamW, AdamWConstants, Moments};
pub use sgd::{Sgd, SgdConstants};

/// An elementwise update of a parameter with `STATES` state tensors.
pub trait UpdateRule<const STATES: usize>: Copy + Send + Sync {
    /// The name of the operation in errors and costs.
    const NAME: &'static str;

    /// Floating-point operations per element.
    const FLOPS: u64;

    /// The new parameter and states of one element. Mark it
    /// `#[inline(always)]`, so that it is vectorized.
    fn update<W: Wide>(&self, parameter: W, gradient: W, states: [W; STATES]) -> (W, [W; STATES]);

    /// The kernel that computes the same on a GPU. Rules without one are computed by
    /// the host, for which tensors on a GPU are copied back and forth.
    fn on_device(&self) -> Option<DeviceUpdate> {
        None
    }
}

/// A built-in kernel for optimizer updates on GPUs, with its constants.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum DeviceUpdate {
    /// AdamW, with two states.
    AdamW(AdamWConstants),
    /// Gradient descent, with at most one state.
    Sgd(SgdConstants),
}

/// A number in the type of the computation.
#[inline(always)]
pub fn scalar<W: Wide>(value: f64) -> W {
    W::from_f64(value).unwrap_or_else(W::nan)
}

/// Applies an update rule in place. Parameter and states have one dtype, which
/// should be `f32` or `f64`: updates soon become too small for a half type. The
/// gradient has the same dtype, or a half type if that is `f32`. Memory that
/// other tensors share is copied first.
pub fn fused_update<R: UpdateRule<STATES>, const STATES: usize>(
    rule: R,
    parameter: &mut Tensor,
    gradient: &Tensor,
    mut states: [&mut Tensor; STATES],
) -> Result<()> {
    let mut changed = vec![&*parameter];
    changed.extend(states.iter().map(|state| &**state));
    let device = check(R::NAME, gradient, &changed)?;
    let gradient = gradient.contiguous(R::NAME)?;
    on(device).update(&Kernel(rule), &gradient, parameter, &mut states)
}

/// Optimizer kernels.
pub(crate) trait OptimizerKernels {
    /// Updates a parameter and its states in place.
    fn update(
        &self,
        kernel: &dyn UpdateKernel,
        gradient: &Tensor,
        parameter: &mut Tensor,
        states: &mut [&mut Tensor],
    ) -> Result<()>;

    /// The sums of squares of contiguous tensors. Waits for them once.
    fn squares(&self, tensors: &[Tensor]) -> Result<Vec<f64>>;
}

impl OptimizerKernels for Cpu {
    fn update(
        &self,
        kernel: &dyn UpdateKernel,
        gradient: &Tensor,
        parameter: &mut Tensor,
        states: &mut [&mut Tensor],
    ) -> Result<()> {
        kernel.run(gradient, parameter, states)
    }

    fn squares(&self, tensors: &[Tensor]) -> Result<Vec<f64>> {
        let squares_of = |x: &Tensor| with_float!("global_norm", x.dtype(), T => squares::<T>(x));
        tensors.iter().map(squares_of).collect()
    }
}

impl OptimizerKernels for Meta {
    fn update(
        &self,
        kernel: &dyn UpdateKernel,
        gradient: &Tensor,
        parameter: &mut Tensor,
        states: &mut [&mut Tensor],
    ) -> Result<()> {
        let mut written: Vec<&Tensor> = vec![parameter];
        written.extend(states.iter().map(|state| &**state));
        let mut read = vec![gradient];
        read.extend(&written);
        record(kernel.name(), kernel.flops() * volume(gradient.shape()), &read, &written);
        Ok(())
    }

    fn squares(&self, tensors: &[Tensor]) -> Result<Vec<f64>> {
        let shape = tensors.first().map_or_else(Shape::default, |x| x.shape().clone());
        Err(TensorError::NoData { op: "global_norm", shape })
    }
}

/// An update rule as an object, for the table of kernels.
pub(crate) trait UpdateKernel: Sync {
    fn name(&self) -> &'static str;
    fn flops(&self) -> u64;
    /// The kernel that computes the same on a GPU.
    fn on_device(&self) -> Option<DeviceUpdate>;
    /// Applies the rule on the CPU.
    fn run(&self, gradient: &Tensor, parameter: &mut Tensor, states: &mut [&mut Tensor]) -> Result<()>;
}

struct Kernel<R, const STATES: usize>(R);

impl<R: UpdateRule<STATES>, const STATES: usize> UpdateKernel for Kernel<R, STATES> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn flops(&self) -> u64 {
        R::FLOPS
    }

    fn on_device(&self) -> Option<DeviceUpdate> {
        self.0.on_device()
    }

    fn run(&self, gradient: &Tensor, parameter: &mut Tensor, states: &mut [&mut Tensor]) -> Result<()> {
        with_gradient!(R::NAME, parameter.dtype(), gradient.dtype(), (T, G) => {
            run_typed::<R, T, G, STATES>(self.0, gradient, parameter, states)
        })
    }
}

fn run_typed<R: UpdateRule<STATES>, T: Float, G: Float<Wide = T::Wide>, const STATES: usize>(
    rule: R,
    gradient: &Tensor,
    parameter: &mut Tensor,
    states: &mut [&mut Tensor],
) -> Result<()> {
    let gradient = gradient.elements::<G>(R::NAME)?;
    let old_parameter = parameter.detach_shared_memory(R::NAME)?;
    let mut old_states = Vec::with_capacity(STATES);
    for state in states.iter_mut() {
        old_states.push(state.detach_shared_memory(R::NAME)?);
    }
    let mut state_pieces = Vec::with_capacity(STATES);
    for (old, state) in old_states.iter().zip(states) {
        state_pieces.push(CopyOnWrite::<T>::pieces(R::NAME, old.as_ref(), state)?);
    }
    let pieces = CopyOnWrite::<T>::pieces(R::NAME, old_parameter.as_ref(), parameter)?
        .zip(gradient.chunks(PIECE))
        .map(|(parameter, gradient)| {
            let states: [_; STATES] =
                std::array::from_fn(|number| state_pieces.get_mut(number).and_then(Iterator::next));
            (parameter, gradient, states)
        });
    share(pieces, |(parameter, gradient, states)| {
        // States have as many pieces as the parameter.
        let states = states.map(|state| state.map_or_else(Default::default, CopyOnWrite::elements));
        dispatch(Piece { rule, gradient, parameter: parameter.elements(), states });
    });
    Ok(())
}

struct Piece<'a, R, T, G, const STATES: usize> {
    rule: R,
    gradient: &'a [G],
    parameter: &'a mut [T],
    states: [&'a mut [T]; STATES],
}

impl<R: UpdateRule<STATES>, T: Float, G: Float<Wide = T::Wide>, const STATES: usize> WithSimd
    for Piece<'_, R, T, G, STATES>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { rule, gradient, parameter, states } = self;
        // Equal lengths, known to the compiler, leave no bounds checks in the loop.
        let length = parameter.len();
        let (parameter, gradient) = (&mut parameter[..length], &gradient[..length]);
        let states = states.map(|state| &mut state[..length]);
        for at in 0..length {
            let old = std::array::from_fn(|number| states[number][at].widen());
            let (new_parameter, new) = rule.update(parameter[at].widen(), gradient[at].widen(), old);
            parameter[at] = T::narrow(new_parameter);
            for number in 0..STATES {
                states[number][at] = T::narrow(new[number]);
            }
        }
    }
}

/// Checks that parameter and states have one shape, device and floating-point
/// dtype, and that the gradient fits them.
fn check(op: &'static str, gradient: &Tensor, changed: &[&Tensor]) -> Result<Device> {
    if changed.iter().any(|x| x.shape() != gradient.shape()) {
        let shapes = changed.iter().chain([&gradient]).map(|x| x.shape().clone()).collect();
        return Err(TensorError::Shapes { op, shapes });
    }
    let (device, dtype) = common(op, changed)?;
    if !dtype.is_float() || dtype.size() == 1 {
        return Err(TensorError::DType { op, dtype });
    }
    let halves = [DType::Bf16, DType::F16];
    match dtype == DType::F32 && halves.contains(&gradient.dtype()) {
        true => check_same_device(op, &[changed[0], gradient]),
        false => common(op, &[changed[0], gradient]).map(|_| device),
    }
}

/// The Euclidean norm of all elements of all tensors together. The order of
/// summation does not depend on threads.
pub fn global_norm(tensors: &[&Tensor]) -> Result<f64> {
    Ok(sums_of_squares(tensors)?.into_iter().sum::<f64>().sqrt())
}

/// The sum of the squares of each tensor's elements. Waits for a device once, however
/// many tensors it holds.
pub fn sums_of_squares(tensors: &[&Tensor]) -> Result<Vec<f64>> {
    let mut sums = Vec::with_capacity(tensors.len());
    for same in tensors.chunk_by(|a, b| a.device() == b.device()) {
        let packed = same.iter().map(|x| x.contiguous("global_norm")).collect::<Result<Vec<_>>>()?;
        sums.extend(on(same[0].device()).squares(&packed)?);
    }
    Ok(sums)
}

/// The sum of squares: pieces in parallel, added in order.
fn squares<T: Float>(x: &Tensor) -> Result<f64> {
    struct Squares<'a, T> {
        piece: &'a [T],
    }

    impl<T: Float> WithSimd for Squares<'_, T> {
        type Output = T::Wide;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> T::Wide {
            lanes::sum(self.piece, |x| x * x)
        }
    }

    let pieces = map(x.elements::<T>("global_norm")?.chunks(PIECE), |piece| {
        dispatch(Squares { piece }).to_f64().unwrap_or(f64::NAN)
    });
    Ok(pieces.into_iter().sum())
}
