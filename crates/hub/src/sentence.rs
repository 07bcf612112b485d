//! Sentences as vectors, by an encoder of their own: folders as
//! sentence-transformers has them, with a BERT inside.

use std::path::Path;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Observer, ReadOptions, ReadRequest, Source, read};
use weightloom_errors::{Hint, nearest};
use weightloom_layout::{DType, Region, Shape};
use weightloom_nn::NnError;
use weightloom_tensor::{Attention, HostMemory, Tensor, TensorError, no_grad};

use crate::config::{ConfigError, Fields};
use crate::error::HubError;
use crate::text::{Special, Tokenizer};

/// What an encoder may lack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SentenceError {
    /// A weight that is not there.
    #[error("the sentence encoder at {location} has no `{name}`")]
    Missing { location: String, name: String, near: Option<String> },
    /// A weight of another shape.
    #[error("`{name}` of the sentence encoder is {found}, not {expected}")]
    Shape { name: String, found: Shape, expected: Shape },
    /// A token that has no embedding.
    #[error("the sentence encoder knows {vocabulary} tokens, its tokenizer gave {token}")]
    Token { token: u32, vocabulary: usize },
}

impl Hint for SentenceError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { near: Some(near), .. } => Some(format!("it has `{near}`")),
            Self::Missing { .. } | Self::Shape { .. } => {
                Some("name a folder of sentence-transformers that holds a BERT".to_owned())
            }
            Self::Token { .. } => Some("take tokenizer and weights from the same model".to_owned()),
        }
    }
}

/// How the vectors of tokens become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooling {
    Mean,
    First,
}

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
    after_attention: Dense,
    widen: Dense,
    narrow: Dense,
    after_mlp: Dense,
}

/// An encoder of sentences.
pub struct SentenceEncoder {
    tokenizer: Tokenizer,
    words: Tensor,
    positions: Tensor,
    kinds: Tensor,
    first_norm: Dense,
    layers: Vec<Layer>,
    heads: usize,
    eps: f64,
    most_tokens: usize,
    pooling: Pooling,
}

/// What its configuration says.
struct Sizes {
    hidden: usize,
    wide: usize,
    heads: usize,
    layers: usize,
    positions: usize,
    vocabulary: usize,
    kinds: usize,
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
        let place: String = fields.get_or("position_embedding_type", "absolute".to_owned())?;
        if place != "absolute" {
            return Err(fields.not_supported("position_embedding_type", &["absolute"]));
        }
        let sizes = Self {
            hidden: fields.get("hidden_size")?,
            wide: fields.get("intermediate_size")?,
            heads: fields.get("num_attention_heads")?,
            layers: fields.get("num_hidden_layers")?,
            positions: fields.get("max_position_embeddings")?,
            vocabulary: fields.get("vocab_size")?,
            kinds: fields.get_or("type_vocab_size", 2)?,
            eps: fields.get_or("layer_norm_eps", 1e-12)?,
        };
        if sizes.heads == 0 || !sizes.hidden.is_multiple_of(sizes.heads) {
            return Err(fields.not_supported("num_attention_heads", &["a divisor of hidden_size"]));
        }
        Ok(sizes)
    }
}

/// Weights by name.
struct Weights<'a> {
    source: &'a Source,
    /// What stands before all names.
    prefix: &'static str,
    observer: &'a dyn Observer,
}

