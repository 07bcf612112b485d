//! Tests of notes on training runs.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::fmt::Write as _;

use weightloom_checkpoint::{LocalTensor, SaveOptions, Saver, Sharding, State, Target, TensorSpec};
use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{DType, Region, Shape};

use super::*;

fn curve(losses: &[f64]) -> LossCurve {
    let point = |(step, loss): (u64, &f64)| LossPoint { step, loss: *loss };
    LossCurve::of((1..).zip(losses).map(point).collect()).unwrap()
}

fn falling() -> Vec<f64> {
    (0..40).map(|step| 3.0 * (-0.05 * f64::from(step)).exp() + 0.5).collect()
}

#[test]
fn a_smooth_falling_curve_is_described_without_complaint() {
    let found = curve(&falling());
    assert!(found.smoothness > 0.9 && found.convergence < 0.4, "{found:?}");
    assert_eq!(found.spikes, [0; 0]);
    assert_eq!(found.notes().len(), 1, "{:?}", found.notes());
}

#[test]
fn spikes_and_losses_that_are_not_finite_are_found() {
    let mut losses = falling();
    losses[20] += 2.0;
    losses[30] = f64::INFINITY;
    let found = curve(&losses);
    assert_eq!(found.spikes, [21, 31]);
    assert!(found.notes()[1].contains("2 loss spikes, at steps 21, 31"), "{:?}", found.notes());
    // The noise of small batches is not a spike.
    let noisy: Vec<f64> =
        falling().iter().enumerate().map(|(step, loss)| loss + 0.02 * f64::from(step as u8 % 3)).collect();
    assert_eq!(curve(&noisy).spikes, [0; 0]);
}

#[test]
fn a_flat_curve_learned_nothing() {
    let found = curve(&[2.0; 20]);
    assert_eq!((found.smoothness, found.convergence), (0.0, 1.0));
    assert!(found.notes()[1].contains("hardly fell: its end is 100 %"), "{:?}", found.notes());
    assert!(LossCurve::of(vec![LossPoint { step: 1, loss: 2.0 }; 9]).is_none());
    assert!(LossCurve::of(vec![LossPoint { step: 1, loss: f64::NAN }; 20]).is_none());
}

#[test]
fn concentrated_gradients_are_named() {
    let even = GradientSpread::of(100, (0..8).map(|layer| (layer, 1e-6)).collect());
    assert_eq!(even.notes(), [""; 0]);
    let mut means: Vec<(usize, f64)> = (0..8).map(|layer| (layer, 1e-6)).collect();
    means[7].1 = 9e-6;
    means[2].1 = 0.0;
    let notes = GradientSpread::of(100, means).notes();
    assert_eq!(notes, ["squared gradients concentrate in layer 7 with 60 %", "no gradient reached layer 2"]);
    let few = GradientSpread::of(3, vec![(0, 1e-6)]);
    assert_eq!(few.notes(), ["only 3 steps: the optimizer's averages have hardly settled"]);
    assert_eq!(GradientSpread::of(90, vec![(0, 0.0)]).notes(), ["no gradient reached any layer"]);
    assert_eq!(GradientSpread::of(90, vec![(0, f64::NAN)]).notes(), ["the optimizer's state is not finite"]);
}

/// A run with a checkpoint of two layers, as the trainer writes it.
fn run(folder: &Path) -> PathBuf {
    let path = folder.join("run/checkpoints/step_60");
    let shape = Shape::new(&[2, 2]).unwrap();
    let spec = TensorSpec { dtype: DType::F32, sharding: Sharding::Region(Region::whole(&shape)), shape };
    let tensor = |value: f32| LocalTensor { spec: spec.clone(), bytes: value.to_le_bytes().repeat(4).into() };
    let mut state = State::new();
    state.model("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", tensor(1.0));
    for (layer, value) in [(0, 1e-6), (1, 1e-6), (2, 2e-5)] {
        let name = format!("model.layers.{layer}.self_attn.q_proj.lora_A.weight");
        state.training(format!("optimizer.exp_avg_sq.{name}"), tensor(value));
        state.training(format!("optimizer.exp_avg.{name}"), tensor(1.0));
    }
    state.value("trainer", &serde_json::json!({"step": 60})).unwrap();
    let gang = solo(GangOptions::default());
    let mut saver = Saver::new(gang).unwrap();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    saver.save(&state, &Target::Folder(path.clone()), &SaveOptions::default(), &()).unwrap();
    let mut metrics = String::new();
    for (step, loss) in (1..).zip(falling()) {
        writeln!(metrics, "{{\"step\":{step},\"loss\":{loss}}}").unwrap();
    }
    metrics
        .push_str("{\"step\":40,\"scalars\":{\"eval/loss\":9.0}}\n{\"step\":61,\"loss\":99.0}\n{\"step\":6");
    std::fs::write(folder.join("run/metrics.jsonl"), metrics).unwrap();
    path
}

#[test]
fn a_checkpoint_in_a_run_folder_has_notes() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = run(folder.path());
    let health = TrainingHealth::of_checkpoint(&checkpoint).unwrap();
    // The torn line, the evaluation, and the step after the checkpoint do not count.
    assert_eq!(health.loss.as_ref().unwrap().points.len(), 40);
    let spread = health.gradients.as_ref().unwrap();
    assert_eq!((spread.steps, spread.layers.len()), (60, 3));
    assert!((spread.layers[2].share - 2e-5 / 2.2e-5).abs() < 1e-6);
    let notes = health.notes();
    assert!(notes.iter().all(|note| note.starts_with("training run: ")));
    assert!(notes.iter().any(|note| note.contains("concentrate in layer 2 with 91 %")), "{notes:?}");
    let text = format!(
        "models: {{base: {{base: b}}, ft: {{base: b, adapter: {}}}}}\nsuite: []\n",
        checkpoint.display()
    );
    let suite = Suite::read(&text, Path::new("sway.yaml"), &|_| None).unwrap();
    assert_eq!(notes_of_suite(&suite), notes);
}

#[test]
fn other_folders_have_no_notes() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = run(folder.path());
    assert_eq!(TrainingHealth::of_checkpoint(folder.path()), None);
    assert_eq!(TrainingHealth::of_checkpoint(&folder.path().join("checkpoints/step_1")), None);
    // Without metrics the optimizer's state remains.
    std::fs::remove_file(folder.path().join("run/metrics.jsonl")).unwrap();
    let health = TrainingHealth::of_checkpoint(&checkpoint).unwrap();
    assert!(health.loss.is_none() && health.gradients.is_some());
}
