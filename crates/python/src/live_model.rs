//! Models of Python that answer questions.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use serde_json::{Map, Value};
use weightloom::Registry;
use weightloom::hub::decoder_parts;
use weightloom::layout::Shape;
use weightloom::nn::{AdapterTensor, AdapterTensorKind};
use weightloom::sway::backend::adapter_noise;
use weightloom::sway::backend::live::{ForwardOutput, ForwardRequest, LiveModel};
use weightloom::sway::{BackendError, View};

use crate::callbacks::{Caller, Ended};
use crate::errors::wrong;
use crate::memory::{Buffer, OwnedBytes, PyMemory};

/// A Python object that runs batches of tokens, on the thread that began to judge.
pub(crate) struct PyLiveModel {
    object: Arc<Py<PyAny>>,
    caller: Caller,
}

impl PyLiveModel {
    pub(crate) fn new(object: Arc<Py<PyAny>>, caller: Caller) -> Self {
        Self { object, caller }
    }

    fn call<T: Send + 'static>(
        &self,
        callback: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T> + Send + 'static,
    ) -> Result<T, BackendError> {
        let object = Arc::clone(&self.object);
        let called = self.caller.call(move |py| callback(object.bind(py)));
        called.map_err(|Ended| broken("it raised an exception".to_owned()))
    }
}

/// Sequences as rows of a matrix, with zeros after the shorter ones.
struct Padded {
    tokens: Vec<i64>,
    lengths: Vec<i64>,
    width: usize,
}

impl Padded {
    fn of<'a>(sequences: impl Iterator<Item = &'a [u32]> + Clone) -> Self {
        let width = sequences.clone().map(<[u32]>::len).max().unwrap_or(0);
        let (mut tokens, mut lengths) = (Vec::new(), Vec::new());
        for sequence in sequences {
            lengths.push(sequence.len() as i64);
            tokens.extend(sequence.iter().map(|token| i64::from(*token)));
            tokens.resize(lengths.len() * width, 0);
        }
        Self { tokens, lengths, width }
    }

    /// Width, tokens and lengths.
    fn arguments(&self) -> (usize, Buffer, Buffer) {
        (self.width, buffer(&self.tokens), buffer(&self.lengths))
    }
}

