//! Losses of preferences compared with TRL's.

use serde::de::DeserializeOwned;
use weightloom_layout::DType;
use weightloom_nn::IGNORED;
use weightloom_tensor::{Device, Tensor, backward};

use super::dpo::DpoOptions;
use super::kto::KtoOptions;
use super::orpo::OrpoOptions;
use super::simpo::SimpoOptions;
use super::{Objective, completion_sums, log_sigmoid, token_logprobs, value};
use crate::engine::{MicroBatch, PreferenceRows};
use crate::loss::trl_fixture::{Case, Fixture};
use crate::loss::{BatchTotals, LossBatch, MetricSums};

fn check<T: Objective + DeserializeOwned>(fixture: &Fixture, case: &Case) -> f64 {
    let objective: T = serde_json::from_value(case.options.clone().into()).unwrap();
    let needs = objective.needs();
    let preferences = PreferenceRows { labels: case.labels.clone(), ..PreferenceRows::default() };
    let rows = MicroBatch { preferences: Some(Box::new(preferences)), ..fixture.rows() };
    let totals = BatchTotals::of(std::slice::from_ref(&rows), needs.documents);
    let metrics = MetricSums::new(needs.metrics);
    let batch = LossBatch {
        rows: Some(&rows),
        totals,
        reference: Some(&fixture.reference),
        divergence: fixture.divergence(),
        teacher: None,
        metrics: Some(&metrics),
    };
    let logits = fixture.logits();
    let loss = value(&objective, &logits, &rows, (&batch, totals.examples as f64)).unwrap();
    case.check(&loss, &logits, &metrics)
}

#[test]
fn losses_metrics_and_gradients_are_those_of_trl() {
    let fixture = Fixture::read();
    let mut checked = 0;
    for case in &fixture.cases {
        let apart = match case.kind.as_str() {
            "dpo" => check::<DpoOptions>(&fixture, case),
            "orpo" => check::<OrpoOptions>(&fixture, case),
            "simpo" => check::<SimpoOptions>(&fixture, case),
            "kto" => check::<KtoOptions>(&fixture, case),
            _ => continue,
        };
        println!("{} {:?}: gradients {apart:.1e} from TRL", case.kind, case.options);
        checked += 1;
    }
    assert_eq!(checked, 8);
}

#[test]
fn a_loss_does_not_depend_on_micro_batches() {
    let fixture = Fixture::read();
    let objective = OrpoOptions::default();
    let whole = fixture.rows();
    let totals = BatchTotals::of(std::slice::from_ref(&whole), objective.needs().documents);
    assert_eq!(
        (totals.examples, totals.targets, totals.chosen_targets, totals.chosen_tokens),
        (3, 17, 8, 11)
    );
    let batch = LossBatch { totals, ..LossBatch::default() };
    let of = |rows: &MicroBatch, logits: &Tensor| {
        value(&objective, logits, rows, (&batch, 3.0)).unwrap().item::<f32>().unwrap()
    };
    let all = of(&whole, &fixture.logits());
    let [_, time, _] = fixture.shape;
    let parts = [0..2, 2..6].map(|part| {
        let tokens = part.start * time..part.end * time;
        let inputs = whole.inputs[tokens.clone()].to_vec();
        let targets = whole.targets[tokens.clone()].to_vec();
        let rows = MicroBatch { rows: part.len(), inputs, targets, ..MicroBatch::default() };
        of(&rows, &fixture.logits().detach().narrow(0, tokens.start, tokens.len()).unwrap())
    });
    assert!((parts[0] + parts[1] - all).abs() < 1e-6, "{parts:?} {all}");
}

#[test]
fn padding_adds_nothing() {
    let objective = DpoOptions::default();
    let rows = MicroBatch {
        rows: 2,
        inputs: vec![0; 6],
        targets: vec![IGNORED; 6],
        preferences: None,
        documents: None,
    };
    let logits = Tensor::zeros(DType::F32, &[6, 4], Device::Cpu).unwrap().requires_grad();
    let metrics = MetricSums::new(objective.needs().metrics);
    let batch = LossBatch { metrics: Some(&metrics), ..LossBatch::default() };
    let loss = value(&objective, &logits, &rows, (&batch, 5.0)).unwrap();
    assert_eq!(loss.item::<f32>().unwrap(), 0.0);
    let gradients = backward([(loss, None)]).unwrap();
    assert!(gradients.of(&logits).unwrap().to_vec::<f32>().unwrap().iter().all(|&x| x == 0.0));
    assert!(metrics.means(&metrics.flat()).is_empty());
    let orpo = value(&OrpoOptions::default(), &logits, &rows, (&batch, 5.0)).unwrap();
    assert_eq!(orpo.item::<f32>().unwrap(), 0.0);
    let gradients = backward([(orpo, None)]).unwrap();
    assert!(gradients.of(&logits).unwrap().to_vec::<f32>().unwrap().iter().all(|&x| x == 0.0));
}

#[test]
fn equal_models_have_half_the_gradient_of_a_lost_pair() {
    let x = Tensor::from_slice(&[0.0f32, 80.0, -80.0], &[3]).unwrap().requires_grad();
    let value = log_sigmoid(&x).unwrap();
    assert_eq!(value.to_vec::<f32>().unwrap(), [-std::f32::consts::LN_2, 0.0, -80.0]);
    let gradients = backward([(value.sum_all().unwrap(), None)]).unwrap();
    let found = gradients.of(&x).unwrap().to_vec::<f32>().unwrap();
    assert!((found[0] - 0.5).abs() < 1e-6 && found[1].abs() < 1e-6 && (found[2] - 1.0).abs() < 1e-6);
}

#[test]
fn a_target_outside_the_vocabulary_is_an_error() {
    let logits = Tensor::zeros(DType::F32, &[2, 4], Device::Cpu).unwrap();
    let error = token_logprobs(&logits, &[1, 4]).unwrap_err();
    assert!(error.to_string().contains('4'), "{error}");
    assert!(token_logprobs(&logits, &[1]).is_err());
    let rows = MicroBatch { rows: 1, inputs: vec![0, 1], targets: vec![1, IGNORED], ..MicroBatch::default() };
    let sums = completion_sums(&token_logprobs(&logits, &rows.targets).unwrap(), &rows).unwrap();
    let found = sums.to_vec::<f32>().unwrap();
    assert!((found[0] + 4f32.ln()).abs() < 1e-6);
}
