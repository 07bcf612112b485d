//! Names, shapes and initial values of the parameters of a decoder.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext};
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Stream, Tensor};

use crate::config::{DecoderConfig, Gating, LatentConfig, NormKind, PositionConfig, QkNorm, ResidualForm};
use crate::error::NnError;
use crate::stage::Stage;

/// A parameter of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    /// The name. Those of our decoder are as in Llama models on Hugging Face.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// How it is initialized.
    pub initial: Initial,
    /// Whether it is trained.
    pub kind: ParameterKind,
}

impl ParameterSpec {
    /// A parameter that is trained.
    pub fn new(name: impl Into<String>, shape: Shape, initial: Initial) -> Self {
        Self { name: name.into(), shape, initial, kind: ParameterKind::Trained }
    }

    /// The same as a buffer.
    pub fn buffer(self) -> Self {
        Self { kind: ParameterKind::Buffer, ..self }
    }
}

/// Whether a parameter is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ParameterKind {
    /// Unless the run freezes it.
    #[default]
    Trained,
    /// No gradient reaches it, as if it only chooses experts.
    Buffer,
}

/// Initialization of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// Normally distributed.
    Normal,
    /// A norm weight that has no effect.
    Identity,
    /// Zeros.
    Zeros,
}

/// The token embedding, which a tied head shares.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const POSITIONS: &str = "model.embed_positions.weight";
pub(crate) const CORRECTION_BIAS: &str = "mlp.gate.e_score_correction_bias";
pub(crate) const LAST_NORM: &str = "model.norm";
pub(crate) const HEAD: &str = "lm_head";

/// Collects the parameters of a stage.
struct SpecList<'a> {
    config: &'a DecoderConfig,
    all: Vec<ParameterSpec>,
}

impl SpecList<'_> {
    fn add(&mut self, name: String, dims: &[usize], initial: Initial) {
        // Cannot fail: at most three dims, with checked sizes.
        if let Ok(shape) = Shape::new(dims) {
            self.all.push(ParameterSpec::new(name, shape, initial));
        }
    }

    fn linear(&mut self, module: &str, [outputs, inputs]: [usize; 2], bias: Bias) {
        self.add(format!("{module}.weight"), &[outputs, inputs], Initial::Normal);
        if bias == Bias::Yes {
            self.add(format!("{module}.bias"), &[outputs], Initial::Zeros);
        }
    }

    fn norm(&mut self, module: &str, width: usize) {
        let kind = self.config.norm.kind;
        if kind != NormKind::LayerPlain {
            self.add(format!("{module}.weight"), &[width], Initial::Identity);
        }
        if kind == NormKind::Layer {
            self.add(format!("{module}.bias"), &[width], Initial::Zeros);
        }
    }

    fn latent_attention(&mut self, layer: &str, latent: &LatentConfig) {
        let (hidden, attention) = (self.config.hidden, &self.config.attention);
        let (heads, width) = (attention.heads, attention.width);
        let (bias, output_bias) = (Bias::from(attention.input_bias), Bias::from(attention.output_bias));
        let module = |name: &str| format!("{layer}.self_attn.{name}");
        match latent.query_rank {
            None => self.linear(&module("q_proj"), [heads * width, hidden], Bias::No),
            Some(rank) => {
                self.linear(&module("q_a_proj"), [rank, hidden], bias);
                self.norm(&module("q_a_layernorm"), rank);
                self.linear(&module("q_b_proj"), [heads * width, rank], Bias::No);
            }
        }
        let (rank, plain) = (latent.kv_rank, width - latent.rope_width);
        self.linear(&module("kv_a_proj_with_mqa"), [rank + latent.rope_width, hidden], bias);
        self.norm(&module("kv_a_layernorm"), rank);
        self.linear(&module("kv_b_proj"), [heads * (plain + latent.value_width), rank], Bias::No);
        self.linear(&module("o_proj"), [hidden, heads * latent.value_width], output_bias);
    }

    fn attention(&mut self, layer: &str) {
        let (hidden, attention) = (self.config.hidden, &self.config.attention);
        if let Some(latent) = &attention.latent {
            return self.latent_attention(layer, latent);
        }
        let (queries, keys) = (attention.heads * attention.width, attention.kv_heads * attention.width);
        let bias = Bias::from(attention.input_bias);
        let (output_bias, norm, width) =
            (Bias::from(attention.output_bias), attention.qk_norm, attention.width);
        for (name, rows) in [("q", queries), ("k", keys), ("v", keys)] {
            self.linear(&format!("{layer}.self_attn.{name}_proj"), [rows, hidden], bias);
        }
        self.linear(&format!("{layer}.self_attn.o_proj"), [hidden, queries], output_bias);
        let widths = match norm {
            Some(QkNorm::Head) => [width; 2],
            Some(QkNorm::Whole) => [queries, keys],
            Some(QkNorm::Rotated) | None => return,
        };
        for (name, width) in ["q", "k"].into_iter().zip(widths) {
            self.norm(&format!("{layer}.self_attn.{name}_norm"), width);
        }
    }

    fn mlp(&mut self, layer: &str, number: usize) {
        let (hidden, mlp) = (self.config.hidden, &self.config.mlp);
        if let Some(experts) = self.config.experts(number) {
            let (count, inner, shared) = (experts.count, experts.inner, experts.shared);
            let has_correction_bias = experts.correction_bias;
            self.linear(&format!("{layer}.mlp.gate"), [count, hidden], Bias::No);
            if has_correction_bias {
                self.add(format!("{layer}.{CORRECTION_BIAS}"), &[count], Initial::Zeros);
                // It only chooses experts.
                let bias = self.all.pop().map(ParameterSpec::buffer);
                self.all.extend(bias);
            }
            for name in ["gate", "up"] {
                let name = format!("{layer}.mlp.experts.{name}_proj.weight");
                self.add(name, &[count, inner, hidden], Initial::Normal);
            }
            let name = format!("{layer}.mlp.experts.down_proj.weight");
            self.add(name, &[count, hidden, inner], Initial::Normal);
            if let Some(inner) = shared {
                let module = |name: &str| format!("{layer}.mlp.shared_experts.{name}_proj");
                self.linear(&module("gate"), [inner, hidden], Bias::No);
                self.linear(&module("up"), [inner, hidden], Bias::No);
                self.linear(&module("down"), [hidden, inner], Bias::No);
            }
            return;
        }
        let (inner, bias, gating) = (mlp.inner, Bias::from(mlp.bias), mlp.gating);
        if gating == Gating::Gated {
            self.linear(&format!("{layer}.mlp.gate_proj"), [inner, hidden], bias);
        }
        self.linear(&format!("{layer}.mlp.up_proj"), [inner, hidden], bias);
        self.linear(&format!("{layer}.mlp.down_proj"), [hidden, inner], bias);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bias {
    Yes,
    No,
}

impl From<bool> for Bias {
    fn from(wanted: bool) -> Self {
        if wanted { Self::Yes } else { Self::No }
    }
}

/// The names of the norms of a layer.
pub(crate) fn layer_norms(form: ResidualForm) -> &'static [&'static str] {
    match form {
        ResidualForm::Before => &["input_layernorm", "post_attention_layernorm"],
        ResidualForm::After => &["attention_output_layernorm", "mlp_output_layernorm"],
        ResidualForm::Around => &[
            "input_layernorm",
            "attention_output_layernorm",
            "post_attention_layernorm",
            "mlp_output_layernorm",
        ],
        ResidualForm::Parallel => &["input_layernorm"],
    }
}

