//! Optimizers and averages compared with the packages that they come from.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use weightloom_dtensor::{DTensor, DistContext, DistOptions};
use weightloom_gang::{GangOptions, threads};
use weightloom_layout::{Layout, Mesh, Placement};
use weightloom_tensor::Tensor;
use weightloom_train::config::{OptimizerConfig, OptimizerKind};
use weightloom_train::optimizer::{EvaluatedWeights, Optimizer, StepInfo, from_config, initial_states};

use crate::device::{device, from_slice};

#[derive(Deserialize)]
struct Record {
    packages: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    kind: OptimizerKind,
    options: Map<String, Value>,
    shape: Vec<usize>,
    weight_decay: f64,
    rates: Vec<f64>,
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    end: Vec<f64>,
    states: BTreeMap<String, Vec<f64>>,
    average: Option<Vec<f64>>,
}

impl Case {
    fn name(&self) -> String {
        format!("{} {}", self.kind.name(), json!(self.options))
    }

    fn optimizer(&self) -> Box<dyn Optimizer> {
        let config = OptimizerConfig {
            kind: self.kind.clone(),
            options: Some(self.options.clone()),
            ..OptimizerConfig::default()
        };
        from_config(&config).unwrap()
    }

    fn steps(&self) -> impl Iterator<Item = (StepInfo, Tensor)> {
        (1..).zip(self.rates.iter().zip(&self.gradients)).map(|(number, (rate, gradient))| {
            let gradient = from_slice(gradient, &self.shape).unwrap();
            let step = StepInfo {
                number,
                learning_rate: *rate,
                weight_decay: self.weight_decay,
                gradient_scale: 1.0,
            };
            (step, gradient)
        })
    }

    /// Twelve steps of a few roundings of f32 each. In bf16, which has eight bits,
    /// PyTorch itself ends 1e-3 from where its iterations in f32 end.
    fn tolerance(&self) -> f64 {
        let is_half = self.kind == OptimizerKind::Muon && self.options.is_empty();
        if is_half { 5e-3 } else { 1e-6 }
    }
}

fn record() -> Record {
    let record: Record = serde_json::from_str(include_str!("../fixtures/optimizer_packages.json")).unwrap();
    let expected =
        [("torch", "2.15"), ("transformers", "5."), ("lion-pytorch", "0.2"), ("schedulefree", "1.4")];
    for (package, version) in expected {
        assert!(record.packages[package].starts_with(version), "{package}");
    }
    assert_eq!(record.cases.len(), 15);
    record
}

/// The largest difference, relative to the size of the numbers.
fn apart(found: &Tensor, expected: &[f64]) -> f64 {
    let found = found.to_vec::<f32>().unwrap();
    assert_eq!(found.len(), expected.len());
    let pairs = found.into_iter().zip(expected);
    pairs
        .map(|(found, expected)| (f64::from(found) - expected).abs() / (1.0 + expected.abs()))
        .fold(0.0, f64::max)
}

#[test]
fn twelve_steps_are_those_of_the_packages() {
    for case in record().cases {
        let optimizer = case.optimizer();
        let mut weight = from_slice(&case.start, &case.shape).unwrap();
        let mut states = initial_states(&*optimizer, &weight).unwrap();
        for (step, gradient) in case.steps() {
            optimizer.step(&step, &mut weight, &gradient, &mut states).unwrap();
        }
        let mut most = apart(&weight, &case.end);
        let specs = optimizer.states_of("", weight.shape());
        assert!(!case.states.is_empty());
        for (name, expected) in &case.states {
            let place = specs.iter().position(|state| state.name == name).unwrap();
            most = most.max(apart(&states[place], expected));
        }
        assert_eq!(case.average.is_some(), optimizer.evaluated() == EvaluatedWeights::Averaged);
        if let Some(average) = &case.average {
            most = most.max(apart(&optimizer.average(&weight, &states).unwrap(), average));
            assert!(apart(&weight, average) > 1e-3, "the average is not the trained weights");
        }
        println!("{}: {most:.1e}", case.name());
        assert!(most < case.tolerance(), "{}: {most:.1e}", case.name());
    }
}

#[test]
fn shards_are_updated_as_the_whole_parameter_is() {
    for case in record().cases {
        let optimizer = case.optimizer();
        let Some(rule) = optimizer.distributed() else { continue };
        let (ndim, mut most) = (case.shape.len(), 0.0_f64);
        for dims in [[0, 0], [ndim - 1, 0], [0, ndim - 1]] {
            let found = threads::run(4, GangOptions::default(), |gang| {
                let options = DistOptions { device: device(), ..DistOptions::default() };
                let dist = DistContext::with_options(gang, options);
                let mesh = Mesh::new(&[("sdp", 2), ("tp", 2)]).unwrap();
                let layout = Layout::new(mesh, &dims.map(Placement::Shard)).unwrap();
                let share = |whole: &Tensor, layout| DTensor::distribute(&dist, whole, layout).unwrap();
                let whole = from_slice(&case.start, &case.shape).unwrap();
                let mut weight = share(&whole, layout);
                // States have the layouts that an engine gives them.
                let specs = optimizer.states_of("", &whole.shape().clone());
                let mut states: Vec<Tensor> = specs
                    .iter()
                    .map(|spec| weightloom_train::optimizer::initial_state(*spec, &weight).unwrap())
                    .collect();
                for (step, gradient) in case.steps() {
                    let gradient = share(&gradient, layout);
                    rule.update(&step, &mut weight, &gradient, &mut states).unwrap();
                }
                weight.full_tensor().unwrap()
            })
            .unwrap();
            for whole in found {
                most = most.max(apart(&whole, &case.end));
            }
        }
        println!("{}, sharded: {most:.1e}", case.name());
        assert!(most < case.tolerance(), "{}: {most:.1e}", case.name());
    }
}

