//! Options of generated text, and text that is read while it is generated.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;

use pyo3::prelude::*;
use weightloom::hub::{EosHandling, HubError, StopCriteria, TextGenerator};
use weightloom::nn::GenerateRequest;
use weightloom::{PromptFormat, SamplingOptions};

use crate::errors::{Raise, wrong};
use crate::forked::{check_computing, is_of_this_process};
use crate::interruption::{TICK, flow, run_signal_handlers};
use crate::model::{Loaded, Model};

/// Options of generated text.
#[derive(Clone, FromPyObject)]
pub(crate) struct GenerateOptions {
    max_new_tokens: usize,
    sample: bool,
    temperature: Option<f64>,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: u64,
    stop: Vec<String>,
    ignore_eos: bool,
    /// Whether the prompts are conversations.
    is_chat: bool,
}

impl GenerateOptions {
    pub(crate) fn request(
        &self,
        generator: &TextGenerator,
        prompts: Vec<Vec<u32>>,
    ) -> Result<(GenerateRequest, StopCriteria), HubError> {
        let sampling = SamplingOptions {
            sample: self.sample,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        };
        let eos = if self.ignore_eos { EosHandling::Ignore } else { EosHandling::Stop };
        let format = if self.is_chat { PromptFormat::Chat } else { PromptFormat::Text };
        let request = GenerateRequest {
            prompts,
            max_new_tokens: self.max_new_tokens,
            sampling: sampling.resolve(&generator.defaults),
            stop_tokens: format.stop_tokens(generator, eos)?,
            ..GenerateRequest::default()
        };
        Ok((request, StopCriteria { strings: self.stop.clone(), eos }))
    }
}

/// A piece of text, or why there is none.
type Piece = Result<String, HubError>;

/// Text that is generated while it is read. The generation is at most one piece ahead.
#[pyclass(frozen, module = "weightloom._weightloom")]
pub(crate) struct TextStream {
    state: Mutex<StreamState>,
    /// Ends the generation before its next token.
    cancel: Arc<AtomicBool>,
    /// The process that it belongs to.
    process: u32,
}

enum StreamState {
    /// Nothing was read so far.
    Ready(Box<Start>),
    Running(Running),
    Ended,
}

struct Start {
    loaded: Arc<Loaded>,
    prompt: Vec<u32>,
    options: GenerateOptions,
}

struct Running {
    pieces: Receiver<Piece>,
    thread: JoinHandle<()>,
}

impl Start {
    fn run(self, cancel: &AtomicBool, pieces: &SyncSender<Piece>) {
        let Self { loaded, prompt, options } = self;
        let generator = &loaded.generator;
        let generated = options.request(generator, vec![prompt]).and_then(|(request, stop)| {
            generator.generate_checked(
                &request,
                &stop,
                || flow(cancel),
                |token| {
                    // Nobody reads any more.
                    let is_lost = || pieces.send(Ok(token.text.clone())).is_err();
                    if flow(cancel).is_break() || (!token.text.is_empty() && is_lost()) {
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                },
            )
        });
        if let Err(error) = generated {
            let _ = pieces.send(Err(error));
        }
    }
}

impl TextStream {
    /// Locks the state for one call; another thread may be waiting for a piece.
    fn lock(&self) -> PyResult<MutexGuard<'_, StreamState>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(wrong(
                "another thread is reading this text",
                "read it from one thread, or generate a text for each",
            )),
        }
    }

    /// Starts the thread that generates, unless it runs.
    fn start(&self, state: &mut StreamState) -> PyResult<()> {
        if !matches!(state, StreamState::Ready(_)) {
            return Ok(());
        }
        let StreamState::Ready(start) = std::mem::replace(state, StreamState::Ended) else { return Ok(()) };
        let (sender, pieces) = sync_channel(1);
        let cancel = Arc::clone(&self.cancel);
        let work = move || start.run(&cancel, &sender);
        let thread = std::thread::Builder::new().name("generate".to_owned()).spawn(work)?;
        *state = StreamState::Running(Running { pieces, thread });
        Ok(())
    }

    /// Waits for the next piece; `None` at the end.
    fn wait(running: &Running) -> PyResult<Option<Piece>> {
        loop {
            match running.pieces.recv_timeout(TICK) {
                Ok(piece) => return Ok(Some(piece)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => run_signal_handlers()?,
            }
        }
    }

    /// Ends the generation, and waits until it has.
    fn end(&self, state: &mut StreamState) {
        self.cancel.store(true, Ordering::Relaxed);
        if let StreamState::Running(Running { pieces, thread }) = std::mem::replace(state, StreamState::Ended)
        {
            drop(pieces);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    }
}

#[pymethods]
impl TextStream {
    /// Text after a prompt. Nothing is computed before the first piece is read.
    #[new]
    fn new(model: &Bound<'_, Model>, prompt: Vec<u32>, options: GenerateOptions) -> PyResult<Self> {
        let model = model.get();
        check_computing("generate text")?;
        let start = Start { loaded: Arc::clone(&model.loaded), prompt, options };
        let state = Mutex::new(StreamState::Ready(Box::new(start)));
        Ok(Self { state, cancel: Arc::default(), process: std::process::id() })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        if !is_of_this_process(self.process) {
            return Err(wrong(
                "cannot continue a text in a forked process: the thread that generates it does not survive a fork",
                "generate it in one process",
            ));
        }
        py.detach(|| {
            let mut state = self.lock()?;
            self.start(&mut state)?;
            let StreamState::Running(running) = &*state else { return Ok(None) };
            match Self::wait(running) {
                Ok(Some(Ok(piece))) => Ok(Some(piece)),
                Ok(Some(Err(error))) => {
                    self.end(&mut state);
                    Err(Raise::from(error).into())
                }
                Ok(None) => {
                    self.end(&mut state);
                    Ok(None)
                }
                Err(interruption) => {
                    self.end(&mut state);
                    Err(interruption)
                }
            }
        })
    }

    /// Ends the generation.
    fn close(&self, py: Python<'_>) {
        // Ends the wait of another thread, too.
        self.cancel.store(true, Ordering::Relaxed);
        if is_of_this_process(self.process) {
            py.detach(|| self.end(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        if !is_of_this_process(self.process) {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(state, StreamState::Ended));
        }
    }
}
