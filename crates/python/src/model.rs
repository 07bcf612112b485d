//! Models that generate and score text.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use weightloom::checkpoint::storage::ReadMode;
use weightloom::cli::{CallError, CallErrorKind};
use weightloom::errors::Hint;
use weightloom::hub::cards::StoreSettings;
use weightloom::hub::fetch::NetworkAccess;
use weightloom::hub::text::{ChatContext, Message, OrderedJson, Special, SpecialText, Timestamp};
use weightloom::hub::{Hub, HubError, LocatedModel, ModelLoadOptions, Strictness, TextGenerator};
use weightloom::layout::DType;
use weightloom::nn::{NnError, Sequence};
use weightloom::tensor::{ChosenDevice, Device, DeviceChoice, memory};
use weightloom::{AdapterMode, Folders, LoadedGenerator, OpenedModel, PromptFormat, Registry};

use crate::checkpoint::{Downloads, dtype_of};
use crate::errors::{Raise, wrong};
use crate::forked::{check_computing, is_of_this_process};
use crate::generation::GenerateOptions;
use crate::interruption::{flow, interruptible};
use crate::memory::{Buffer, OwnedBytes};
use crate::progress::Progress;

/// A loaded model with its tokenizer. Calls only read it, so threads may make them at once.
#[pyclass(frozen, module = "weightloom._weightloom")]
pub(crate) struct Model {
    pub(crate) loaded: Arc<Loaded>,
    facts: Facts,
    /// The process that loaded it.
    process: u32,
}

/// A model, and the memory that goes back to the system after it.
pub(crate) struct Loaded {
    pub(crate) generator: TextGenerator,
    #[expect(dead_code, reason = "dropped after the model")]
    memory: ReleasedMemory,
}

/// Returns the freed memory of a device to the system when dropped.
struct ReleasedMemory(Device);

impl Drop for ReleasedMemory {
    fn drop(&mut self) {
        // A device that fails has nothing to return.
        let _ = memory::release_of(self.0);
    }
}

/// What is known of a model beside its parameters.
struct Facts {
    family: String,
    location: String,
    adapter: Option<PathBuf>,
    config: String,
    device: Device,
    format: PromptFormat,
    /// How the name was resolved.
    notes: Vec<String>,
    /// What does not match, and was accepted.
    warnings: Vec<String>,
}

/// Options of a load.
#[derive(FromPyObject)]
pub(crate) struct LoadOptions {
    adapter: Option<String>,
    adapter_scale: Option<f64>,
    merge: bool,
    device: String,
    dtype: Option<String>,
    mmap: bool,
    strict: bool,
    ignore_mismatched_sizes: bool,
    asset_dirs: Vec<PathBuf>,
    model_paths: Vec<PathBuf>,
    environments: Vec<String>,
    offline: bool,
}

impl LoadOptions {
    fn hub(&self) -> Result<Hub, Raise> {
        let folders = Folders { assets: self.asset_dirs.clone(), models: self.model_paths.clone() };
        let environments = self.environments.join(",");
        let variable = |name: &str| match name {
            StoreSettings::ENVIRONMENTS if !environments.is_empty() => Some(environments.clone()),
            _ => std::env::var(name).ok(),
        };
        let mut hub = Registry::standard().hub(&variable, &folders);
        if let (true, Ok(settings)) = (self.offline, hub.fetch_settings_mut()) {
            settings.network = NetworkAccess::Offline;
        }
        hub.cards.check_environments().map_err(HubError::from)?;
        Ok(hub)
    }

    fn strictness(&self) -> Strictness {
        match (self.ignore_mismatched_sizes, self.strict) {
            (true, _) => Strictness::IgnoreMismatchedSizes,
            (false, false) => Strictness::NonStrict,
            (false, true) => Strictness::Strict,
        }
    }

    /// The device, and why it is not a better one.
    fn device(&self) -> PyResult<ChosenDevice> {
        let choice: DeviceChoice =
            self.device.parse().map_err(|error: weightloom::tensor::UnknownDevice| {
                wrong(error.to_string(), error.hint().unwrap_or_default())
            })?;
        choice.resolve(0).map_err(|error| {
            let (kind, hint) = (CallErrorKind::Operational, error.hint());
            Raise::from(CallError { kind, message: error.to_string(), hint }).into()
        })
    }