#[derive(Deserialize)]
struct EightBits {
    packages: BTreeMap<String, String>,
    steps: u64,
    shape: Vec<usize>,
    lr: f64,
    weight_decay: f64,
    end: Vec<f64>,
    codes: BTreeMap<String, Vec<u8>>,
    absmax: BTreeMap<String, Vec<f64>>,
}

#[test]
fn twelve_steps_with_eight_bits_are_those_of_bitsandbytes() {
    let record: EightBits = serde_json::from_str(include_str!("../fixtures/adamw_8bit.json")).unwrap();
    assert!(record.packages["bitsandbytes"].starts_with("0.50"));
    let count: u64 = record.shape.iter().product::<usize>() as u64;
    let tensor = |of: &dyn Fn(u64) -> f64| {
        let numbers: Vec<f32> = (0..count).map(|i| of(i) as f32).collect();
        Tensor::from_slice(&numbers, &record.shape).unwrap()
    };
    let config = OptimizerConfig {
        kind: OptimizerKind::AdamW8bit,
        options: json!({ "min_8bit_size": 256 }).as_object().cloned(),
        ..OptimizerConfig::default()
    };
    let optimizer = from_config(&config).unwrap();
    let mut weight = tensor(&|i| (i * 37 % 501) as f64 / 250.0 - 1.0);
    let mut states = initial_states(&*optimizer, &weight).unwrap();
    for number in 1..=record.steps {
        let gradient = tensor(&|i| {
            let size = 10_f64.powi(-((i % 4) as i32));
            (((i * 7919 + number * 104_729 + i * i * 31) % 2003) as f64 / 2003.0 - 0.5) * size
        });
        let (learning_rate, weight_decay) = (record.lr, record.weight_decay);
        let step = StepInfo { number, learning_rate, weight_decay, gradient_scale: 1.0 };
        optimizer.step(&step, &mut weight, &gradient, &mut states).unwrap();
    }
    let names: Vec<&str> = optimizer.states_of("", weight.shape()).iter().map(|state| state.name).collect();
    assert_eq!(names, ["state1", "state2", "absmax1", "absmax2"]);
    for (state, name) in states.iter().zip(["state1", "state2"]) {
        let found = state.to_vec::<u8>().unwrap();
        let other = found.iter().zip(&record.codes[name]).filter(|(a, b)| a != b).count();
        println!("{name}: {other} of {count} codes differ");
        // Each value is nearest to one code.
        assert!(other == 0, "{name}: {other}");
    }
    let most = apart(&weight, &record.end)
        .max(apart(&states[2], &record.absmax["absmax1"]))
        .max(apart(&states[3], &record.absmax["absmax2"]));
    println!("adamw_8bit: {most:.1e}");
    // Twelve steps of a few roundings of f32 each.
    assert!(most < 1e-6, "{most:.1e}");
}

#[test]
fn options_out_of_range_are_named() {
    let wrong = [
        ("lion", json!({ "betas": [1.0, 0.9] }), "betas.0"),
        ("adafactor", json!({ "clip_threshold": 0.0 }), "clip_threshold"),
        ("adafactor", json!({ "warmup_init": true }), "warmup_init"),
        ("schedule_free_adamw", json!({ "betas": [0.0, 0.9] }), "betas.0"),
        ("muon", json!({ "ns_steps": 0 }), "ns_steps"),
        ("muon", json!({ "momentum": 1.5 }), "momentum"),
    ];
    for (kind, options, key) in wrong {
        let text = format!(
            "model: {{name: llama}}\ndata: {{type: dummy}}\n\
             train: {{max_steps: 2, optimizer: {{kind: {kind}, options: {options}}}}}"
        );
        let errors = weightloom_train::config::read(&text, "run.yaml", &[], &|_| None).unwrap_err();
        assert!(errors.to_string().contains(&format!("train.optimizer.options.{key}")), "{errors}");
    }
    let text = "model: {name: llama}\ndata: {type: dummy}\n\
                train: {max_steps: 2, optimizer: {kind: lion, betas: [0.5, 0.5]}}";
    let errors = weightloom_train::config::read(text, "run.yaml", &[], &|_| None).unwrap_err();
    assert!(errors.to_string().contains("has no effect with `lion`"), "{errors}");
}
