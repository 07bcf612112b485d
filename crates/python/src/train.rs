//! Training runs with callbacks in Python.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use weightloom::checkpoint::CheckpointFolder;
use weightloom::train::TrainError;
use weightloom::train::callback::{
    Callback, CallbackError, CallbackResult, Control, Evaluation, TrainerState,
};
use weightloom::train::engine::StepResult;
use weightloom::train::metrics::Record;

use crate::callbacks::{AfterException, Caller, Ended, ends_programs, with_callbacks};
use crate::command::{Called, Results};
use crate::errors::Raise;
use crate::forked::check_computing;
use crate::gang::Gang;
use crate::progress::Progress;
use crate::tracker;

/// What a training run takes from Python.
#[derive(FromPyObject)]
pub(crate) struct Request {
    /// An object whose methods are named as in [`Hooks`]. They return whether to stop
    /// after the current step; one that raises ends the run at once.
    hooks: Py<PyAny>,
    /// The methods to call.
    wanted: Vec<String>,
    gang: Option<Py<Gang>>,
}

/// What a listener adds to a training run.
pub(crate) struct Training {
    hooks: Hooks,
    pub(crate) gang: Option<Arc<dyn weightloom::gang::Gang>>,
}

impl Training {
    pub(crate) fn callback(&self) -> Box<dyn Callback> {
        Box::new(self.hooks.clone())
    }
}

/// Runs `weightloom train` with the given arguments, as [`call`](crate::command::call) does.
#[pyfunction]
#[pyo3(signature = (arguments, request, progress=None))]
pub(crate) fn train(
    py: Python<'_>,
    arguments: Vec<OsString>,
    request: Request,
    progress: Option<Py<PyAny>>,
) -> PyResult<Called> {
    check_computing("train")?;
    let Request { hooks, wanted, gang } = request;
    let gang = gang.map(|gang| Arc::clone(&gang.get().engine));
    let progress = Progress::new(progress);
    let cancel = Arc::clone(&progress.cancel);
    // After Ctrl-C, callbacks hear of the checkpoint and of the end.
    let trained = with_callbacks(py, &cancel, AfterException::Call, move |caller| {
        let registry = tracker::registry(Some(&caller));
        let hooks = Hooks { caller, object: Arc::new(hooks), wanted: wanted.into() };
        Results::new(progress, Some(Training { hooks, gang })).of_command(registry, arguments)
    })?;
    Ok(trained?)
}

/// The newest complete checkpoint of the run in a folder.
#[pyfunction]
pub(crate) fn newest_checkpoint(py: Python<'_>, folder: PathBuf) -> PyResult<Option<PathBuf>> {
    let found = py.detach(|| CheckpointFolder::new(folder.join("checkpoints")).latest());
    Ok(found.map_err(Raise::from)?.map(|saved| saved.path))
}

/// Passes the events of a run on to an object, on the thread that began the run.
#[derive(Clone)]
struct Hooks {
    caller: Caller,
    object: Arc<Py<PyAny>>,
    wanted: Arc<[String]>,
}

/// The steps done, those of the whole run, epochs, ranks, and the seconds left.
type State = (u64, u64, u64, usize, Option<f64>);

fn state(state: &TrainerState<'_>) -> State {
    (state.step, state.total_steps, state.epoch, state.world, state.seconds_left)
}

fn unusable(problem: impl ToString) -> TrainError {
    CallbackError::Unusable { callback: "Python".to_owned(), problem: problem.to_string() }.into()
}

impl Hooks {
    fn call<A>(
        &self,
        method: &'static str,
        arguments: impl FnOnce() -> Result<A, TrainError>,
    ) -> CallbackResult
    where
        A: for<'py> pyo3::call::PyCallArgs<'py> + Send + 'static,
    {
        if !self.wanted.iter().any(|wanted| wanted == method) {
            return Ok(Control::Continue);
        }
        let arguments = arguments()?;
        let object = Arc::clone(&self.object);
        let stops = self.caller.attempt(move |py| {
            object.bind(py).call_method1(method, arguments).and_then(|stops| stops.is_truthy())
        });
        let stops = stops.map_err(|Ended| unusable("the Python program is ending"))?;
        let stops = stops.or_else(|error| {
            // Raised once the run has stopped.
            let is_signal = Python::attach(|py| ends_programs(py, &error));
            if is_signal { Ok(true) } else { Err(unusable(error)) }
        })?;
        Ok(if stops { Control::Stop } else { Control::Continue })
    }
}

impl Callback for Hooks {
    fn name(&self) -> &str {
        "Python"
    }

    fn on_init_end(&mut self, run: &TrainerState<'_>) -> CallbackResult {
        self.call("begin", || Ok((state(run), serde_json::to_string(run.config).map_err(unusable)?)))
    }

    fn on_train_begin(&mut self, run: &TrainerState<'_>) -> CallbackResult {
        self.call("on_train_begin", || Ok((state(run),)))
    }

    fn on_train_end(&mut self, run: &TrainerState<'_>) -> CallbackResult {
        self.call("on_train_end", || Ok((state(run),)))
    }

    fn on_epoch_begin(&mut self, run: &TrainerState<'_>) -> CallbackResult {
        self.call("on_epoch_begin", || Ok((state(run),)))
    }

    fn on_epoch_end(&mut self, run: &TrainerState<'_>) -> CallbackResult {
        self.call("on_epoch_end", || Ok((state(run),)))
    }

    fn on_step_begin(&mut self, run: &TrainerState<'_>) -> CallbackResult {
        self.call("on_step_begin", || Ok((state(run),)))
    }

    fn on_step_end(&mut self, run: &TrainerState<'_>, result: &StepResult) -> CallbackResult {
        let StepResult { loss, gradient_norm, targets } = *result;
        self.call("on_step_end", || Ok((state(run), (loss, gradient_norm, targets))))
    }

    fn on_log(&mut self, run: &TrainerState<'_>, record: &Record) -> CallbackResult {
        self.call("on_log", || Ok((state(run), serde_json::to_string(record).map_err(unusable)?)))
    }

    fn on_evaluate(&mut self, run: &TrainerState<'_>, evaluation: &Evaluation) -> CallbackResult {
        let Evaluation { loss, targets, samples, .. } = evaluation;
        self.call("on_evaluate", || Ok((state(run), (*loss, *targets, samples.clone()))))
    }

    fn on_save(&mut self, run: &TrainerState<'_>, checkpoint: &Path) -> CallbackResult {
        self.call("on_save", || Ok((state(run), checkpoint.to_owned())))
    }

    fn on_resume(&mut self, run: &TrainerState<'_>, checkpoint: &Path) -> CallbackResult {
        self.call("on_resume", || Ok((state(run), checkpoint.to_owned())))
    }
}