impl Weights<'_> {
    fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor, HubError> {
        let name = format!("{}{name}", self.prefix);
        let all = self.source.index.tensors();
        let Some(entry) = all.get(&name) else {
            let near = nearest(&name, all.keys().map(String::as_str)).map(str::to_owned);
            return Err(
                SentenceError::Missing { location: self.source.storage.location(), name, near }.into()
            );
        };
        let expected = Shape::new(dims).map_err(NnError::from)?;
        if entry.shape != expected {
            return Err(SentenceError::Shape { name, found: entry.shape.clone(), expected }.into());
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

    fn layer(&self, number: usize, Sizes { hidden, wide, .. }: &Sizes) -> Result<Layer, HubError> {
        let (hidden, wide) = (*hidden, *wide);
        let of = |part: &str| format!("encoder.layer.{number}.{part}");
        let square = |part: &str| self.dense(&of(part), hidden, hidden);
        Ok(Layer {
            query: square("attention.self.query")?,
            key: square("attention.self.key")?,
            value: square("attention.self.value")?,
            output: square("attention.output.dense")?,
            after_attention: self.norm(&of("attention.output.LayerNorm"), hidden)?,
            widen: self.dense(&of("intermediate.dense"), wide, hidden)?,
            narrow: self.dense(&of("output.dense"), hidden, wide)?,
            after_mlp: self.norm(&of("output.LayerNorm"), hidden)?,
        })
    }
}

impl SentenceEncoder {
    /// Opens a folder as sentence-transformers has it.
    pub fn open(folder: &Path, observer: &dyn Observer) -> Result<Self, HubError> {
        let source = Source::open(folder)?;
        let config = map_of(folder, "config.json")?
            .ok_or_else(|| HubError::NoConfig { location: folder.display().to_string() })?;
        let about = |source| HubError::Config { about: folder.display().to_string(), source };
        let sizes = Sizes::of(&config).map_err(about)?;
        let own = map_of(folder, "sentence_bert_config.json")?.unwrap_or_default();
        let asked: usize = Fields::new(&own).get_or("max_seq_length", sizes.positions).map_err(about)?;
        let pooling = map_of(folder, "1_Pooling/config.json")?.unwrap_or_default();
        let first = Fields::new(&pooling).get_or("pooling_mode_cls_token", false).map_err(about)?;
        let bare = source.index.tensors().keys().all(|name| !name.starts_with("bert."));
        let weights = Weights { source: &source, prefix: if bare { "" } else { "bert." }, observer };
        let width = sizes.hidden;
        Ok(Self {
            tokenizer: Tokenizer::from_folder(folder)?,
            words: weights.tensor("embeddings.word_embeddings.weight", &[sizes.vocabulary, width])?,
            positions: weights.tensor("embeddings.position_embeddings.weight", &[sizes.positions, width])?,
            kinds: weights.tensor("embeddings.token_type_embeddings.weight", &[sizes.kinds, width])?,
            first_norm: weights.norm("embeddings.LayerNorm", width)?,
            layers: (0..sizes.layers)
                .map(|number| weights.layer(number, &sizes))
                .collect::<Result<_, _>>()?,
            heads: sizes.heads,
            eps: sizes.eps,
            most_tokens: asked.clamp(1, sizes.positions),
            pooling: if first { Pooling::First } else { Pooling::Mean },
        })
    }

    /// A vector of the length 1 for a sentence. What is too long is cut, its
    /// last token kept.
    pub fn encode(&self, sentence: &str) -> Result<Vec<f32>, HubError> {
        let mut tokens = self.tokenizer.encode(sentence, Special::Add)?;
        if tokens.len() > self.most_tokens
            && let Some(last) = tokens.last().copied()
        {
            tokens.truncate(self.most_tokens - 1);
            tokens.push(last);
        }
        let vocabulary = self.words.shape()[0];
        if let Some(&token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(SentenceError::Token { token, vocabulary }.into());
        }
        if tokens.is_empty() {
            return Ok(vec![0.0; self.words.shape()[1]]);
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
        let words = self.words.embedding(&Tensor::from_slice(&ids, &[time])?)?;
        let kind = self.kinds.narrow(0, 0, 1)?.expand(words.shape())?;
        let x = words.add(&self.positions.narrow(0, 0, time)?)?.add(&kind)?;
        let mut x = self.norm(&self.first_norm, &x)?;
        let width = x.shape()[1];
        for layer in &self.layers {
            let heads = |dense: &Dense| -> Result<Tensor, TensorError> {
                let all = dense.apply(&x, None)?;
                let shape = Shape::new(&[1, time, self.heads, width / self.heads])?;
                all.reshape(&shape)?.transpose(1, 2)
            };
            let how = Attention { causal: false, ..Attention::default() };
            let seen = heads(&layer.query)?.attention(&heads(&layer.key)?, &heads(&layer.value)?, how)?;
            let seen = seen.transpose(1, 2)?.reshape(&Shape::new(&[time, width])?)?;
            x = self.norm(&layer.after_attention, &layer.output.apply(&seen, Some(&x))?)?;
            let wide = layer.widen.apply(&x, None)?.gelu()?;
            x = self.norm(&layer.after_mlp, &layer.narrow.apply(&wide, Some(&x))?)?;
        }
        match self.pooling {
            Pooling::First => x.narrow(0, 0, 1)?.to_vec::<f32>(),
            Pooling::Mean => x.mean(&[0])?.to_vec::<f32>(),
        }
    }
}

/// A JSON file of a folder, if it is there.
fn map_of(folder: &Path, name: &str) -> Result<Option<Map<String, Value>>, HubError> {
    let file = folder.join(name);
    let not_json = |message: String| HubError::NotJson { file: file.display().to_string(), message };
    match std::fs::read_to_string(&file) {
        Ok(text) => Ok(Some(serde_json::from_str(&text).map_err(|error| not_json(error.to_string()))?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(not_json(error.to_string())),
    }
}
