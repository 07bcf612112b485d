//! Sentence embeddings with a BERT encoder, from folders in the layout of
//! sentence-transformers.

use std::path::Path;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Observer, ReadOptions, ReadRequest, Source, read};
use weightloom_errors::{Hint, did_you_mean, nearest};
use weightloom_layout::{DType, Region, Shape};
use weightloom_nn::NnError;
use weightloom_tensor::{Attention, HostMemory, Tensor, TensorError, no_grad};

use crate::config::{ConfigError, Fields};
use crate::error::HubError;
use crate::text::{Special, Tokenizer};

/// An invalid or unsupported sentence encoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SentenceEncoderError {
    #[error("the sentence encoder in {location} has no tensor `{name}`")]
    Missing { location: String, name: String, near: Option<String> },
    #[error("tensor `{name}` of the sentence encoder has shape {found}, expected {expected}")]
    Shape { name: String, found: Shape, expected: Shape },
    #[error("token {token} is outside the sentence encoder's vocabulary of {vocabulary}")]
    Token { token: u32, vocabulary: usize },
}

impl Hint for SentenceEncoderError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { near: Some(near), .. } => did_you_mean(Some(near)),
            Self::Missing { .. } | Self::Shape { .. } => {
                Some("use a folder of sentence-transformers with a BERT model".to_owned())
            }
            Self::Token { .. } => Some("use tokenizer and weights of the same model".to_owned()),
        }
    }
}

/// Reduction of the token vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    Mean,
    Cls,
}

/// Weight and bias of a linear layer or layer norm.
struct Dense {
    weight: Tensor,
    bias: Tensor,
}

impl Dense {
    fn apply(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor, TensorError> {
        x.linear(&self.weight, Some(&self.bias), residual)
    }
}

struct Layer {
    query: Dense,
    key: Dense,
    value: Dense,
    output: Dense,
    attention_norm: Dense,
    up: Dense,
    down: Dense,
    mlp_norm: Dense,
}

/// A sentence encoder.
pub struct SentenceEncoder {
    tokenizer: Tokenizer,
    word_embeddings: Tensor,
    position_embeddings: Tensor,
    type_embeddings: Tensor,
    embedding_norm: Dense,
    layers: Vec<Layer>,
    heads: usize,
    eps: f64,
    max_tokens: usize,
    pooling: Pooling,
}

/// Sizes from the configuration.
struct Sizes {
    hidden: usize,
    intermediate: usize,
    heads: usize,
    layers: usize,
    positions: usize,
    vocabulary: usize,
    types: usize,
    eps: f64,
}

impl Sizes {
    fn of(config: &Map<String, Value>) -> Result<Self, ConfigError> {
        let fields = Fields::new(config);
        let kind: String = fields.get("model_type")?;
        if kind != "bert" {
            return Err(fields.not_supported("model_type", &["bert"]));
        }
        let act: String = fields.get_or("hidden_act", "gelu".to_owned())?;
        if act != "gelu" {
            return Err(fields.not_supported("hidden_act", &["gelu"]));
        }
        let position_type: String = fields.get_or("position_embedding_type", "absolute".to_owned())?;
        if position_type != "absolute" {
            return Err(fields.not_supported("position_embedding_type", &["absolute"]));
        }
        let sizes = Self {
            hidden: fields.get("hidden_size")?,
            intermediate: fields.get("intermediate_size")?,
            heads: fields.get("num_attention_heads")?,
            layers: fields.get("num_hidden_layers")?,
            positions: fields.get("max_position_embeddings")?,
            vocabulary: fields.get("vocab_size")?,
            types: fields.get_or("type_vocab_size", 2)?,
            eps: fields.get_or("layer_norm_eps", 1e-12)?,
        };
        if sizes.positions == 0 {
            return Err(fields.not_supported("max_position_embeddings", &["a positive number"]));
        }
        if sizes.heads == 0 || !sizes.hidden.is_multiple_of(sizes.heads) {
            return Err(fields.not_supported("num_attention_heads", &["a divisor of hidden_size"]));
        }
        Ok(sizes)
    }
}

/// Weights by name.
struct Weights<'a> {
    source: &'a Source,
    /// Prefix of all names.
    prefix: &'static str,
    observer: &'a dyn Observer,
}

