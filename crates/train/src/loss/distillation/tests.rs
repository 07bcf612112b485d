//! The loss of a distillation compared with torch's.

use weightloom_layout::DType;
use weightloom_nn::IGNORED;
use weightloom_tensor::{CrossEntropy, Tensor};

use super::{DIVERGENCE, DistillationOptions, counted};
use crate::loss::MetricSums;
use crate::loss::trl_fixture::Fixture;

#[test]
fn divergences_and_gradients_are_those_of_torch() {
    let fixture = Fixture::read();
    let cases = fixture.cases.iter().filter(|case| case.kind == "distillation");
    let mut checked = 0;
    for case in cases {
        let options: DistillationOptions = serde_json::from_value(case.options.clone().into()).unwrap();
        let logits = fixture.logits();
        let targets = Tensor::from_slice(&fixture.targets, &[fixture.targets.len()]).unwrap();
        let metrics = MetricSums::new(&[DIVERGENCE]);
        let loss = options.loss(&logits, &fixture.teacher(), &targets, (17.0, Some(&metrics))).unwrap();
        let apart = case.check(&loss, &logits, &metrics);
        println!("{:?}: gradients {apart:.1e} from torch", case.options);
        checked += 1;
    }
    assert_eq!(checked, 3);
}

#[test]
fn a_model_that_is_its_teacher_has_no_divergence() {
    let fixture = Fixture::read();
    let options = DistillationOptions { alpha: 1.0, temperature: 3.0, ..DistillationOptions::default() };
    let targets = Tensor::from_slice(&fixture.targets, &[fixture.targets.len()]).unwrap();
    let all = counted(&targets).unwrap();
    assert_eq!(all.iter().sum::<f32>(), 17.0);
    let loss = options.divergence(&fixture.logits(), &fixture.logits().detach(), &all).unwrap();
    assert!(loss.item::<f32>().unwrap().abs() < 1e-5);
    // Without a share of the divergence it is the cross-entropy.
    let options = DistillationOptions { alpha: 0.0, ..options };
    let (logits, teacher) = (fixture.logits(), fixture.teacher());
    let loss = options.loss(&logits, &teacher, &targets, (17.0, None)).unwrap();
    let ignored = CrossEntropy { ignore_index: Some(IGNORED), ..CrossEntropy::default() };
    let expected = logits.cast(DType::F32).unwrap().cross_entropy(&targets, ignored).unwrap();
    assert!((loss.item::<f32>().unwrap() - expected.item::<f32>().unwrap()).abs() < 1e-6);
}
