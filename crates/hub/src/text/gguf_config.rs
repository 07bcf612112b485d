//! The `config.json` of a GGUF file, from its metadata.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use weightloom_checkpoint::formats::gguf::GgufValue;

use super::error::TextError;
use super::gguf_metadata::{GgufMetadata, required};
use super::rope_scaling::rope_scaling_config;

/// Input of [`gguf_config`].
#[derive(Clone, Copy, Debug)]
pub struct GgufModel<'a> {
    /// The metadata of the file.
    pub metadata: &'a BTreeMap<String, GgufValue>,
    /// Shapes of all tensors, by their names in Hugging Face checkpoints or in
    /// the file.
    pub tensors: &'a BTreeMap<String, Vec<usize>>,
    /// Elements of the tensor `rope_freqs.weight`, if it exists.
    pub rope_freqs: Option<&'a [f32]>,
}

/// Derives the config that transformers has for the model, with RoPE settings
/// as `rope_theta` and `rope_scaling`.
pub fn gguf_config(model: GgufModel<'_>) -> Result<Map<String, Value>, TextError> {
    let gguf = GgufMetadata(model.metadata);
    let name = required(gguf.text("general.architecture")?, "general.architecture")?;
    let family = Family::of(name, gguf)?;
    let keys = ArchitectureKeys { gguf, name };
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| {
        config.insert(key.to_owned(), value);
    };
    put("model_type", json!(family.model_type()));
    put("architectures", json!([family.class()]));
    put("vocab_size", json!(vocab_size(model, keys)?));
    let output = ["output.weight", "lm_head.weight"];
    put("tie_word_embeddings", json!(!output.iter().any(|&name| model.tensors.contains_key(name))));
    for (key, id) in [("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")] {
        if let Some(id) = gguf.count(&format!("tokenizer.ggml.{id}_token_id"))? {
            put(key, json!(id));
        }
    }
    if family == Family::Gpt2 {
        config.extend(gpt2(keys)?);
    } else {
        config.extend(decoder(model, keys, family)?);
    }
    Ok(config)
}

/// Model families with different configs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Llama,
    Mistral,
    Mixtral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gpt2,
}

impl Family {
    fn of(architecture: &str, gguf: GgufMetadata<'_>) -> Result<Self, TextError> {
        Ok(match architecture {
            "llama" if gguf.count("llama.expert_count")?.unwrap_or(0) > 0 => Self::Mixtral,
            // GGUF has no architecture for Mistral; only the name differs.
            "llama" if is_mistral(gguf)? => Self::Mistral,
            "llama" => Self::Llama,
            "mistral" => Self::Mistral,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "qwen3moe" => Self::Qwen3Moe,
            "gpt2" => Self::Gpt2,
            _ => return Err(TextError::Architecture { architecture: architecture.to_owned() }),
        })
    }

    fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Mixtral => "mixtral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen3Moe => "qwen3_moe",
            Self::Gpt2 => "gpt2",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Mixtral => "MixtralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
            Self::Gpt2 => "GPT2LMHeadModel",
        }
    }
}

fn is_mistral(gguf: GgufMetadata<'_>) -> Result<bool, TextError> {
    for key in ["general.basename", "general.name"] {
        if let Some(name) = gguf.text(key)? {
            return Ok(name.to_lowercase().starts_with("mistral"));
        }
    }
    Ok(false)
}

/// Keys that begin with the architecture.
#[derive(Clone, Copy)]
struct ArchitectureKeys<'a> {
    gguf: GgufMetadata<'a>,
    name: &'a str,
}

impl<'a> ArchitectureKeys<'a> {
    fn key(self, rest: &str) -> String {
        format!("{}.{rest}", self.name)
    }

    fn count(self, rest: &str) -> Result<Option<u64>, TextError> {
        self.gguf.one_count(&self.key(rest))
    }

    fn required(self, rest: &str) -> Result<u64, TextError> {
        required(self.count(rest)?, &self.key(rest))
    }

    fn number(self, rest: &str) -> Result<Option<f64>, TextError> {
        self.gguf.number(&self.key(rest))
    }

    fn text(self, rest: &str) -> Result<Option<&'a str>, TextError> {
        self.gguf.text(&self.key(rest))
    }
}