    /// Finds the model and its adapter. Returns how, too.
    fn open(&self, name: &str, progress: &Progress) -> Result<(OpenedModel, Vec<String>), Raise> {
        let (hub, downloads) = (self.hub()?, Downloads(progress));
        let LocatedModel { model, adapter, steps } =
            hub.locate_with(name, self.adapter.as_deref(), &downloads)?;
        let opened = OpenedModel { model: hub.open(&model, &downloads)?, adapter };
        Ok((opened, steps.iter().map(ToString::to_string).collect()))
    }

    fn mode(&self, name: &str, opened: &OpenedModel) -> PyResult<AdapterMode> {
        let options = [("adapter_scale", self.adapter_scale.is_some()), ("merge", self.merge)];
        if let Some((option, _)) = options.into_iter().find(|(_, given)| *given)
            && opened.adapter.is_none()
        {
            let message = format!("cannot use `{option}` with `{name}`: it has no adapter");
            return Err(wrong(message, "name an adapter with `adapter`"));
        }
        let scale = self.adapter_scale.unwrap_or(1.0);
        Ok(if self.merge { AdapterMode::Merged(scale) } else { AdapterMode::Separate(scale) })
    }
}

/// Loads a model by card, folder, file, run, adapter, `org/name` or URL.
#[pyfunction]
#[pyo3(signature = (name, options, progress=None))]
pub(crate) fn load_model(
    py: Python<'_>,
    name: String,
    options: LoadOptions,
    progress: Option<Py<PyAny>>,
) -> PyResult<Model> {
    check_computing("load a model")?;
    let progress = Progress::new(progress);
    let ChosenDevice { device, unused_gpu } = py.detach(|| options.device())?;
    let dtype: Option<DType> = options.dtype.as_deref().map(dtype_of).transpose()?;
    let opened = interruptible(py, &progress.cancel, || options.open(&name, &progress))?;
    let (opened, mut notes) = opened?;
    let mode = options.mode(&name, &opened)?;
    let load_options = ModelLoadOptions {
        device,
        dtype,
        read_mode: options.mmap.then_some(ReadMode::Mapped),
        strictness: options.strictness(),
        ..ModelLoadOptions::default()
    };
    let loaded = interruptible(py, &progress.cancel, || -> Result<_, Raise> {
        let format = opened.prompt_format()?;
        Ok((opened.load(&load_options, mode, &progress)?, format))
    })?;
    let (LoadedGenerator { generator, mismatch }, format) = loaded?;
    let trained = if opened.adapter.is_some() { "adapter" } else { "model" };
    notes.extend(format.note(trained, "chat=False"));
    let mut warnings = mismatch.outcomes();
    warnings.extend(unused_gpu.map(|reason| format!("the CPU computes: {reason}")));
    let facts = Facts {
        family: opened.model.family().name().to_owned(),
        location: opened.model.source().storage.location(),
        config: serde_json::Value::Object(opened.model.config().clone()).to_string(),
        adapter: opened.adapter,
        device,
        format,
        notes,
        warnings,
    };
    let loaded = Arc::new(Loaded { generator, memory: ReleasedMemory(device) });
    Ok(Model { loaded, facts, process: std::process::id() })
}

impl Drop for Model {
    fn drop(&mut self) {
        if !is_of_this_process(self.process) {
            std::mem::forget(Arc::clone(&self.loaded));
        }
    }
}

/// The time, for chat templates that write it.
fn now() -> Option<Timestamp> {
    Timestamp::from_unix(SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs())
}

fn json(what: &str, text: &str) -> PyResult<OrderedJson> {
    serde_json::from_str(text).map_err(|error| {
        wrong(format!("cannot read the {what}: {error}"), "pass dicts that JSON can express")
    })
}

/// A conversation, as JSON.
#[derive(FromPyObject)]
pub(crate) struct Conversation {
    messages: String,
    tools: Option<String>,
    documents: Option<String>,
    variables: String,
}