/// Lists all parameters of a stage in the order of use.
pub fn parameters(config: &DecoderConfig, stage: &Stage) -> Vec<ParameterSpec> {
    let mut list = SpecList { config, all: Vec::new() };
    let hidden = config.hidden;
    if stage.is_first() || stage.is_last() && config.head.tied {
        list.add(EMBEDDING.to_owned(), &[config.vocabulary, hidden], Initial::Normal);
    }
    if stage.is_first() && config.positions == PositionConfig::Learned {
        list.add(POSITIONS.to_owned(), &[config.max_positions, hidden], Initial::Normal);
    }
    for number in stage.layers.clone() {
        let layer = format!("model.layers.{number}");
        for norm in layer_norms(config.residual) {
            list.norm(&format!("{layer}.{norm}"), hidden);
        }
        list.attention(&layer);
        list.mlp(&layer, number);
    }
    if stage.is_last() {
        list.norm(LAST_NORM, hidden);
        if !config.head.tied {
            list.add(format!("{HEAD}.weight"), &[config.vocabulary, hidden], Initial::Normal);
        }
        if config.head.bias {
            list.add(format!("{HEAD}.bias"), &[config.vocabulary], Initial::Zeros);
        }
    }
    list.all
}

/// Where and how to draw the initial values of a parameter.
pub struct InitialValues<'a> {
    /// The parameter.
    pub spec: &'a ParameterSpec,
    /// Its dtype.
    pub dtype: DType,
    /// The ranks that share it.
    pub dist: &'a Arc<DistContext>,
    /// How they share it.
    pub layout: Layout,
}

impl InitialValues<'_> {
    /// The same value everywhere.
    pub fn full(&self, value: f64) -> Result<DTensor, NnError> {
        let local = self.layout.local_shape(&self.spec.shape, self.dist.rank())?;
        let local = Tensor::full(value, self.dtype, &local, self.dist.device())?;
        Ok(DTensor::from_local(self.dist, local, self.layout, &self.spec.shape)?)
    }

    /// Normally distributed values, one random stream per name.
    pub fn normal(&self, std: f64, seed: u64) -> Result<DTensor, NnError> {
        let stream = Stream { seed, number: name_hash(&self.spec.name) };
        let drawn = DTensor::normal(self.dist, DType::F32, &self.spec.shape, self.layout, stream)?;
        Ok(drawn.scale(std)?.cast(self.dtype)?)
    }
}

/// FNV-1a: a hash that is the same on all machines.
pub(crate) fn name_hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