impl Weights<'_> {
    fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor, HubError> {
        let name = format!("{}{name}", self.prefix);
        let all = self.source.index.tensors();
        let Some(entry) = all.get(&name) else {
            let near = nearest(&name, all.keys().map(String::as_str)).map(str::to_owned);
            return Err(SentenceEncoderError::Missing {
                location: self.source.storage.location(),
                name,
                near,
            }
            .into());
        };
        let expected = Shape::new(dims).map_err(NnError::from)?;
        if entry.shape != expected {
            return Err(SentenceEncoderError::Shape { name, found: entry.shape.clone(), expected }.into());
        }
        let mut memory = HostMemory::new(DType::F32, &entry.shape).map_err(NnError::from)?;
        let region = Region::whole(&entry.shape);
        let want = ReadRequest { name: &name, entry, region, dtype: DType::F32, into: memory.bytes_mut() };
        read(self.source, vec![want], &ReadOptions::default(), self.observer)?;
        Ok(memory.into_tensor())
    }

    fn dense(&self, name: &str, outputs: usize, inputs: usize) -> Result<Dense, HubError> {
        Ok(Dense {
            weight: self.tensor(&format!("{name}.weight"), &[outputs, inputs])?,
            bias: self.tensor(&format!("{name}.bias"), &[outputs])?,
        })
    }

    fn norm(&self, name: &str, width: usize) -> Result<Dense, HubError> {
        Ok(Dense {
            weight: self.tensor(&format!("{name}.weight"), &[width])?,
            bias: self.tensor(&format!("{name}.bias"), &[width])?,
        })
    }

    fn layer(&self, number: usize, Sizes { hidden, intermediate, .. }: &Sizes) -> Result<Layer, HubError> {
        let (hidden, intermediate) = (*hidden, *intermediate);
        let of = |part: &str| format!("encoder.layer.{number}.{part}");
        let square = |part: &str| self.dense(&of(part), hidden, hidden);
        Ok(Layer {
            query: square("attention.self.query")?,
            key: square("attention.self.key")?,
            value: square("attention.self.value")?,
            output: square("attention.output.dense")?,
            attention_norm: self.norm(&of("attention.output.LayerNorm"), hidden)?,
            up: self.dense(&of("intermediate.dense"), intermediate, hidden)?,
            down: self.dense(&of("output.dense"), hidden, intermediate)?,
            mlp_norm: self.norm(&of("output.LayerNorm"), hidden)?,
        })
    }
}

impl SentenceEncoder {
    /// Opens a folder in the layout of sentence-transformers.
    pub fn open(folder: &Path, observer: &dyn Observer) -> Result<Self, HubError> {
        let source = Source::open(folder)?;
        let config = read_map(folder, "config.json")?
            .ok_or_else(|| HubError::NoConfig { location: folder.display().to_string() })?;
        let about = |problem| HubError::Config { about: folder.display().to_string(), problem };
        let sizes = Sizes::of(&config).map_err(about)?;
        let own = read_map(folder, "sentence_bert_config.json")?.unwrap_or_default();
        let max_length: usize = Fields::new(&own).get_or("max_seq_length", sizes.positions).map_err(about)?;
        let pooling = read_map(folder, "1_Pooling/config.json")?.unwrap_or_default();
        let cls = Fields::new(&pooling).get_or("pooling_mode_cls_token", false).map_err(about)?;
        let bare = source.index.tensors().keys().all(|name| !name.starts_with("bert."));
        let weights = Weights { source: &source, prefix: if bare { "" } else { "bert." }, observer };
        let width = sizes.hidden;
        Ok(Self {
            tokenizer: Tokenizer::from_folder(folder)?,
            word_embeddings: weights
                .tensor("embeddings.word_embeddings.weight", &[sizes.vocabulary, width])?,
            position_embeddings: weights
                .tensor("embeddings.position_embeddings.weight", &[sizes.positions, width])?,
            type_embeddings: weights
                .tensor("embeddings.token_type_embeddings.weight", &[sizes.types, width])?,
            embedding_norm: weights.norm("embeddings.LayerNorm", width)?,
            layers: (0..sizes.layers)
                .map(|number| weights.layer(number, &sizes))
                .collect::<Result<_, _>>()?,
            heads: sizes.heads,
            eps: sizes.eps,
            max_tokens: max_length.clamp(1, sizes.positions),
            pooling: if cls { Pooling::Cls } else { Pooling::Mean },
        })
    }

