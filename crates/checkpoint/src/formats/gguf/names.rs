//! GGUF tensor names in Hugging Face checkpoints, and how the converter
//! rearranged their elements.
//!
//! Names without a counterpart stay unchanged, such as `rope_freqs.weight`, which
//! Hugging Face computes from the model's config.

use super::value::GgufValue;
use super::{GgufError, value_at};

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

/// Query heads, for all layers or per layer.
const HEADS: &str = "llama.attention.head_count";

/// Key and value heads.
const KEY_HEADS: &str = "llama.attention.head_count_kv";

/// The metadata that names depend on.
pub(super) struct Names<'a> {
    family: Option<Family>,
    heads: Option<&'a GgufValue>,
    key_heads: Option<&'a GgufValue>,
}

/// A tensor in a Hugging Face checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HfTensor {
    pub(super) name: String,
    pub(super) rearrangement: Rearrangement,
}

/// How the converter rearranged a tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rearrangement {
    None,
    /// Transposed.
    Transposed,
    /// Rows of each head alternate between its two halves.
    Interleaved {
        heads: u64,
    },
    /// Stacked experts: each becomes a tensor whose name is the prefix, the
    /// expert's number and this suffix.
    Experts {
        rest: &'static str,
    },
}

impl<'a> Names<'a> {
    pub(super) fn new(metadata: &'a [(String, GgufValue)]) -> Self {
        let family = match value_at(metadata, "general.architecture").and_then(GgufValue::as_text) {
            Some("llama") => Some(Family::Llama),
            Some("qwen2" | "qwen3") => Some(Family::Qwen),
            Some("qwen3moe") => Some(Family::QwenExperts),
            Some("gpt2") => Some(Family::Gpt2),
            _ => None,
        };
        Self { family, heads: value_at(metadata, HEADS), key_heads: value_at(metadata, KEY_HEADS) }
    }

    /// The Hugging Face tensor of a stored one.
    pub(super) fn hf_tensor(&self, stored: &str) -> Result<HfTensor, GgufError> {
        let same = || HfTensor { name: stored.to_owned(), rearrangement: Rearrangement::None };
        let Some((family, (path, kind))) = self.family.zip(stored.rsplit_once('.')) else {
            return Ok(same());
        };
        let layer = path.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some((layer, part)) = layer else {
            let name = outside_layers(family, path).map(|module| format!("{module}.{kind}"));
            return Ok(name.map_or_else(same, |name| HfTensor { name, rearrangement: Rearrangement::None }));
        };
        let Ok(number) = layer.parse::<usize>() else {
            return Ok(same());
        };
        if let Some((module, rest)) = experts(family, part).filter(|_| kind == "weight") {
            let name = format!("model.layers.{layer}.{module}.experts.");
            return Ok(HfTensor { name, rearrangement: Rearrangement::Experts { rest } });
        }
        let Some(module) = in_layer(family, part) else {
            return Ok(same());
        };
        let rearrangement = match (family, part) {
            (Family::Llama, "attn_q") => Rearrangement::Interleaved { heads: self.heads(stored, number)? },
            (Family::Llama, "attn_k") => {
                Rearrangement::Interleaved { heads: self.key_heads(stored, number)? }
            }
            (Family::Gpt2, "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down") if kind == "weight" => {
                Rearrangement::Transposed
            }
            _ => Rearrangement::None,
        };
        let layers = if family == Family::Gpt2 { "transformer.h" } else { "model.layers" };
        Ok(HfTensor { name: format!("{layers}.{layer}.{module}.{kind}"), rearrangement })
    }

    fn heads(&self, tensor: &str, layer: usize) -> Result<u64, GgufError> {
        let missing = || GgufError::NoCount { tensor: tensor.to_owned(), key: HEADS.to_owned() };
        self.heads.and_then(|heads| count_of(heads, layer)).ok_or_else(missing)
    }

    /// Key heads; by default as many as query heads.
    fn key_heads(&self, tensor: &str, layer: usize) -> Result<u64, GgufError> {
        match self.key_heads.and_then(|heads| count_of(heads, layer)) {
            Some(heads) => Ok(heads),
            None => self.heads(tensor, layer),
        }
    }
}

/// A count of the model, or the one of a layer.
fn count_of(value: &GgufValue, layer: usize) -> Option<u64> {
    match value {
        GgufValue::Array(counts) => counts.count_at(layer),
        value => value.as_count(),
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

/// Module and suffix of tensors that stack experts.
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

#[cfg(test)]
mod tests {
    use super::super::value::GgufArray;
    use super::*;

    fn metadata(architecture: &str, heads: GgufValue) -> Vec<(String, GgufValue)> {
        let architecture = GgufValue::String(architecture.to_owned());
        vec![("general.architecture".to_owned(), architecture), (HEADS.to_owned(), heads)]
    }

    #[test]
    fn heads_may_differ_between_layers() {
        let metadata = metadata("llama", GgufValue::Array(GgufArray::I32(vec![4, 8])));
        let names = Names::new(&metadata);
        let rearrangement = |stored: &str| names.hf_tensor(stored).map(|hf_tensor| hf_tensor.rearrangement);
        assert_eq!(rearrangement("blk.1.attn_q.weight"), Ok(Rearrangement::Interleaved { heads: 8 }));
        // By default there are as many key heads as query heads.
        assert_eq!(rearrangement("blk.0.attn_k.bias"), Ok(Rearrangement::Interleaved { heads: 4 }));
        assert!(matches!(rearrangement("blk.2.attn_q.weight"), Err(GgufError::NoCount { .. })));
    }

    #[test]
    fn experts_are_named_by_family() {
        let metadata = metadata("llama", GgufValue::U32(4));
        let hf_tensor = Names::new(&metadata).hf_tensor("blk.12.ffn_up_exps.weight").unwrap();
        assert_eq!(hf_tensor.name, "model.layers.12.block_sparse_moe.experts.");
        assert_eq!(hf_tensor.rearrangement, Rearrangement::Experts { rest: "w3.weight" });
    }

    #[test]
    fn names_without_a_counterpart_stay() {
        for architecture in ["llama", "gpt2", "qwen3moe", "starfish"] {
            let metadata = metadata(architecture, GgufValue::U32(4));
            for stored in
                ["rope_freqs.weight", "blk.0.strange.weight", "blk.x.attn_q.weight", "plain", "blk.", "."]
            {
                let hf_tensor = Names::new(&metadata).hf_tensor(stored).unwrap();
                assert_eq!(
                    hf_tensor,
                    HfTensor { name: stored.to_owned(), rearrangement: Rearrangement::None }
                );
            }
        }
    }
}
