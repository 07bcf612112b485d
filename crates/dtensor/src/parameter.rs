//! Sharded parameters: gathered where they are used, with gradients that
//! accumulate where they are held.
//!
//! Gradients of a trained parameter do not come out of the backward pass. They
//! accumulate in the parameter over any number of passes, as each rank's share
//! of a sum; along axes that shard the parameter they are reduced at once.
//! [`reduce_gradient`](DTensor::reduce_gradient) sums the shares.

use std::sync::{Arc, Mutex};

use weightloom_layout::{DType, Layout, Plan};
use weightloom_tensor::Tensor;

use crate::background::Pending;
use crate::comm_log::{Cause, Pass};
use crate::dist_context::{DistContext, locked};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::redistribute::local::redistribute_local;
use crate::redistribute::share_layout;

/// Whether a parameter is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The parameter gets gradients.
    Trained,
    /// The parameter is constant.
    Frozen,
}

/// How long the gathered form of a parameter is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// Until the backward pass, on the tape.
    #[default]
    Keep,
    /// Until the operation that uses it is done; gathered again for the gradient.
    AfterUse,
}

/// The prefetched form of a parameter, and its accumulated gradient.
#[derive(Default)]
pub(crate) struct GradientSlot {
    prefetched: Mutex<Option<Prefetched>>,
    gradient: Mutex<Accumulated>,
}

struct Prefetched {
    layout: Layout,
    dtype: DType,
    pending: Pending<Tensor>,
}

#[derive(Default)]
struct Accumulated {
    /// This rank's share.
    shares: Option<Tensor>,
    /// The part that is summed over all ranks.
    reduced: Option<Tensor>,
}

/// Adds in the dtype of the parameter. The first term stays as it is, which may
/// be narrower.
fn accumulate(sum: &mut Option<Tensor>, more: Tensor, dtype: DType) -> Result<()> {
    match sum {
        Some(sum) => {
            if sum.dtype() != dtype {
                *sum = sum.cast(dtype)?;
            }
            Ok(sum.add_assign(&more.cast(dtype)?)?)
        }
        None => {
            *sum = Some(more);
            Ok(())
        }
    }
}

/// Casts a gradient to the dtype of a plan if the plan sums it over ranks.
fn cast_for_sum(plan: &Plan, gradient: Tensor) -> Result<Tensor> {
    match plan.collectives() {
        0 => Ok(gradient),
        _ => Ok(gradient.cast(plan.dtype())?),
    }
}

impl GradientSlot {
    /// Redistributes a gradient to where the parameter is held, and adds it
    /// there, in the background if there is a background thread.
    pub(crate) fn add(
        self: &Arc<Self>,
        dist: &DistContext,
        plan: &Arc<Plan>,
        gradient: Tensor,
        cause: Cause,
    ) -> Result<()> {
        let (slot, plan) = (Arc::clone(self), Arc::clone(plan));
        let dtype = plan.dtype();
        let work = move |dist: &DistContext| {
            let gradient = redistribute_local(dist, &plan, cast_for_sum(&plan, gradient)?, cause)?;
            accumulate(&mut locked(&slot.gradient).shares, gradient, dtype)
        };
        match dist.background() {
            None => work(dist),
            Some(background) => background.spawn(move |dist| work(dist)),
        }
    }

    pub(crate) fn take_prefetched(&self, layout: Layout, dtype: DType) -> Option<Pending<Tensor>> {
        let mut prefetched = locked(&self.prefetched);
        prefetched.take_if(|found| found.layout == layout && found.dtype == dtype).map(|found| found.pending)
    }

    /// Drops the prefetched form, because the parameter changes.
    pub(crate) fn discard_prefetched(&self) {
        if let Some(prefetched) = locked(&self.prefetched).take() {
            // The background thread must have read the old elements before they
            // are overwritten.
            let _ = prefetched.pending.wait();
        }
    }
}

impl DTensor {
    /// Starts to gather a parameter in the background for its next
    /// [use](Self::used). Does nothing without [`DistContext::overlap`] or where
    /// no collective is needed. A dry run gathers at once, so that memory and
    /// comm log are those of a run that overlaps.
    pub fn prefetch(&self, layout: Layout, dtype: DType) -> Result<()> {
        let (dist, background) = (self.dist(), self.dist().background());
        let Some(slot) = self.slot().filter(|_| background.is_some() || dist.gang().is_none()) else {
            return Ok(());
        };
        // The background thread has the gangs of the parameter's own mesh.
        if layout.mesh() != self.layout().mesh() {
            return Ok(());
        }
        let plan = dist.plan(self.layout(), layout, self.shape(), dtype)?;
        if plan.collectives() == 0 || locked(&slot.prefetched).is_some() {
            return Ok(());
        }
        let local = self.to_local().detach();
        let gather = move |dist: &DistContext| {
            redistribute_local(dist, &plan, local.cast(dtype)?, Cause { op: "use", pass: Pass::Forward })
        };
        let pending = match background {
            Some(background) => background.start(move |dist| gather(dist)),
            None => Pending::ready(gather(dist)),
        };
        *locked(&slot.prefetched) = Some(Prefetched { layout, dtype, pending });
        Ok(())
    }

    /// Starts to sum the accumulated gradient over ranks. Gradients that arrive
    /// later are reduced by a later call.
    pub fn reduce_gradient(&self) -> Result<()> {
        let Some(slot) = self.slot() else { return Ok(()) };
        let plan =
            self.dist().plan(share_layout(self.layout())?, self.layout(), self.shape(), self.dtype())?;
        let slot = Arc::clone(slot);
        let work = move |dist: &DistContext| {
            let shares = locked(&slot.gradient).shares.take();
            let Some(shares) = shares else { return Ok(()) };
            let cause = Cause { op: "reduce_gradients", pass: Pass::Backward };
            let reduced = redistribute_local(dist, &plan, cast_for_sum(&plan, shares)?, cause)?;
            accumulate(&mut locked(&slot.gradient).reduced, reduced, plan.dtype())
        };
        match self.dist().background() {
            None => work(self.dist()),
            Some(background) => background.spawn(move |dist| work(dist)),
        }
    }

    /// Takes the accumulated gradient, summed over all ranks, in the layout of
    /// the parameter. A gradient that was never added to keeps the dtype that
    /// the parameter was used in. All ranks call this together.
    pub fn take_gradient(&self) -> Result<Option<Self>> {
        let Some(slot) = self.slot() else { return Ok(None) };
        self.reduce_gradient()?;
        self.dist().finish()?;
        let reduced = locked(&slot.gradient).reduced.take();
        reduced.map(|reduced| Self::from_local(self.dist(), reduced, self.layout(), self.shape())).transpose()
    }

    /// Drops the accumulated gradient.
    pub fn zero_grad(&self) -> Result<()> {
        let Some(slot) = self.slot() else { return Ok(()) };
        self.dist().finish()?;
        *locked(&slot.gradient) = Accumulated::default();
        Ok(())
    }

    /// Returns the same tensor with a hook that the backward pass runs when it
    /// reaches the gradient of the returned tensor.
    pub fn register_hook(&self, hook: impl Fn() -> Result<()> + Send + Sync + 'static) -> Result<Self> {
        if !self.tracks_gradient() {
            return Ok(self.clone());
        }
        let hooked = self.to_local().register_hook(move |gradient| {
            hook().map_err(|error| error.into_tensor_error("register_hook"))?;
            Ok(gradient)
        })?;
        let hooked = Self::wrapped("register_hook", self.dist(), hooked, Arc::clone(self.spec()))?;
        Ok(hooked.checked_by(self.nan_check()))
    }
}
