//! Trains a small transformer on the language, and adapters of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;
use weightloom::dtensor::{DTensor, DistContext};
use weightloom::gang::{GangOptions, GangSizes, Gangs, solo};
use weightloom::hub::{Hub, ModelLoadOptions};
use weightloom::nn::{ActivationCheckpointing, Adapter, IGNORED, Model};
use weightloom::sway::numbers::pcg64::Pcg64;
use weightloom::train::TrainError;
use weightloom::train::config::{OptimizerConfig, PipelineSchedule};
use weightloom::train::engine::{Engine, EngineSettings, MicroBatch, StepHooks, StepSettings};
use weightloom::train::optimizer::{Patterns, WeightDecay, from_config};
use weightloom::train::pipeline::Schedule;

use super::language::{PADDING, VOCABULARY, token, write_tokenizer};

/// Tokens of a row: padding and words.
pub const ROW: usize = 48;

/// The text of one row: padding, then words.
pub struct Row {
    pub padding: usize,
    pub words: Vec<usize>,
}

/// A training run.
pub struct Lesson<'a> {
    pub steps: u64,
    pub rows: usize,
    pub rate: f64,
    pub seed: u64,
    /// Generates the rows of each step.
    pub row: &'a dyn Fn(&mut Pcg64) -> Row,
    /// An early adapter to keep beside the last one.
    pub checkpoint: Option<Checkpoint<'a>>,
}

/// The adapter after some steps of a run.
pub struct Checkpoint<'a> {
    pub step: u64,
    pub folder: &'a Path,
}

impl Lesson<'_> {
    fn batch(&self, generator: &mut Pcg64) -> MicroBatch {
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for _ in 0..self.rows {
            let row = (self.row)(generator);
            let padding = std::iter::repeat_n(PADDING, row.padding);
            let tokens: Vec<i64> = padding.chain(row.words.iter().map(|&word| token(word))).collect();
            assert_eq!(tokens.len(), ROW + 1);
            inputs.extend(&tokens[..ROW]);
            targets.extend(tokens[1..].iter().map(|&next| if next == PADDING { IGNORED } else { next }));
        }
        MicroBatch { rows: self.rows, inputs, targets, ..MicroBatch::default() }
    }

    /// Trains and returns the last loss. `save` writes the early adapter.
    fn train(&self, engine: &mut Engine, save: impl Fn(&Engine, &Path)) -> f64 {
        let mut generator = Pcg64::new(self.seed);
        let mut loss = f64::NAN;
        for number in 1..=self.steps {
            let left = 1.0 - (number - 1) as f64 / self.steps as f64;
            let learning_rate = self.rate * left;
            let settings = StepSettings { number, learning_rate };
            loss = engine.step(&settings, &[self.batch(&mut generator)], &mut UnitNorm).unwrap().loss;
            if let Some(early) = self.checkpoint.as_ref().filter(|early| early.step == number) {
                save(engine, early.folder);
            }
        }
        loss
    }
}

/// Clips gradients to a norm of one.
struct UnitNorm;

impl StepHooks for UnitNorm {
    fn clip(&mut self, gradient_norm: f64) -> Result<f64, TrainError> {
        Ok((1.0 / gradient_norm).min(1.0))
    }
}

fn engine(decoder: impl FnOnce(&ModelLoadOptions) -> (Box<dyn Model>, Option<Adapter>)) -> Engine {
    let gangs = Gangs::new(solo(GangOptions::default()), &GangSizes::default()).unwrap();
    let dist = DistContext::new(Arc::clone(&gangs.root));
    let options = ModelLoadOptions {
        gangs: Some(gangs.clone()),
        dist: Some(Arc::clone(&dist)),
        ..ModelLoadOptions::default()
    };
    let (decoder, adapter) = decoder(&options);
    let optimizer = OptimizerConfig { weight_decay: 0.0, ..OptimizerConfig::default() };
    let settings = EngineSettings {
        gangs,
        dist,
        schedule: Arc::new(Schedule::new(PipelineSchedule::default(), 1, 1, 1).unwrap()),
        optimizer: from_config(&optimizer).unwrap(),
        decay: &WeightDecay::new(&optimizer, []).unwrap(),
        frozen: &Patterns::new("none", &[]).unwrap(),
        checkpointing: ActivationCheckpointing::Off,
        dropout: 0.0,
    };
    Engine::new(settings, vec![(0, decoder, adapter)]).unwrap()
}

fn write<'a>(file: &Path, tensors: impl Iterator<Item = (String, &'a DTensor)>) {
    let held: BTreeMap<String, (Vec<usize>, Vec<u8>)> = tensors
        .map(|(name, value)| {
            let bytes = value.to_local().read_host(<[u8]>::to_vec).unwrap();
            (name, (value.shape().to_vec(), bytes))
        })
        .collect();
    let views = held
        .iter()
        .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    serialize_to_file(views, None, file).unwrap();
}

/// Trains a model on the language and writes its folder. Returns the last loss.
pub fn pretrain(folder: &Path, hub: &Hub, lesson: &Lesson<'_>) -> f64 {
    std::fs::create_dir_all(folder).unwrap();
    write_tokenizer(folder);
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY,
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 12, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "hidden_act": "silu",
        "pad_token_id": PADDING, "eos_token_id": 1, "bos_token_id": null, "dtype": "float32",
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = config.as_object().unwrap();
    let family = Arc::clone(hub.families.of_config(config).unwrap());
    let mut engine = engine(|options| {
        let decoder = weightloom::hub::new_model(
            &*family.definition(config).unwrap(),
            &weightloom::nn::Parallel::default(),
            lesson.seed,
            options,
        );
        (decoder.unwrap(), None)
    });
    let loss = lesson.train(&mut engine, |_, _| ());
    let parameters = engine.stages()[0].model.parameters();
    write(&folder.join("model.safetensors"), parameters.iter().map(|(name, value)| (name.clone(), value)));
    loss
}

const MODULES: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Trains an adapter and writes its PEFT folder. Returns the last loss.
pub fn tune(folder: &Path, hub: &Hub, base: &Path, rank: usize, lesson: &Lesson<'_>) -> f64 {
    let model = hub.open(&base.display().to_string(), &()).unwrap();
    let mut engine = engine(|options| {
        let decoder = model.load(options, &()).unwrap().model;
        let mut adapter = Adapter::new();
        let modules: Vec<String> = decoder
            .parameters()
            .iter()
            .filter_map(|(name, _)| name.strip_suffix(".weight"))
            .filter(|module| MODULES.iter().any(|end| module.ends_with(end)))
            .map(str::to_owned)
            .collect();
        for module in modules {
            adapter.add_new(&*decoder, &module, rank, 2.0, lesson.seed).unwrap();
        }
        (decoder, Some(adapter))
    });
    let save = |engine: &Engine, folder: &Path| {
        let adapter = engine.stages()[0].adapter.as_ref().unwrap();
        std::fs::create_dir_all(folder).unwrap();
        let named =
            adapter.matrices().into_iter().map(|(name, value)| (format!("base_model.model.{name}"), value));
        write(&folder.join("adapter_model.safetensors"), named);
        let config = json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "r": rank,
            "lora_alpha": 2 * rank, "target_modules": MODULES, "bias": "none", "inference_mode": true,
        });
        std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    };
    let loss = lesson.train(&mut engine, save);
    save(&engine, folder);
    loss
}
