//! What others may do while a run goes on.
//!
//! Every rank calls its own callbacks, at the same points. A callback may look
//! at everything; it ends a run by answering [`Control::Stop`], which takes
//! effect behind the next step on all ranks, with a checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Config;
use crate::engine::{Engine, Stepped};
use crate::error::TrainError;
use crate::metrics::Record;

/// Where a run is.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// What is run.
    pub config: &'a Config,
    /// What this rank trains.
    pub engine: &'a Engine,
    /// This rank.
    pub rank: usize,
    /// All ranks.
    pub world: usize,
    /// Steps that were done.
    pub step: u64,
    /// The last step.
    pub total_steps: u64,
    /// How often everything was read.
    pub epoch: u64,
    /// Seconds that are left, as far as that is known.
    pub seconds_left: Option<f64>,
}

/// Whether a run goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// It does.
    #[default]
    Go,
    /// It ends behind the next step.
    Stop,
}

/// What was measured on held-out rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// The mean loss over all targets, if rows were held out.
    pub loss: Option<f64>,
    /// Targets.
    pub targets: u64,
    /// What the model wrote: prompt and continuation.
    pub samples: Vec<(String, String)>,
}

/// What a suite said of a checkpoint, as metrics tell it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Numbers, by name: `sway/overall`.
    pub scalars: BTreeMap<String, f64>,
    /// Texts, by name: `sway/band`.
    pub texts: BTreeMap<String, String>,
}

/// Why something that a run was asked for was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// Samples need a model that is not cut into stages.
    NoSamples,
    /// Documents in which nothing counts.
    LeftOut {
        /// How many.
        documents: u64,
    },
    /// Documents that were cut off.
    Truncated {
        /// How many.
        documents: u64,
    },
}

type Answer = Result<Control, TrainError>;

/// What others may do while a run goes on. All methods do nothing by default.
#[allow(unused_variables, reason = "names say what is given")]
pub trait Callback {
    /// The model, the data and the optimizer are there.
    fn init_end(&mut self, view: &View<'_>) -> Answer {
        Ok(Control::Go)
    }
    /// The first step of this process follows.
    fn train_begin(&mut self, view: &View<'_>) -> Answer {
        Ok(Control::Go)
    }
    /// No step follows.
    fn train_end(&mut self, view: &View<'_>) -> Answer {
        Ok(Control::Go)
    }
    /// Everything is read once more from here.
    fn epoch_begin(&mut self, view: &View<'_>) -> Answer {
        Ok(Control::Go)
    }
    /// Everything was read.
    fn epoch_end(&mut self, view: &View<'_>) -> Answer {
        Ok(Control::Go)
    }
    /// A step begins.
    fn step_begin(&mut self, view: &View<'_>) -> Answer {
        Ok(Control::Go)
    }
    /// A micro-batch was computed, so many of the step's.
    fn substep_end(&mut self, done: usize, of: usize) -> Answer {
        Ok(Control::Go)
    }
    /// Gradients are known, weights are not changed yet.
    fn before_optimizer_step(&mut self, gradient_norm: f64) -> Answer {
        Ok(Control::Go)
    }
    /// Weights were changed.
    fn step_end(&mut self, view: &View<'_>, stepped: &Stepped) -> Answer {
        Ok(Control::Go)
    }
    /// A step is told.
    fn log(&mut self, view: &View<'_>, record: &Record) -> Answer {
        Ok(Control::Go)
    }
    /// A checkpoint is there.
    fn save(&mut self, view: &View<'_>, checkpoint: &Path) -> Answer {
        Ok(Control::Go)
    }
    /// Whether it judges checkpoints by the suite of `train.eval.sway`. The
    /// first rank needs one that does if there is a suite.
    fn judges(&self) -> bool {
        false
    }
    /// Judges a checkpoint by the suite of `train.eval.sway`. What it says goes
    /// to the metrics.
    fn judge(&mut self, view: &View<'_>, checkpoint: &Path) -> Result<Option<Judgement>, TrainError> {
        Ok(None)
    }
    /// The run goes on from a checkpoint.
    fn load(&mut self, view: &View<'_>, checkpoint: &Path) -> Answer {
        Ok(Control::Go)
    }
    /// The model was measured.
    fn evaluate(&mut self, view: &View<'_>, evaluation: &Evaluation) -> Answer {
        Ok(Control::Go)
    }
    /// Documents are counted, which an epoch's end needs.
    fn counting(&mut self, done: u64, of: u64) -> Answer {
        Ok(Control::Go)
    }
    /// Something is to be said.
    fn remark(&mut self, remark: &Remark) -> Answer {
        Ok(Control::Go)
    }
}

/// Calls all callbacks; the run goes on if all want it to.
pub(crate) fn each(
    callbacks: &mut [Box<dyn Callback + '_>],
    mut call: impl FnMut(&mut dyn Callback) -> Answer,
) -> Answer {
    let mut control = Control::Go;
    for callback in callbacks {
        if call(&mut **callback)? == Control::Stop {
            control = Control::Stop;
        }
    }
    Ok(control)
}
