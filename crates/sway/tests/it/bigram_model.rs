//! A transformer whose next word depends on the last word alone, by weights that
//! are written down: what it and its adapter answer is known.
//!
//! A word is a direction of the hidden state. Attention and the feed-forward block
//! add nothing, and the head maps each word to its successor. The adapter, on the
//! feed-forward block, adds the direction of another word to that of some words, so
//! that they are followed by the successor of the other.

use std::path::Path;

use serde_json::{Map, Value, json};
use weightloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};

use crate::tiny_model::open;

/// Directions of the hidden state, and so the most words.
const WIDTH: usize = 32;
/// A normalized direction: its root mean square is 1.
const NORMALIZED: f32 = 5.656_854;
/// How much larger the logit of the successor is.
const HEAD: f32 = 2.0;
/// How much of the other word the adapter adds.
const STRENGTH: f32 = 4.0;
/// The first two words end a text and stand for unknown ones.
const SPECIAL: [&str; 2] = ["<end>", "<unk>"];

/// What follows what.
pub struct Bigrams<'a> {
    /// Words with their successors; others end the text.
    pub successors: &'a [(&'a str, &'a str)],
    /// Words that the adapter treats as another word.
    pub replaced: &'a [(&'a str, &'a str)],
}

impl Bigrams<'_> {
    fn words(&self) -> Vec<&str> {
        let mut words = SPECIAL.to_vec();
        for (one, other) in self.successors.iter().chain(self.replaced) {
            for word in [one, other] {
                if !words.contains(word) {
                    words.push(word);
                }
            }
        }
        assert!(words.len() <= WIDTH, "{words:?}");
        words
    }

    /// Writes the model and its adapter below a folder, and opens both.
    pub fn backend(&self, folder: &Path) -> LocalBackend {
        let (model, adapter) = (folder.join("model"), folder.join("adapter"));
        for folder in [&model, &adapter] {
            std::fs::create_dir_all(folder).unwrap();
        }
        self.write_model(&model);
        self.write_adapter(&adapter);
        LocalBackend::new("hf", open(&model), Tuned::Adapter(adapter), LocalOptions::default()).unwrap()
    }

    fn write_model(&self, folder: &Path) {
        let words = self.words();
        let at = |word: &str| words.iter().position(|other| *other == word).unwrap();
        let vocabulary: Map<String, Value> =
            words.iter().enumerate().map(|(at, word)| ((*word).to_owned(), json!(at))).collect();
        let special = |at: usize| {
            json!({"id": at, "content": SPECIAL[at], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        };
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special(0), special(1)],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null,
            "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": SPECIAL[1]},
        });
        std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": words.len(),
            "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": WIDTH / 2,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "tie_word_embeddings": false, "hidden_act": "silu", "eos_token_id": 0, "dtype": "float32",
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();

        let mut head = vec![0.0; words.len() * WIDTH];
        for (word, _) in words.iter().enumerate() {
            let next = self.successors.iter().find(|(from, _)| *from == words[word]);
            let next = next.map_or(0, |(_, to)| at(to));
            head[next * WIDTH + word] = HEAD;
        }
        let identity = |rows: usize| -> Vec<f32> {
            (0..rows * WIDTH).map(|place| f32::from(u8::from(place / WIDTH == place % WIDTH))).collect()
        };
        let square = [WIDTH, WIDTH];
        let layer = |name: &str| format!("model.layers.0.{name}.weight");
        let mut tensors = vec![
            ("model.embed_tokens.weight".to_owned(), vec![words.len(), WIDTH], identity(words.len())),
            ("lm_head.weight".to_owned(), vec![words.len(), WIDTH], head),
            ("model.norm.weight".to_owned(), vec![WIDTH], vec![1.0; WIDTH]),
        ];
        for name in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push((layer(name), vec![WIDTH], vec![1.0; WIDTH]));
        }
        for name in
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
        {
            tensors.push((layer(name), square.to_vec(), identity(WIDTH)));
        }
        for name in ["self_attn.o_proj", "mlp.down_proj"] {
            tensors.push((layer(name), square.to_vec(), vec![0.0; WIDTH * WIDTH]));
        }
        write_safetensors(&folder.join("model.safetensors"), &tensors);
    }

    fn write_adapter(&self, folder: &Path) {
        let words = self.words();
        let at = |word: &str| words.iter().position(|other| *other == word).unwrap();
        let rank = self.replaced.len();
        // What the feed-forward block makes of the direction of a word.
        let activation = NORMALIZED * NORMALIZED / (1.0 + (-NORMALIZED).exp());
        let (mut down, mut up) = (vec![0.0; rank * WIDTH], vec![0.0; WIDTH * rank]);
        for (row, (word, other)) in self.replaced.iter().enumerate() {
            down[row * WIDTH + at(word)] = 1.0 / activation;
            up[at(other) * rank + row] = STRENGTH;
        }
        let name =
            |matrix: &str| format!("base_model.model.model.layers.0.mlp.down_proj.lora_{matrix}.weight");
        let tensors = [(name("A"), vec![rank, WIDTH], down), (name("B"), vec![WIDTH, rank], up)];
        write_safetensors(&folder.join("adapter_model.safetensors"), &tensors);
        let config = json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank,
            "target_modules": ["down_proj"], "bias": "none", "inference_mode": true,
        });
        std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    }
}

/// Writes tensors in f32: a length, a header in JSON, and the numbers.
fn write_safetensors(file: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let mut header = Map::new();
    let mut bytes = Vec::new();
    for (name, shape, values) in tensors {
        let start = bytes.len();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()]});
        header.insert(name.clone(), entry);
    }
    let header = Value::Object(header).to_string();
    let mut whole = (header.len() as u64).to_le_bytes().to_vec();
    whole.extend(header.into_bytes());
    whole.extend(bytes);
    std::fs::write(file, whole).unwrap();
}