impl LiveModel for PyLiveModel {
    fn forward(
        &mut self,
        view: &View,
        batch: &[ForwardRequest<'_>],
    ) -> Result<Vec<ForwardOutput>, BackendError> {
        let view = json(view)?;
        let padded = Padded::of(batch.iter().map(|asked| asked.tokens));
        // For each token that is scored: its row, its place and the token.
        let scored: Vec<i64> = (0i64..)
            .zip(batch)
            .flat_map(|(row, asked)| {
                (asked.scored_from..asked.tokens.len())
                    .flat_map(move |place| [row, place as i64, i64::from(asked.tokens[place])])
            })
            .collect();
        let rows = |is_asked: fn(&ForwardRequest<'_>) -> bool| -> Vec<i64> {
            (0i64..).zip(batch).filter(|(_, asked)| is_asked(asked)).map(|(row, _)| row).collect()
        };
        let (next, hidden) = (rows(|asked| asked.next), rows(|asked| asked.hidden));
        let [logprobs, logits, means] = self.call(move |model| {
            let (width, tokens, lengths) = padded.arguments();
            let arguments = (view, width, tokens, lengths, buffer(&scored), buffer(&next), buffer(&hidden));
            let found: [Bound<'_, PyAny>; 3] = model.call_method1("forward", arguments)?.extract()?;
            Ok([floats(&found[0])?, floats(&found[1])?, floats(&found[2])?])
        })?;
        let width = |values: &[f32], rows: usize| values.len().checked_div(rows).unwrap_or(0);
        let next_width = width(&logits, batch.iter().filter(|asked| asked.next).count());
        let hidden_width = width(&means, batch.iter().filter(|asked| asked.hidden).count());
        let (mut logprobs, mut logits, mut means) = (&logprobs[..], &logits[..], &means[..]);
        let outputs = batch.iter().map(|asked| {
            Ok(ForwardOutput {
                logprobs: taken(&mut logprobs, asked.tokens.len() - asked.scored_from)?,
                next_logits: taken(&mut logits, if asked.next { next_width } else { 0 })?,
                mean_hidden: taken(&mut means, if asked.hidden { hidden_width } else { 0 })?,
            })
        });
        outputs.collect()
    }

    fn start_generation(&mut self, view: &View, prompts: &[&[u32]]) -> Result<Vec<f32>, BackendError> {
        let (view, padded) = (json(view)?, Padded::of(prompts.iter().copied()));
        self.call(move |model| {
            let (width, tokens, lengths) = padded.arguments();
            floats(&model.call_method1("start_generation", (view, width, tokens, lengths))?)
        })
    }

    fn continue_generation(&mut self, tokens: &[u32]) -> Result<Vec<f32>, BackendError> {
        let tokens: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        self.call(move |model| floats(&model.call_method1("continue_generation", (buffer(&tokens),))?))
    }
}

/// Takes values from the front.
fn taken(values: &mut &[f32], count: usize) -> Result<Vec<f32>, BackendError> {
    let Some((first, rest)) = values.split_at_checked(count) else {
        return Err(broken(format!("it returned {} values where {count} were asked for", values.len())));
    };
    *values = rest;
    Ok(first.to_vec())
}

fn broken(message: String) -> BackendError {
    BackendError { backend: "live".to_owned(), message, hint: None }
}

fn json(view: &View) -> Result<String, BackendError> {
    serde_json::to_string(view).map_err(|error| broken(error.to_string()))
}

fn buffer<T: bytemuck::NoUninit>(values: &[T]) -> Buffer {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let mut owned = OwnedBytes::zeroed(bytes.len());
    owned.bytes_mut().copy_from_slice(bytes);
    owned.into()
}

fn floats(object: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    let memory = PyMemory::of(object)?;
    let (words, rest) = memory.bytes().as_chunks::<4>();
    if !rest.is_empty() {
        return Err(wrong("the memory does not hold floats of 32 bits", "return contiguous float32 values"));
    }
    Ok(words.iter().map(|word| f32::from_ne_bytes(*word)).collect())
}

/// New values for the tensors of an adapter, one after the other.
#[pyclass(module = "weightloom._weightloom")]
pub(crate) struct AdapterNoise(adapter_noise::AdapterNoise);

#[pymethods]
impl AdapterNoise {
    #[staticmethod]
    fn normal(seed: u64, init_scale: f64, rank_scale: f64) -> Self {
        Self(adapter_noise::AdapterNoise::normal(seed, init_scale, rank_scale))
    }

    #[staticmethod]
    fn matched(seed: u64) -> Self {
        Self(adapter_noise::AdapterNoise::matched(seed))
    }

    /// The new values of the next tensor, of 32-bit floats; `None` keeps them.
    fn replace(
        &mut self,
        py: Python<'_>,
        kind: &str,
        shape: Vec<usize>,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Buffer>> {
        let kind = match kind {
            "a" => AdapterTensorKind::A,
            "b" => AdapterTensorKind::B,
            "embedding_a" => AdapterTensorKind::EmbeddingA,
            "embedding_b" => AdapterTensorKind::EmbeddingB,
            "bias" => AdapterTensorKind::Bias,
            "replacement" => AdapterTensorKind::Replacement,
            other => return Err(wrong(format!("no tensor of an adapter is `{other}`"), "use `a` or `b`")),
        };
        let values = floats(values)?;
        let shape = Shape::new(&shape).ok().filter(|shape| shape.volume() == values.len());
        let Some(shape) = shape else {
            return Err(wrong("the shape does not fit the values", "pass the shape of the tensor"));
        };
        Ok(py.detach(|| {
            let tensor = AdapterTensor { name: "", kind, shape: &shape, values: &values };
            self.0.replace(&tensor).map(|new| buffer(&new))
        }))
    }
}

/// What the native decoder of a config is like, and where the rows of parameters are in it.
#[pyclass(frozen, get_all, module = "weightloom._weightloom")]
pub(crate) struct DecoderInfo {
    layers: usize,
    /// The longest sequence, if there is one.
    max_positions: Option<usize>,
    /// For each parameter: names, places in the order of use, first rows and numbers of rows.
    parts: Vec<Vec<(String, usize, usize, usize)>>,
}

/// The native decoder of a `config.json`, and the parts of it that parameters with numbers of
/// outputs become. `None` if no family knows the config, or how such a parameter is split.
#[pyfunction]
pub(crate) fn decoder_info(config: &str, parameters: Vec<(String, usize)>) -> Option<DecoderInfo> {
    let config: Map<String, Value> = serde_json::from_str(config).ok()?;
    let registry = Registry::standard();
    let family = registry.families().of_config(&config).ok()?;
    let definition = family.definition(&config).ok()?;
    let found = decoder_parts(&**family, &config, &parameters).ok()?;
    let order: BTreeMap<String, usize> =
        definition.all_parameters().into_iter().zip(0..).map(|(spec, place)| (spec.name, place)).collect();
    // A tied head has no parameter, and comes last.
    let place = |name: &str| order.get(name).copied().unwrap_or(order.len());
    let parts = found.into_iter().map(|parts| {
        let part = |part: weightloom::hub::DecoderPart| {
            let place = place(&part.name);
            (part.name, place, part.rows.start, part.rows.len())
        };
        parts.into_iter().map(part).collect()
    });
    Some(DecoderInfo {
        layers: definition.layers(),
        max_positions: definition.max_positions(),
        parts: parts.collect(),
    })
}
