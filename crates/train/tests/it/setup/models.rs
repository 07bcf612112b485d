//! Tiny models that differ in what families differ in.

#![allow(dead_code, reason = "no test needs all of it")]

use weightloom_nn::{
    Activation, AttentionConfig, DecoderConfig, ExpertsConfig, Gating, HeadConfig, LayerChoice, MlpConfig,
    NormConfig, NormKind, PositionConfig, QkNorm, ResidualForm, RopeConfig, WindowConfig, WindowKind,
};

/// Tokens that there are.
pub const VOCABULARY: usize = 48;

/// Rotary positions, norms before, gates: as Llama.
pub fn llama() -> DecoderConfig {
    DecoderConfig {
        vocabulary: VOCABULARY,
        hidden: 32,
        layers: 4,
        max_positions: 64,
        attention: AttentionConfig {
            heads: 4,
            kv_heads: 2,
            width: 8,
            scale: None,
            input_bias: false,
            output_bias: false,
            qk_norm: None,
            window: None,
            soft_cap: None,
            latent: None,
            temperature: None,
        },
        positions: PositionConfig::Rope(RopeConfig::default()),
        norm: NormConfig { kind: NormKind::Rms, eps: 1e-5, offset: 0.0 },
        residual: ResidualForm::Before,
        mlp: MlpConfig { inner: 48, activation: Activation::Silu, gating: Gating::Gated, bias: false },
        experts: None,
        embedding_scale: None,
        head: HeadConfig { tied: false, bias: false, soft_cap: None },
        initializer: 0.1,
    }
}

/// The same, whose head is its embedding.
pub fn tied() -> DecoderConfig {
    DecoderConfig { head: HeadConfig { tied: true, ..HeadConfig::default() }, ..llama() }
}

/// Experts instead of an MLP.
pub fn experts() -> DecoderConfig {
    let experts = ExpertsConfig { count: 4, chosen: 2, inner: 24, ..ExpertsConfig::default() };
    DecoderConfig { experts: Some(experts), ..llama() }
}

/// Learned positions, norms with biases, biases everywhere: as GPT-2.
pub fn gpt2() -> DecoderConfig {
    let base = tied();
    DecoderConfig {
        attention: AttentionConfig { kv_heads: 4, input_bias: true, output_bias: true, ..base.attention },
        positions: PositionConfig::Learned,
        norm: NormConfig { kind: NormKind::Layer, eps: 1e-5, offset: 0.0 },
        mlp: MlpConfig { inner: 64, activation: Activation::GeluTanh, gating: Gating::Plain, bias: true },
        ..base
    }
}

/// Norms around, with an offset, soft caps, scaled embeddings, windows in every
/// other layer: as Gemma.
pub fn gemma() -> DecoderConfig {
    let base = llama();
    let layers = LayerChoice::Every { step: 2, first: 0 };
    let window = WindowConfig { size: 5, kind: WindowKind::Sliding, layers };
    DecoderConfig {
        attention: AttentionConfig { soft_cap: Some(8.0), window: Some(window), ..base.attention },
        norm: NormConfig { kind: NormKind::Rms, eps: 1e-6, offset: 1.0 },
        residual: ResidualForm::Around,
        mlp: MlpConfig { activation: Activation::GeluTanh, ..base.mlp },
        embedding_scale: Some(32f64.sqrt()),
        head: HeadConfig { tied: true, bias: false, soft_cap: Some(6.0) },
        ..base
    }
}

/// Norms of queries and keys, for each head: as Qwen3.
pub fn qwen3() -> DecoderConfig {
    let base = llama();
    DecoderConfig { attention: AttentionConfig { qk_norm: Some(QkNorm::Head), ..base.attention }, ..base }
}

/// Norms behind, and of queries and keys as a whole: as OLMo 2.
pub fn olmo2() -> DecoderConfig {
    let base = llama();
    DecoderConfig {
        attention: AttentionConfig { qk_norm: Some(QkNorm::Whole), ..base.attention },
        residual: ResidualForm::After,
        ..base
    }
}

/// Attention and MLP beside each other, a head with a bias: as Phi.
pub fn parallel() -> DecoderConfig {
    let base = gpt2();
    let rope = RopeConfig { turned: Some(4), ..RopeConfig::default() };
    DecoderConfig {
        positions: PositionConfig::Rope(rope),
        residual: ResidualForm::Parallel,
        head: HeadConfig { tied: false, bias: true, soft_cap: None },
        ..base
    }
}