impl Conversation {
    fn parse(&self) -> PyResult<(Vec<Message>, ChatContext)> {
        let messages: Vec<Message> = serde_json::from_str(&self.messages).map_err(|error| {
            wrong(format!("cannot read the messages: {error}"), "pass dicts with `role` and `content`")
        })?;
        let list = |what: &str, text: &Option<String>| match text.as_ref().map(|text| json(what, text)) {
            Some(Ok(OrderedJson::List(list))) => Ok(Some(list)),
            Some(Ok(_)) => {
                Err(wrong(format!("cannot read the {what}: expected a list"), "pass a list of dicts"))
            }
            Some(Err(error)) => Err(error),
            None => Ok(None),
        };
        let variables = match json("template variables", &self.variables)? {
            OrderedJson::Map(variables) => variables,
            _ => return Err(wrong("cannot read the template variables: expected names", "pass a dict")),
        };
        let (tools, documents) = (list("tools", &self.tools)?, list("documents", &self.documents)?);
        let context = ChatContext { tools, documents, now: now(), variables };
        Ok((messages, context))
    }
}

/// Positions whose logits are computed at once.
const LOGIT_ROWS: usize = 256;

/// The log-probability of a token, and the likeliest ones at its position.
type ScoredToken = (f64, Vec<(u32, f64)>);

impl Model {
    /// Writes the logits at all positions of rows of one length.
    fn write_logits(
        &self,
        rows: &[&[u32]],
        into: &mut [u8],
        cancel: &AtomicBool,
    ) -> Result<ControlFlow<()>, HubError> {
        let TextGenerator { model, adapter, .. } = &self.loaded.generator;
        let adapters = [adapter.as_ref().map(|(adapter, strength)| (adapter, *strength))];
        let mut rest = into;
        // One row after the other: its numbers are the same in any batch, and memory for one is enough.
        for tokens in rows {
            if flow(cancel).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let vocabulary = model.definition().vocabulary();
            if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
                return Err(NnError::UnknownToken { token, vocabulary }.into());
            }
            let output = model.forward_sequences(&[Sequence { tokens, adapter: 0 }], &adapters)?;
            for start in (0..tokens.len()).step_by(LOGIT_ROWS) {
                let positions: Vec<(usize, usize)> =
                    (start..tokens.len().min(start + LOGIT_ROWS)).map(|position| (0, position)).collect();
                let logits = output.logits(&positions)?.cast(DType::F32).map_err(NnError::from)?;
                let logits = logits.full_tensor().map_err(NnError::from)?;
                let (part, others) = rest.split_at_mut(positions.len() * vocabulary * size_of::<f32>());
                logits.read_bytes(0, part).map_err(NnError::from)?;
                rest = others;
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[pymethods]
impl Model {
    /// The name of the family.
    #[getter]
    fn family(&self) -> &str {
        &self.facts.family
    }

    /// Where its files are.
    #[getter]
    fn location(&self) -> &str {
        &self.facts.location
    }

    /// The folder of the adapter.
    #[getter]
    fn adapter(&self) -> Option<PathBuf> {
        self.facts.adapter.clone()
    }

    /// The configuration, as JSON.
    #[getter]
    fn config(&self) -> &str {
        &self.facts.config
    }

    /// The device that computes.
    #[getter]
    fn device(&self) -> String {
        self.facts.device.to_string()
    }

    /// The dtype of the parameters.
    #[getter]
    fn dtype(&self) -> &'static str {
        let parameters = self.loaded.generator.model.parameters();
        parameters.first().map_or(DType::F32, |(_, value)| value.dtype()).name()
    }

    /// The number of parameters, without those of an adapter.
    #[getter]
    fn num_parameters(&self) -> u64 {
        self.loaded.generator.model.definition().parameter_count()
    }

    /// The number of tokens that it knows.
    #[getter]
    fn vocabulary(&self) -> usize {
        self.loaded.generator.model.definition().vocabulary()
    }

    /// The number of positions that it was trained for, if that is known.
    #[getter]
    fn context_length(&self) -> Option<usize> {
        self.loaded.generator.model.definition().context_length()
    }

    /// Whether prompts become messages of a chat unless the caller says otherwise.
    #[getter]
    fn is_chat(&self) -> bool {
        self.facts.format.is_chat()
    }

    /// How the name was resolved, and how prompts are formatted.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.facts.notes.clone()
    }

    /// What does not match, and was accepted.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.facts.warnings.clone()
    }

