//! Parameters as training needs them: gathered where they are used, with
//! gradients that add up where they are held.
//!
//! Gradients of a trained parameter do not come out of the backward pass but
//! add up in the parameter, over as many passes as there are, as each rank's
//! share of a sum; ranks that hold parts of it reduce to their parts at once.
//! [`reduce_gradient`](DTensor::reduce_gradient) makes the sums.

use std::sync::{Arc, Mutex};

use weightloom_layout::{DType, Layout, Plan};
use weightloom_tensor::Tensor;

use crate::background::Later;
use crate::comm_log::{Cause, Pass};
use crate::dist_context::{DistContext, locked};
use crate::dtensor::DTensor;
use crate::error::DTensorError;
use crate::redistribute::local::redistribute_local;
use crate::redistribute::share_layout;

/// Whether a parameter is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is.
    Trained,
    /// It stays as it is.
    Frozen,
}

/// What becomes of the gathered form of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// The tape keeps it for the backward pass.
    #[default]
    Keep,
    /// It goes, and is gathered again.
    AfterUse,
}

/// What is under way to a parameter and from it.
#[derive(Default)]
pub(crate) struct Slot {
    ahead: Mutex<Option<Ahead>>,
    sum: Mutex<Sum>,
}

struct Ahead {
    layout: Layout,
    dtype: DType,
    later: Later<Tensor>,
}

#[derive(Default)]
struct Sum {
    /// This rank's share.
    shares: Option<Tensor>,
    /// What was summed over all ranks.
    whole: Option<Tensor>,
}

/// Adds up in the parameter's dtype. What has nothing to be added to stays as
/// it came, which may be narrower.
fn added(sum: &mut Option<Tensor>, more: Tensor, dtype: DType) -> Result<(), DTensorError> {
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

/// A gradient in the dtype of a plan, if that sums it with those of others.
fn summed_as(plan: &Plan, gradient: Tensor) -> Result<Tensor, DTensorError> {
    match plan.collectives() {
        0 => Ok(gradient),
        _ => Ok(gradient.cast(plan.dtype())?),
    }
}

impl Slot {
    /// Carries a gradient to where the parameter is held, and adds it there, in
    /// its dtype.
    pub(crate) fn add(
        self: &Arc<Self>,
        dist: &DistContext,
        back: &Arc<Plan>,
        gradient: Tensor,
        cause: Cause,
    ) -> Result<(), DTensorError> {
        let (slot, back) = (Arc::clone(self), Arc::clone(back));
        let dtype = back.dtype();
        let work = move |dist: &DistContext| {
            let gradient = redistribute_local(dist, &back, summed_as(&back, gradient)?, cause)?;
            added(&mut locked(&slot.sum).shares, gradient, dtype)
        };
        match dist.background() {
            None => work(dist),
            Some(background) => background.leave(move |dist| work(dist)),
        }
    }

    pub(crate) fn take_ahead(&self, layout: Layout, dtype: DType) -> Option<Later<Tensor>> {
        let mut ahead = locked(&self.ahead);
        ahead.take_if(|ahead| ahead.layout == layout && ahead.dtype == dtype).map(|ahead| ahead.later)
    }

    /// Drops what was fetched: the parameter changes.
    pub(crate) fn forget_ahead(&self) {
        if let Some(ahead) = locked(&self.ahead).take() {
            // It must be done with the old elements before there are new ones.
            let _ = ahead.later.wait();
        }
    }
}

impl DTensor {
    /// Begins to bring a parameter to where it will be [used](Self::used), while
    /// the caller goes on. Does nothing without [`Ranks::overlap`], nor where
    /// nothing moves. In a dry run, which has nobody to wait for, it is done at
    /// once, so that memory and bill are those of a run that overlaps.
    pub fn fetch_ahead(&self, layout: Layout, dtype: DType) -> Result<(), DTensorError> {
        let (dist, background) = (self.dist(), self.dist().background());
        let Some(slot) = self.slot().filter(|_| background.is_some() || dist.gang().is_none()) else {
            return Ok(());
        };
        let plan = dist.plan(self.layout(), layout, self.shape(), dtype)?;
        if plan.collectives() == 0 || locked(&slot.ahead).is_some() {
            return Ok(());
        }
        let local = self.to_local().detach();
        let fetch = move |dist: &DistContext| {
            redistribute_local(dist, &plan, local.cast(dtype)?, Cause { op: "use", pass: Pass::Forward })
        };
        let later = match background {
            Some(background) => background.start(move |dist| fetch(dist)),
            None => Later::now(fetch(dist)),
        };
        *locked(&slot.ahead) = Some(Ahead { layout, dtype, later });
        Ok(())
    }

    /// Begins to sum what has added up over all ranks. Gradients that come later
    /// may be settled later.
    pub fn reduce_gradient(&self) -> Result<(), DTensorError> {
        let Some(slot) = self.slot() else { return Ok(()) };
        let plan =
            self.dist().plan(share_layout(self.layout())?, self.layout(), self.shape(), self.dtype())?;
        let slot = Arc::clone(slot);
        let work = move |dist: &DistContext| {
            let shares = locked(&slot.sum).shares.take();
            let Some(shares) = shares else { return Ok(()) };
            let cause = Cause { op: "reduce_gradients", pass: Pass::Backward };
            let whole = redistribute_local(dist, &plan, summed_as(&plan, shares)?, cause)?;
            added(&mut locked(&slot.sum).whole, whole, plan.dtype())
        };
        match self.dist().background() {
            None => work(self.dist()),
            Some(background) => background.leave(move |dist| work(dist)),
        }
    }

    /// Takes the gradient that has added up in a trained parameter, summed over
    /// all ranks and held as the parameter is. If there was nothing to sum, it has
    /// the dtype that the parameter was used in. All ranks call this together.
    pub fn take_gradient(&self) -> Result<Option<Self>, DTensorError> {
        let Some(slot) = self.slot() else { return Ok(None) };
        self.reduce_gradient()?;
        self.dist().finish()?;
        let whole = locked(&slot.sum).whole.take();
        whole.map(|whole| Self::from_local(self.dist(), whole, self.layout(), self.shape())).transpose()
    }

    /// Forgets gradients that have added up.
    pub fn drop_gradient(&self) -> Result<(), DTensorError> {
        let Some(slot) = self.slot() else { return Ok(()) };
        self.dist().finish()?;
        *locked(&slot.sum) = Sum::default();
        Ok(())
    }

    /// The same tensor; on its way back, its gradient makes something happen.
    pub fn register_hook(
        &self,
        happen: impl Fn() -> Result<(), DTensorError> + Send + Sync + 'static,
    ) -> Result<Self, DTensorError> {
        if !self.tracks_gradient() {
            return Ok(self.clone());
        }
        let dist = Arc::clone(self.dist());
        let watched = self.to_local().register_hook(move |gradient| {
            happen().map_err(|error| error.inside("register_hook", &dist))?;
            Ok(gradient)
        })?;
        Self::wrapped("register_hook", self.dist(), watched, Arc::clone(self.spec()))
    }
}
