//! A folder with a tokenizer, texts and a config, and runs in it.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tempfile::TempDir;
use weightloom_dtensor::DTensor;
use weightloom_gang::{GangOptions, threads};
use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub};
use weightloom_nn::NnError;
use weightloom_train::callback::{Callback, CallbackResult, Control, TrainerState};
use weightloom_train::config::{Config, ConfigReader};
use weightloom_train::dry_run::DryRun;
use weightloom_train::engine::StepResult;
use weightloom_train::extensions::NoOptions;
use weightloom_train::loss::{Loss, LossArgs, LossError, LossFactory, Losses};
use weightloom_train::{DryRunRequest, Extensions, Outcome, TrainError, TrainRequest, dry_run, train};

/// A document with this character has a bad loss, if the config says so.
pub const POISON: char = '~';

/// A loss that is multiplied for rows with [`POISON`].
#[derive(Debug)]
struct Poisoned(&'static str, f64);

struct PoisonedLoss(f64);

impl Loss for PoisonedLoss {
    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        let loss = args.model.loss(args.hidden, args.targets, args.divisor, args.adapter)?;
        let targets = args.targets.to_local().to_vec::<i64>()?;
        let factor = if targets.contains(&token(POISON)) { self.0 } else { 1.0 };
        Ok(loss.scale(factor)?)
    }
}

impl LossFactory for Poisoned {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        self.0
    }

    fn summary(&self) -> &'static str {
        "Multiplied for some rows."
    }

    fn build(&self, _: NoOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(PoisonedLoss(self.1)))
    }
}

pub fn extensions() -> Extensions {
    let losses = Losses::standard().with(Poisoned("nan", f64::NAN)).unwrap();
    Extensions { losses: losses.with(Poisoned("spike", 1000.0)).unwrap(), ..Extensions::standard() }
}

/// The number of a character's token.
fn token(letter: char) -> i64 {
    3 + (letter as i64 - ' ' as i64)
}

/// One token for each character of ASCII.
fn tokenizer() -> Value {
    let marks = ["<s>", "</s>", "<pad>"];
    let pieces = marks.iter().map(|mark| (*mark).to_owned()).chain((' '..='~').map(String::from));
    let vocabulary: Map<String, Value> = pieces.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
    let added = |(id, mark): (usize, &&str)| {
        json!({"id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "added_tokens": marks.iter().enumerate().map(added).collect::<Vec<_>>(),
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
}

pub struct Place(TempDir);

impl Place {
    /// Sixteen short texts, each a row.
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("tokenizer/tokenizer.json", &tokenizer().to_string());
        let marks = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"});
        place.write("tokenizer/tokenizer_config.json", &marks.to_string());
        (0..16).for_each(|number| place.document(number, ""));
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// The text of a row, and what follows it.
    pub fn document(&self, number: usize, more: &str) {
        self.write(&format!("texts/{number:02}.txt"), &format!("{number} sheep and {number}{more}"));
    }

    pub fn poison(&self, number: usize) {
        self.document(number, &POISON.to_string());
    }

    /// A config with changes. `{}` in them is this folder.
    pub fn config(&self, overrides: &[&str]) -> Config {
        let text = "
model:
  name: llama
  tokenizer_path: {}/tokenizer
  config_overrides: {vocab_size: 98, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2,
    num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64}
data: {paths: [\"{}/texts\"], max_seq_len: 32, packing: false, shuffle: false}
train:
  max_steps: 6
  global_batch_size: 2
  device: cpu
  optimizer: {lr: 0.01}
  checkpoint: {output_dir: \"{}/out\", keep_last: 0}
  logging: {report_to: [jsonl]}
";
        let here = self.0.path().display().to_string();
        let overrides: Vec<String> =
            overrides.iter().map(|text| text.replace("{}/", &format!("{here}/"))).collect();
        let extensions = extensions();
        let reader = ConfigReader { overrides: &overrides, ..ConfigReader::new(&extensions, &|_| None) };
        reader
            .read(&text.replace("{}/", &format!("{here}/")), "run.yaml")
            .unwrap_or_else(|errors| panic!("{errors}"))
    }

    pub fn run(&self, overrides: &[&str]) -> Result<Outcome, TrainError> {
        self.run_on(1, overrides, None)
    }

    /// Trains on thread ranks, and stops after a step of this number.
    pub fn run_on(
        &self,
        ranks: usize,
        overrides: &[&str],
        stop_after: Option<u64>,
    ) -> Result<Outcome, TrainError> {
        let config = self.config(overrides);
        let results = threads::run(ranks, GangOptions::default(), |gang| {
            let hub = hub();
            train(TrainRequest {
                extensions: extensions(),
                callbacks: vec![Box::new(Stop(stop_after))],
                ..TrainRequest::new(&config, &hub, gang)
            })
        })
        .unwrap();
        let mut failures: Vec<TrainError> = results.iter().filter_map(|it| it.clone().err()).collect();
        // A root cause takes precedence over its consequences.
        failures.sort_by_key(TrainError::is_consequence);
        match failures.into_iter().next() {
            Some(error) => Err(error),
            None => results.into_iter().next().unwrap(),
        }
    }

    pub fn dry_run(&self, overrides: &[&str]) -> Result<DryRun, TrainError> {
        let config = self.config(overrides);
        let hub = hub();
        dry_run(DryRunRequest {
            config: &config,
            hub: &hub,
            extensions: &extensions(),
            world: 1,
            memory: None,
        })
    }

    /// The lines of the metrics of a run.
    pub fn metrics(&self, folder: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(folder).join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Steps and losses, as text that is equal for equal numbers.
    pub fn losses(&self, folder: &str) -> Vec<(u64, String)> {
        let lines = self.metrics(folder);
        let loss = |line: &Value| Some((line["step"].as_u64()?, line.get("loss")?.to_string()));
        lines.iter().filter_map(loss).collect()
    }

    /// Events of a kind.
    pub fn events(&self, folder: &str, kind: &str) -> Vec<Value> {
        self.metrics(folder).into_iter().filter(|line| line["event"] == kind).collect()
    }

    /// The values of a metric by step.
    pub fn scalars(&self, folder: &str, name: &str) -> Vec<(u64, f64)> {
        let value = |line: &Value| Some((line["step"].as_u64()?, line["scalars"][name].as_f64()?));
        self.metrics(folder).iter().filter_map(value).collect()
    }

    /// The steps of the checkpoints in a folder.
    pub fn saved(&self, folder: &str) -> Vec<u64> {
        let Ok(entries) = std::fs::read_dir(self.path(folder).join("checkpoints")) else { return Vec::new() };
        let step = |name: String| name.strip_prefix("step_")?.parse().ok();
        let mut steps: Vec<u64> =
            entries.filter_map(|entry| step(entry.unwrap().file_name().into_string().unwrap())).collect();
        steps.sort_unstable();
        steps
    }

    pub fn fingerprint(&self, checkpoint: &str) -> String {
        let source = weightloom_checkpoint::Source::open(self.path(checkpoint)).unwrap();
        format!("{:?}", source.manifest.as_ref().unwrap().fingerprint)
    }
}

struct Stop(Option<u64>);

impl Callback for Stop {
    fn on_step_end(&mut self, state: &TrainerState<'_>, _: &StepResult) -> CallbackResult {
        Ok(if self.0 == Some(state.step) { Control::Stop } else { Control::Continue })
    }
}

pub fn hub() -> Hub {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    let fetch = FetchSettings::in_folders("none", "none");
    Hub::new(StoreSettings::default().store(weightloom_models::CARDS), families, Ok(fetch))
}