    /// The tokens of a prompt, as plain text or as a message of a chat.
    #[expect(clippy::fn_params_excessive_bools, reason = "Python names the argument")]
    #[pyo3(signature = (text, chat, system=None))]
    fn encode_prompt(
        &self,
        py: Python<'_>,
        text: &str,
        chat: bool,
        system: Option<&str>,
    ) -> PyResult<Vec<u32>> {
        let format = if chat { PromptFormat::Chat } else { PromptFormat::Text };
        let encoded = py.detach(|| format.encode(&self.loaded.generator, text, system, now()));
        Ok(encoded.map_err(Raise::from)?)
    }

    /// The tokens of a conversation, ready for the assistant's turn.
    fn encode_chat(&self, py: Python<'_>, conversation: Conversation) -> PyResult<Vec<u32>> {
        py.detach(|| {
            let (messages, context) = conversation.parse()?;
            Ok(self.loaded.generator.encode_chat(&messages, &context).map_err(Raise::from)?)
        })
    }

    /// The tokens of a text.
    #[expect(clippy::fn_params_excessive_bools, reason = "Python names the argument")]
    fn encode(&self, py: Python<'_>, text: &str, plain: bool) -> PyResult<Vec<u32>> {
        let special = if plain { Special::Plain } else { Special::Add };
        let encoded = py.detach(|| self.loaded.generator.tokenizer.encode(text, special));
        Ok(encoded.map_err(|error| Raise::from(HubError::from(error)))?)
    }

    /// The text of tokens.
    #[expect(clippy::fn_params_excessive_bools, reason = "Python names the argument")]
    fn decode(&self, py: Python<'_>, tokens: Vec<u32>, keep_special: bool) -> String {
        let special = if keep_special { SpecialText::Keep } else { SpecialText::Skip };
        py.detach(|| self.loaded.generator.tokenizer.decode(&tokens, special))
    }

    /// Tokens as written in the vocabulary.
    fn pieces(&self, tokens: Vec<u32>) -> Vec<String> {
        let tokenizer = &self.loaded.generator.tokenizer;
        tokens.into_iter().map(|token| tokenizer.token(token).unwrap_or_default().to_owned()).collect()
    }

    /// Generates text after prompts, in one batch.
    fn generate(
        &self,
        py: Python<'_>,
        prompts: Vec<Vec<u32>>,
        options: GenerateOptions,
    ) -> PyResult<Vec<String>> {
        check_computing("generate text")?;
        let cancel = AtomicBool::new(false);
        let written = interruptible(py, &cancel, || -> Result<_, HubError> {
            let generator = &self.loaded.generator;
            let (request, stop) = options.request(generator, prompts)?;
            generator.generate_checked(&request, &stop, || flow(&cancel), |_| flow(&cancel))
        })?;
        Ok(written.map_err(Raise::from)?.into_iter().map(|row| row.text).collect())
    }

    /// Scores every token of rows but the first, in one batch.
    fn score(&self, py: Python<'_>, rows: Vec<Vec<u32>>, top: usize) -> PyResult<Vec<Vec<ScoredToken>>> {
        check_computing("score text")?;
        let cancel = AtomicBool::new(false);
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let generator = &self.loaded.generator;
        let scored = interruptible(py, &cancel, || generator.score_checked(&rows, top, || flow(&cancel)))?;
        let scored = scored.map_err(Raise::from)?.unwrap_or_default();
        let row = |row: Vec<weightloom::nn::TokenLogprobs>| {
            row.into_iter().map(|score| (score.chosen, score.top)).collect()
        };
        Ok(scored.into_iter().map(row).collect())
    }

    /// The logits at every position of rows of one length: `[rows, positions, vocabulary]` of
    /// f32.
    fn logits(&self, py: Python<'_>, rows: Vec<Vec<u32>>) -> PyResult<Buffer> {
        check_computing("compute logits")?;
        let positions = rows.first().map_or(0, Vec::len);
        if let Some(other) = rows.iter().find(|row| row.len() != positions) {
            let message =
                format!("cannot compute logits of rows of {positions} and {} tokens together", other.len());
            return Err(wrong(message, "pass rows of one length"));
        }
        let rows: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        let values = rows.len() * positions * self.vocabulary();
        let cancel = AtomicBool::new(false);
        let computed = interruptible(py, &cancel, || -> Result<_, HubError> {
            let mut bytes = OwnedBytes::zeroed(values * size_of::<f32>());
            let _ = self.write_logits(&rows, bytes.bytes_mut(), &cancel)?;
            Ok(bytes)
        })?;
        Ok(computed.map_err(Raise::from)?.into())
    }
}