fn gpt2(keys: ArchitectureKeys<'_>) -> Result<Map<String, Value>, TextError> {
    let context = keys.required("context_length")?;
    let epsilon = "attention.layer_norm_epsilon";
    let entries = [
        ("n_layer", json!(keys.required("block_count")?)),
        ("n_embd", json!(keys.required("embedding_length")?)),
        ("n_head", json!(keys.required("attention.head_count")?)),
        ("n_positions", json!(context)),
        ("n_ctx", json!(context)),
        ("n_inner", json!(keys.count("feed_forward_length")?)),
        ("layer_norm_epsilon", json!(required(keys.number(epsilon)?, &keys.key(epsilon))?)),
        ("activation_function", json!("gelu_new")),
    ];
    Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// All families but GPT-2.
fn decoder(
    model: GgufModel<'_>,
    keys: ArchitectureKeys<'_>,
    family: Family,
) -> Result<Map<String, Value>, TextError> {
    let mut config = Map::new();
    let mut put = |key: &str, value: Value| {
        config.insert(key.to_owned(), value);
    };
    let (hidden, heads) = (keys.required("embedding_length")?, keys.required("attention.head_count")?);
    put("hidden_size", json!(hidden));
    put("num_hidden_layers", json!(keys.required("block_count")?));
    put("num_attention_heads", json!(heads));
    put("num_key_value_heads", json!(keys.count("attention.head_count_kv")?.unwrap_or(heads)));
    let head = match (keys.count("attention.key_length")?, keys.count("rope.dimension_count")?) {
        (Some(length), _) | (None, Some(length)) => Some(length),
        (None, None) => hidden.checked_div(heads),
    };
    if let Some(head) = head {
        put("head_dim", json!(head));
    }
    put("max_position_embeddings", json!(keys.required("context_length")?));
    let epsilon = "attention.layer_norm_rms_epsilon";
    put("rms_norm_eps", json!(required(keys.number(epsilon)?, &keys.key(epsilon))?));
    put("hidden_act", json!("silu"));
    let theta = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    put("rope_theta", json!(theta));
    if let Some(scaling) = rope_scaling(model, keys, theta)? {
        put("rope_scaling", scaling);
    }
    match family {
        Family::Qwen3Moe => {
            // The width of dense layers, which these models do not have.
            if let Some(width) = keys.count("feed_forward_length")? {
                put("intermediate_size", json!(width));
            }
            put("moe_intermediate_size", json!(keys.required("expert_feed_forward_length")?));
            put("num_experts", json!(keys.required("expert_count")?));
            put("num_experts_per_tok", json!(keys.required("expert_used_count")?));
            // Not in the file; llama.cpp always normalizes.
            put("norm_topk_prob", json!(true));
            put("decoder_sparse_step", json!(1));
            put("mlp_only_layers", json!([]));
        }
        Family::Mixtral => {
            put("num_local_experts", json!(keys.required("expert_count")?));
            put("num_experts_per_tok", json!(keys.required("expert_used_count")?));
            put("intermediate_size", json!(keys.required("feed_forward_length")?));
        }
        _ => put("intermediate_size", json!(keys.required("feed_forward_length")?)),
    }
    match family {
        Family::Llama => {
            let has = |suffixes: [&str; 2]| {
                model.tensors.keys().any(|name| suffixes.iter().any(|suffix| name.ends_with(suffix)))
            };
            put("attention_bias", json!(has(["attn_q.bias", "q_proj.bias"])));
            put("mlp_bias", json!(has(["ffn_up.bias", "up_proj.bias"])));
        }
        Family::Mistral | Family::Mixtral => {
            put("sliding_window", json!(keys.count("attention.sliding_window")?));
        }
        Family::Qwen2 | Family::Qwen3 | Family::Qwen3Moe => put("use_sliding_window", json!(false)),
        Family::Gpt2 => {}
    }
    Ok(config)
}

fn rope_scaling(
    model: GgufModel<'_>,
    keys: ArchitectureKeys<'_>,
    theta: f64,
) -> Result<Option<Value>, TextError> {
    if model.tensors.contains_key("rope_freqs.weight") {
        return rope_scaling_config(model.rope_freqs.ok_or(TextError::NoRopeFactors)?, theta);
    }
    let kind = match keys.text("rope.scaling.type")? {
        None | Some("none") => return Ok(None),
        Some(kind @ ("linear" | "yarn")) => kind,
        Some(other) => {
            return Err(TextError::value(
                keys.key("rope.scaling.type"),
                "`none`, `linear` or `yarn`",
                &other,
            ));
        }
    };
    let factor = required(keys.number("rope.scaling.factor")?, &keys.key("rope.scaling.factor"))?;
    let mut scaling = json!({"rope_type": kind, "factor": factor});
    if let Some(original) = keys.count("rope.scaling.original_context_length")? {
        scaling["original_max_position_embeddings"] = json!(original);
    }
    Ok(Some(scaling))
}

/// Size of the vocabulary: the rows of the embedding if known, because
/// tokenizers may have fewer tokens.
fn vocab_size(model: GgufModel<'_>, keys: ArchitectureKeys<'_>) -> Result<u64, TextError> {
    for name in ["model.embed_tokens.weight", "transformer.wte.weight"] {
        if let Some(&rows) = model.tensors.get(name).and_then(|shape| shape.first()) {
            return Ok(rows as u64);
        }
    }
    if let Some(size) = keys.count("vocab_size")? {
        return Ok(size);
    }
    let tokens = "tokenizer.ggml.tokens";
    Ok(required(keys.gguf.texts(tokens)?, tokens)?.len() as u64)
}

#[cfg(test)]
mod tests {
    use weightloom_checkpoint::formats::gguf::GgufArray;

    use super::*;

    fn metadata(architecture: &str) -> BTreeMap<String, GgufValue> {
        let counts = [
            ("context_length", 64),
            ("block_count", 2),
            ("embedding_length", 32),
            ("feed_forward_length", 48),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("vocab_size", 100),
        ];
        let mut metadata: BTreeMap<_, _> = counts
            .iter()
            .map(|&(key, count)| (format!("{architecture}.{key}"), GgufValue::U32(count)))
            .collect();
        for epsilon in ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"] {
            metadata.insert(format!("{architecture}.{epsilon}"), GgufValue::F32(1e-5));
        }
        metadata.insert("general.architecture".to_owned(), GgufValue::String(architecture.to_owned()));
        metadata
    }

    fn config(
        metadata: &BTreeMap<String, GgufValue>,
        tensors: &[&str],
    ) -> Result<Map<String, Value>, TextError> {
        let tensors = tensors.iter().map(|&name| (name.to_owned(), vec![7, 32])).collect();
        gguf_config(GgufModel { metadata, tensors: &tensors, rope_freqs: None })
    }

    #[test]
    fn every_family_has_its_keys() {
        for (architecture, model_type) in
            [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3"), ("gpt2", "gpt2")]
        {
            let config = config(&metadata(architecture), &["output.weight"]).unwrap();
            assert_eq!(config["model_type"], model_type);
            assert_eq!((&config["vocab_size"], &config["tie_word_embeddings"]), (&json!(100), &json!(false)));
            if architecture == "gpt2" {
                assert_eq!((&config["n_embd"], &config["layer_norm_epsilon"]), (&json!(32), &json!(1e-5)));
            } else {
                assert_eq!((&config["head_dim"], &config["rms_norm_eps"]), (&json!(8), &json!(1e-5)));
                assert_eq!(config["num_key_value_heads"], 2);
            }
        }
    }

    #[test]
    fn experts_and_names_select_the_family() {
        let mut mixtral = metadata("llama");
        mixtral.insert("llama.expert_count".to_owned(), GgufValue::U32(8));
        mixtral.insert("llama.expert_used_count".to_owned(), GgufValue::U32(2));
        let mixtral = config(&mixtral, &[]).unwrap();
        assert_eq!((&mixtral["model_type"], &mixtral["num_local_experts"]), (&json!("mixtral"), &json!(8)));

        let mut mistral = metadata("llama");
        mistral.insert("general.name".to_owned(), GgufValue::String("Mistral 7B".to_owned()));
        assert_eq!(config(&mistral, &[]).unwrap()["model_type"], "mistral");

        let mut moe = metadata("qwen3moe");
        for (key, count) in
            [("expert_count", 16), ("expert_used_count", 4), ("expert_feed_forward_length", 24)]
        {
            moe.insert(format!("qwen3moe.{key}"), GgufValue::U32(count));
        }
        moe.insert("qwen3moe.attention.key_length".to_owned(), GgufValue::U32(128));
        let moe = config(&moe, &["model.embed_tokens.weight"]).unwrap();
        assert_eq!((&moe["moe_intermediate_size"], &moe["norm_topk_prob"]), (&json!(24), &json!(true)));
        assert_eq!((&moe["head_dim"], &moe["vocab_size"]), (&json!(128), &json!(7)));
    }

    #[test]
    fn rope_scaling_is_never_lost() {
        let mut metadata = metadata("llama");
        assert_eq!(config(&metadata, &["rope_freqs.weight"]), Err(TextError::NoRopeFactors));
        let key = |rest: &str| format!("llama.rope.scaling.{rest}");
        metadata.insert(key("type"), GgufValue::String("yarn".to_owned()));
        assert_eq!(config(&metadata, &[]), Err(TextError::Missing { key: key("factor") }));
        metadata.insert(key("factor"), GgufValue::F32(4.0));
        metadata.insert(key("original_context_length"), GgufValue::U32(32));
        let expected = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        assert_eq!(config(&metadata, &[]).unwrap()["rope_scaling"], expected);
        metadata.insert(key("type"), GgufValue::String("spiral".to_owned()));
        assert!(matches!(config(&metadata, &[]), Err(TextError::Value { .. })));
    }

    #[test]
    fn errors_name_the_key() {
        let mut metadata = metadata("llama");
        let heads = "llama.attention.head_count".to_owned();
        metadata.insert(heads.clone(), GgufValue::Array(GgufArray::I32(vec![4, 8])));
        assert_eq!(config(&metadata, &[]), Err(TextError::PerLayer { key: heads.clone() }));
        metadata.insert(heads.clone(), GgufValue::Array(GgufArray::I32(vec![4, 4])));
        assert_eq!(config(&metadata, &[]).unwrap()["num_attention_heads"], 4);
        metadata.insert(heads.clone(), GgufValue::U32(0));
        assert!(!config(&metadata, &[]).unwrap().contains_key("head_dim"));
        metadata.remove(&heads);
        assert_eq!(config(&metadata, &[]), Err(TextError::Missing { key: heads }));
        metadata.insert("general.architecture".to_owned(), GgufValue::String("starfish".to_owned()));
        let unknown = TextError::Architecture { architecture: "starfish".to_owned() };
        assert_eq!(config(&metadata, &[]), Err(unknown));
    }
}