    /// Encodes a sentence as a vector of length 1. A long sentence is truncated;
    /// its last token is kept.
    pub fn encode(&self, sentence: &str) -> Result<Vec<f32>, HubError> {
        let mut tokens = self.tokenizer.encode(sentence, Special::Add)?;
        if tokens.len() > self.max_tokens
            && let Some(last) = tokens.last().copied()
        {
            tokens.truncate(self.max_tokens - 1);
            tokens.push(last);
        }
        let vocabulary = self.word_embeddings.shape()[0];
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(SentenceEncoderError::Token { token, vocabulary }.into());
        }
        if tokens.is_empty() {
            return Ok(vec![0.0; self.word_embeddings.shape()[1]]);
        }
        let vector = no_grad(|| self.forward(&tokens)).map_err(NnError::from)?;
        let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt().max(1e-12);
        Ok(vector.into_iter().map(|x| (f64::from(x) / length) as f32).collect())
    }

    fn norm(&self, norm: &Dense, x: &Tensor) -> Result<Tensor, TensorError> {
        x.layer_norm(&norm.weight, &norm.bias, self.eps)
    }

    fn forward(&self, tokens: &[u32]) -> Result<Vec<f32>, TensorError> {
        let time = tokens.len();
        let ids: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let words = self.word_embeddings.embedding(&Tensor::from_slice(&ids, &[time])?)?;
        let kind = self.type_embeddings.narrow(0, 0, 1)?.expand(words.shape())?;
        let x = words.add(&self.position_embeddings.narrow(0, 0, time)?)?.add(&kind)?;
        let mut x = self.norm(&self.embedding_norm, &x)?;
        let width = x.shape()[1];
        for layer in &self.layers {
            let heads = |dense: &Dense| -> Result<Tensor, TensorError> {
                let all = dense.apply(&x, None)?;
                let shape = Shape::new(&[1, time, self.heads, width / self.heads])?;
                all.reshape(&shape)?.transpose(1, 2)
            };
            let options = Attention { causal: false, ..Attention::default() };
            let attended =
                heads(&layer.query)?.attention(&heads(&layer.key)?, &heads(&layer.value)?, options)?;
            let attended = attended.transpose(1, 2)?.reshape(&Shape::new(&[time, width])?)?;
            x = self.norm(&layer.attention_norm, &layer.output.apply(&attended, Some(&x))?)?;
            let intermediate = layer.up.apply(&x, None)?.gelu()?;
            x = self.norm(&layer.mlp_norm, &layer.down.apply(&intermediate, Some(&x))?)?;
        }
        match self.pooling {
            Pooling::Cls => x.narrow(0, 0, 1)?.to_vec::<f32>(),
            Pooling::Mean => x.mean(&[0])?.to_vec::<f32>(),
        }
    }
}

/// Reads a JSON file of a folder, if it exists.
fn read_map(folder: &Path, name: &str) -> Result<Option<Map<String, Value>>, HubError> {
    let file = folder.join(name);
    let not_json = |message: String| HubError::NotJson { file: file.display().to_string(), message };
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(Some(serde_json::from_str(&text).map_err(|error| not_json(error.to_string()))?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(not_json(error.to_string())),
    }
}
