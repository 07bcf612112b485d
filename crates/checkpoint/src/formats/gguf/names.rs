//! What GGUF names are in Hugging Face checkpoints, and how their elements
//! were rearranged on the way.
//!
//! Names without a counterpart stay as they are. `rope_freqs.weight` is one:
//! Hugging Face computes it from the model's config, but a GGUF file holds it
//! nowhere else.

use super::GgufError;
use super::value::GgufValue;

/// A model family whose names are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Also Mistral and SmolLM2, and Mixtral with experts.
    Llama,
    /// Qwen 2 and 3.
    Qwen,
    /// Qwen 3 with experts.
    QwenExperts,
    Gpt2,
}

/// What the metadata say that names depend on.
pub(super) struct Names<'a> {
    family: Option<Family>,
    metadata: &'a [(String, GgufValue)],
}

/// A tensor in a Hugging Face checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) name: String,
    pub(super) arrangement: Arrangement,
}

/// How a stored tensor becomes the one of a Hugging Face checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    Same,
    /// Rows are columns.
    Transposed,
    /// Rows of each head alternate between its two halves.
    Interleaved {
        heads: u64,
    },
    /// The first dim counts experts, each a tensor of its own: the name stops
    /// before the expert's number, behind which this comes.
    Experts {
        rest: &'static str,
    },
}

impl<'a> Names<'a> {
    pub(super) fn new(metadata: &'a [(String, GgufValue)]) -> Self {
        let mut names = Self { family: None, metadata };
        names.family = match names.value("general.architecture").and_then(GgufValue::as_text) {
            Some("llama") => Some(Family::Llama),
            Some("qwen2" | "qwen3") => Some(Family::Qwen),
            Some("qwen3moe") => Some(Family::QwenExperts),
            Some("gpt2") => Some(Family::Gpt2),
            _ => None,
        };
        names
    }

    fn value(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.iter().find(|(found, _)| found == key).map(|(_, value)| value)
    }

    /// Where a stored tensor belongs.
    pub(super) fn home(&self, stored: &str) -> Result<Home, GgufError> {
        let same = || Home { name: stored.to_owned(), arrangement: Arrangement::Same };
        let Some((family, (path, kind))) = self.family.zip(stored.rsplit_once('.')) else {
            return Ok(same());
        };
        let layer = path.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some((layer, part)) = layer else {
            let name = outside_layers(family, path).map(|module| format!("{module}.{kind}"));
            return Ok(name.map_or_else(same, |name| Home { name, arrangement: Arrangement::Same }));
        };
        let Ok(number) = layer.parse::<usize>() else {
            return Ok(same());
        };
        if let Some((module, rest)) = experts(family, part).filter(|_| kind == "weight") {
            let name = format!("model.layers.{layer}.{module}.experts.");
            return Ok(Home { name, arrangement: Arrangement::Experts { rest } });
        }
        let Some(module) = in_layer(family, part) else {
            return Ok(same());
        };
        let arrangement = match (family, part) {
            (Family::Llama, "attn_q") => Arrangement::Interleaved { heads: self.heads(stored, number)? },
            (Family::Llama, "attn_k") => Arrangement::Interleaved { heads: self.key_heads(stored, number)? },
            (Family::Gpt2, "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down") if kind == "weight" => {
                Arrangement::Transposed
            }
            _ => Arrangement::Same,
        };
        let layers = if family == Family::Gpt2 { "transformer.h" } else { "model.layers" };
        Ok(Home { name: format!("{layers}.{layer}.{module}.{kind}"), arrangement })
    }

    fn heads(&self, tensor: &str, layer: usize) -> Result<u64, GgufError> {
        const KEY: &str = "llama.attention.head_count";
        self.count(KEY, layer)
            .ok_or_else(|| GgufError::NoCount { tensor: tensor.to_owned(), key: KEY.to_owned() })
    }

    /// Heads of keys; as many as queries have unless said otherwise.
    fn key_heads(&self, tensor: &str, layer: usize) -> Result<u64, GgufError> {
        match self.count("llama.attention.head_count_kv", layer) {
            Some(heads) => Ok(heads),
            None => self.heads(tensor, layer),
        }
    }

    /// A count of the model, or of each layer.
    fn count(&self, key: &str, layer: usize) -> Option<u64> {
        match self.value(key)? {
            GgufValue::Array(counts) => counts.count_at(layer),
            value => value.as_count(),
        }
    }
}

fn outside_layers(family: Family, path: &str) -> Option<&'static str> {
    Some(match (family, path) {
        (_, "output") => "lm_head",
        (Family::Gpt2, "token_embd") => "transformer.wte",
        (Family::Gpt2, "position_embd") => "transformer.wpe",
        (Family::Gpt2, "output_norm") => "transformer.ln_f",
        (_, "token_embd") => "model.embed_tokens",
        (_, "output_norm") => "model.norm",
        _ => return None,
    })
}

fn in_layer(family: Family, part: &str) -> Option<&'static str> {
    Some(match (family, part) {
        (Family::Gpt2, "attn_norm") => "ln_1",
        (Family::Gpt2, "attn_qkv") => "attn.c_attn",
        (Family::Gpt2, "attn_output") => "attn.c_proj",
        (Family::Gpt2, "ffn_norm") => "ln_2",
        (Family::Gpt2, "ffn_up") => "mlp.c_fc",
        (Family::Gpt2, "ffn_down") => "mlp.c_proj",
        (Family::Gpt2, _) => return None,
        (_, "attn_norm") => "input_layernorm",
        (_, "attn_q") => "self_attn.q_proj",
        (_, "attn_k") => "self_attn.k_proj",
        (_, "attn_v") => "self_attn.v_proj",
        (_, "attn_output") => "self_attn.o_proj",
        (_, "attn_q_norm") => "self_attn.q_norm",
        (_, "attn_k_norm") => "self_attn.k_norm",
        (_, "ffn_norm") => "post_attention_layernorm",
        (_, "ffn_gate") => "mlp.gate_proj",
        (_, "ffn_up") => "mlp.up_proj",
        (_, "ffn_down") => "mlp.down_proj",
        (Family::Llama, "ffn_gate_inp") => "block_sparse_moe.gate",
        (Family::QwenExperts, "ffn_gate_inp") => "mlp.gate",
        _ => return None,
    })
}

/// Module and what follows an expert's number, for tensors that stack experts.
fn experts(family: Family, part: &str) -> Option<(&'static str, &'static str)> {
    Some(match (family, part) {
        (Family::QwenExperts, "ffn_gate_exps") => ("mlp", "gate_proj.weight"),
        (Family::QwenExperts, "ffn_up_exps") => ("mlp", "up_proj.weight"),
        (Family::QwenExperts, "ffn_down_exps") => ("mlp", "down_proj.weight"),
        (Family::Llama, "ffn_gate_exps") => ("block_sparse_moe", "w1.weight"),
        (Family::Llama, "ffn_down_exps") => ("block_sparse_moe", "w2.weight"),
        (Family::Llama, "ffn_up_exps") => ("block_sparse_moe", "w3.weight"),
        _ => return None,
    })
}
