//! Whole runs with each optimizer and with averages, from the config to the checkpoint.

use std::path::Path;
use std::sync::{Arc, Mutex};

use weightloom_checkpoint::Source;
use weightloom_errors::Hint as _;
use weightloom_gang::{GangOptions, threads};
use weightloom_train::callback::{Callback, CallbackResult, Control, TrainerState};
use weightloom_train::config::{Config, read};
use weightloom_train::engine::StepResult;
use weightloom_train::{DryRunRequest, Extensions, Outcome, TrainError, TrainRequest, dry_run, train};

use crate::own_extensions::{hub, tokenizer_file};

const RUN: &str = "
model:
  name: llama
  config_overrides: {vocab_size: 32, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2,
    num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64}
data: {type: dummy, max_seq_len: 8}
train:
  max_steps: 4
  global_batch_size: 4
  device: cpu
  schedule: {kind: constant, warmup_steps: 1}
  logging: {report_to: [jsonl]}
  checkpoint: {async_save: false}
";

fn config(folder: &Path, overrides: &[&str]) -> Config {
    let output = format!("train.checkpoint.output_dir={}", folder.display());
    let overrides: Vec<String> =
        std::iter::once(output).chain(overrides.iter().map(|text| (*text).to_owned())).collect();
    read(RUN, "run.yaml", &overrides, &|_| None).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Records losses, and stops after some step.
struct Watch {
    losses: Arc<Mutex<Vec<f64>>>,
    stop_after: u64,
}

impl Callback for Watch {
    fn on_step_end(&mut self, state: &TrainerState<'_>, result: &StepResult) -> CallbackResult {
        self.losses.lock().unwrap().push(result.loss);
        Ok(if self.stop_after == state.step { Control::Stop } else { Control::Continue })
    }
}

/// Trains on some ranks, which end after a step; the first rank's losses.
fn run(config: &Config, ranks: usize, stop_after: u64) -> Result<(Outcome, Vec<f64>), TrainError> {
    let all = threads::run(ranks, GangOptions::default(), |gang| {
        let losses = Arc::new(Mutex::new(Vec::new()));
        let hub = hub();
        let watch = Watch { losses: Arc::clone(&losses), stop_after };
        let outcome = train(TrainRequest {
            callbacks: vec![Box::new(watch)],
            ..TrainRequest::new(config, &hub, gang)
        })?;
        let losses = losses.lock().unwrap().clone();
        Ok((outcome, losses))
    });
    all.unwrap().remove(0)
}

#[test]
fn runs_with_each_optimizer_stop_and_resume_with_the_same_bits() {
    let kinds = [
        ("lion", ""),
        ("adafactor", "train.loss.z_loss=1e-3"),
        ("schedule_free_adamw", "train.loss.label_smoothing=0.1"),
        ("muon", "train.ema={decay: 0.9, evaluate: true}"),
        ("adamw_8bit", ""),
        ("adamw", "train.ema={decay: 0.9, start_step: 1}"),
    ];
    for (kind, other) in kinds {
        let folder = tempfile::tempdir().unwrap();
        let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
        let kind = format!("train.optimizer.kind={kind}");
        let overrides: Vec<&str> = [&*kind, other].into_iter().filter(|text| !text.is_empty()).collect();
        let (outcome, expected) = run(&config(&whole, &overrides), 2, 9).unwrap();
        assert_eq!((outcome.step, expected.len()), (4, 4));
        let (_, mut found) = run(&config(&parts, &overrides), 2, 2).unwrap();
        let (resumed, rest) = run(&config(&parts, &overrides), 2, 9).unwrap();
        found.extend(rest);
        assert_eq!((resumed.began, &found), (2, &expected), "{kind}");
        let fingerprint = |outcome: &Outcome| {
            let source = Source::open(outcome.checkpoint.as_ref().unwrap()).unwrap();
            source.manifest.as_ref().unwrap().fingerprint
        };
        assert_eq!(fingerprint(&resumed), fingerprint(&outcome), "{kind}");
    }
}

/// Writes a tokenizer, and returns the setting that selects it.
fn tokenizer(folder: &Path) -> String {
    std::fs::write(folder.join("tokenizer.json"), tokenizer_file().to_string()).unwrap();
    format!("model.tokenizer_path={}", folder.display())
}

#[test]
fn an_evaluation_is_of_the_weights_that_are_saved_with_the_plain_loss() {
    let folder = tempfile::tempdir().unwrap();
    let words = tokenizer(folder.path());
    for name in ["train.txt", "held-out.txt"] {
        std::fs::write(folder.path().join(name), format!("{name}: the sheep eat grass. ").repeat(20))
            .unwrap();
    }
    let data = format!(
        "data={{paths: [{0}/train.txt], eval_paths: [{0}/held-out.txt], max_seq_len: 16}}",
        folder.path().display()
    );
    let vocabulary = "model.config_overrides.vocab_size=96";
    for (number, other) in [
        "train.optimizer={kind: schedule_free_adamw, lr: 0.01}",
        "train.ema={decay: 0.5, evaluate: true}",
        "train.ema={decay: 0.5, evaluate: false}",
    ]
    .into_iter()
    .enumerate()
    {
        let place = |name: &str| folder.path().join(format!("{name}-{number}"));
        let smoothing = "train.loss={label_smoothing: 0.2, z_loss: 0.01}";
        let trained = config(&place("trained"), &[&words, &data, vocabulary, other, smoothing]);
        let (first, _) = run(&trained, 2, 9).unwrap();
        // A run from these weights that changes nothing.
        let base = format!("model.weights_path={}", first.checkpoint.unwrap().display());
        let still = ["train.max_steps=1", "train.optimizer={kind: sgd, lr: 1e-30, weight_decay: 0}"];
        let again = config(&place("again"), &[&words, &data, vocabulary, &base, still[0], still[1]]);
        let (second, _) = run(&again, 2, 9).unwrap();
        assert!(first.eval_loss.is_some());
        assert_eq!(first.eval_loss, second.eval_loss, "{other}");
    }
}

#[test]
fn patterns_without_a_trained_parameter_end_runs_and_dry_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = run(&config(&folder.path().join("base"), &[]), 1, 9).unwrap();
    let base = format!("model.weights_path={}", first.checkpoint.unwrap().display());
    let words = tokenizer(folder.path());
    let lora = "model.lora={rank: 2, target_modules: [q_proj]}";
    let cases: [(&[&str], Option<&str>); 5] = [
        (&["train.optimizer.lr_scale={layers.0: 0.5}"], None),
        (&["train.optimizer.lr_scale={layers.7: 0.5}"], Some("`layers.7` in `train.optimizer.lr_scale`")),
        (
            &["train.optimizer.kind=muon", "train.optimizer.options={adamw: [q_prj]}"],
            Some("`q_prj` in `train.optimizer.options.adamw`"),
        ),
        (&[&base, &words, lora, "train.optimizer.lr_scale={lora_B: 16}"], None),
        // An adapter does not train the embedding.
        (
            &[&base, &words, lora, "train.optimizer.lr_scale={embed_tokens: 0.1}"],
            Some("`embed_tokens` in `train.optimizer.lr_scale`"),
        ),
    ];
    for (number, (overrides, expected)) in cases.into_iter().enumerate() {
        let config = config(&folder.path().join(number.to_string()), overrides);
        let extensions = Extensions::standard();
        let request =
            DryRunRequest { config: &config, hub: &hub(), extensions: &extensions, world: 1, memory: None };
        let of_dry_run = dry_run(request).map(|_| ());
        let of_run = run(&config, 1, 9).map(|_| ());
        for found in [of_dry_run, of_run] {
            match expected {
                None => assert_eq!(found.err().map(|error| error.to_string()), None, "{overrides:?}"),
                Some(expected) => {
                    let error = found.unwrap_err();
                    let text = format!("{expected} matches no parameter");
                    assert!(error.to_string().contains(&text), "{overrides:?}: {error}");
                    assert!(error.hint().is_some(), "{overrides:?}");
                }
            }
        }
    }
}
