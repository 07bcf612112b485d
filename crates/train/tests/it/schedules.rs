//! Learning rates compared with those of transformers, step by step.

use serde::Deserialize;
use weightloom_train::config::ScheduleConfig;
use weightloom_train::schedule::LearningRate;

#[derive(Deserialize)]
struct Record {
    transformers: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    schedule: ScheduleConfig,
    total: u64,
    rates: Vec<f64>,
}

#[test]
fn rates_are_those_of_transformers() {
    let record: Record = serde_json::from_str(include_str!("../fixtures/schedules.json")).unwrap();
    assert!(record.transformers.starts_with("5."), "{}", record.transformers);
    assert_eq!(record.cases.len(), 62);
    for Case { schedule, total, rates } in record.cases {
        let rate = LearningRate::new(1.0, &schedule, total).unwrap();
        assert_eq!(rates.len() as u64, total);
        for (step, expected) in (1..).zip(rates) {
            let found = rate.at(step);
            // The same formula in the same order; only cosines may differ.
            assert!((found - expected).abs() < 1e-15, "{schedule:?}, step {step}: {found} {expected}");
        }
    }
}
