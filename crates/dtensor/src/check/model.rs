//! The transformer and its training loop.

use std::sync::Arc;

use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{
    AdamW, Attention, CrossEntropy, Device, Moments, RopeStyle, Stream, Tensor, TensorError,
};

use super::Arrangement;
use crate::dist_context::DistContext;
use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};
use crate::gradients::backward;
use crate::ops::global_norm;

const LAYERS: usize = 2;
const VOCABULARY: usize = 30;
const HIDDEN: usize = 32;
const HEADS: usize = 8;
const KV_HEADS: usize = 4;
const WIDTH: usize = HIDDEN / HEADS;
const INNER: usize = 48;
const BATCH: usize = 6;
const TIME: usize = 10;

/// Names and shapes of all parameters.
fn parameters() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![("embed".to_owned(), vec![VOCABULARY, HIDDEN])];
    for layer in 0..LAYERS {
        let of_layer: [(&str, &[usize]); 9] = [
            ("norm1", &[HIDDEN]),
            ("q", &[HEADS * WIDTH, HIDDEN]),
            ("k", &[KV_HEADS * WIDTH, HIDDEN]),
            ("v", &[KV_HEADS * WIDTH, HIDDEN]),
            ("o", &[HIDDEN, HEADS * WIDTH]),
            ("norm2", &[HIDDEN]),
            ("gate", &[INNER, HIDDEN]),
            ("up", &[INNER, HIDDEN]),
            ("down", &[HIDDEN, INNER]),
        ];
        all.extend(of_layer.map(|(name, dims)| (format!("layers.{layer}.{name}"), dims.to_vec())));
    }
    all.extend([("norm".to_owned(), vec![HIDDEN]), ("head".to_owned(), vec![VOCABULARY, HIDDEN])]);
    all
}

fn shape(dims: &[usize]) -> Result<Shape> {
    Ok(Shape::new(dims).map_err(TensorError::from)?)
}

struct Model<'a> {
    arrangement: &'a Arrangement,
    parameters: Vec<(String, DTensor)>,
    cos: DTensor,
    sin: DTensor,
}

impl<'a> Model<'a> {
    /// Initial values are the same in every arrangement.
    fn new(dist: &Arc<DistContext>, arrangement: &'a Arrangement) -> Result<Self> {
        let mut all = Vec::new();
        for (number, (name, dims)) in parameters().into_iter().enumerate() {
            let layout = arrangement.plan.layout_of(&name);
            let stream = Stream { seed: 11, number: number as u64 };
            let value = DTensor::normal(dist, DType::F32, &shape(&dims)?, layout, stream)?.scale(0.2)?;
            let value = if dims.len() == 1 {
                let one = Tensor::full(1.0, DType::F32, &dims, Device::Cpu)?;
                value.add(&DTensor::distribute(dist, &one, layout)?)?
            } else {
                value
            };
            all.push((name, value.detach().requires_grad()));
        }
        let angles: Vec<f32> = (0..TIME)
            .flat_map(|t| (0..WIDTH / 2).map(move |i| t as f32 / 100f32.powf(i as f32 / (WIDTH / 2) as f32)))
            .collect();
        let angles = Tensor::from_slice(&angles, &[TIME, WIDTH / 2])?;
        let replicated = Layout::replicated(arrangement.plan.mesh());
        let spread = |x: Tensor| DTensor::distribute(dist, &x, replicated);
        Ok(Self { arrangement, parameters: all, cos: spread(angles.cos()?)?, sin: spread(angles.sin()?)? })
    }

    fn weight(&self, name: &str) -> Result<DTensor> {
        let found = self.parameters.iter().find(|(found, _)| found == name);
        let missing = || DTensorError::UnknownName { pattern: name.to_owned(), near: None };
        self.arrangement.plan.used(name, &found.ok_or_else(missing)?.1)
    }

    fn heads(&self, x: &DTensor, count: usize) -> Result<DTensor> {
        x.reshape(&shape(&[BATCH, TIME, count, WIDTH])?)?.transpose(1, 2)
    }

    fn attention(&self, layer: usize, x: DTensor) -> Result<DTensor> {
        let module = format!("layers.{layer}.attention");
        let x = self.arrangement.plan.enter(&module, x)?;
        let project = |name: &str, count: usize| {
            self.heads(&x.linear(&self.weight(&format!("layers.{layer}.{name}"))?, None, None)?, count)
        };
        let turn = |x: DTensor| x.rope(&self.cos, &self.sin, RopeStyle::Half);
        let (q, k) = (turn(project("q", HEADS)?)?, turn(project("k", KV_HEADS)?)?);
        let causal = Attention { causal: true, ..Attention::default() };
        let seen = q.attention(&k, &project("v", KV_HEADS)?, causal)?;
        let seen = seen.transpose(1, 2)?.reshape(&shape(&[BATCH, TIME, HEADS * WIDTH])?)?;
        let out = seen.linear(&self.weight(&format!("layers.{layer}.o"))?, None, None)?;
        self.arrangement.plan.leave(&module, out)
    }

    fn mlp(&self, layer: usize, x: DTensor) -> Result<DTensor> {
        let module = format!("layers.{layer}.mlp");
        let x = self.arrangement.plan.enter(&module, x)?;
        let project =
            |name: &str, x: &DTensor| x.linear(&self.weight(&format!("layers.{layer}.{name}"))?, None, None);
        let inner = project("gate", &x)?.swiglu(&project("up", &x)?)?;
        self.arrangement.plan.leave(&module, project("down", &inner)?)
    }

    fn loss(&self, tokens: &DTensor, targets: &DTensor) -> Result<DTensor> {
        let plan = &self.arrangement.plan;
        let norm = |name: &str, x: &DTensor| x.rms_norm(&self.weight(name)?, 1e-5);
        let mut x = plan.leave("embed", self.weight("embed")?.embedding(tokens)?)?;
        for layer in 0..LAYERS {
            x = x.add(&self.attention(layer, norm(&format!("layers.{layer}.norm1"), &x)?)?)?;
            x = x.add(&self.mlp(layer, norm(&format!("layers.{layer}.norm2"), &x)?)?)?;
        }
        let x = plan.enter("head", norm("norm", &x)?)?;
        let rows = x.reshape(&shape(&[BATCH * TIME, HIDDEN])?)?;
        let logits = rows.linear(&self.weight("head")?, None, None)?;
        let options = CrossEntropy { ignore_index: Some(-1), ..CrossEntropy::default() };
        logits.cross_entropy(&targets.reshape(&shape(&[BATCH * TIME])?)?, options)
    }
}

/// A batch of sequences in which each token determines the next; some targets are
/// ignored.
fn batch(dist: &Arc<DistContext>, arrangement: &Arrangement, step: usize) -> Result<[DTensor; 2]> {
    let stream = Stream { seed: 5, number: step as u64 };
    let mut tokens = Vec::with_capacity(BATCH * TIME);
    let mut targets = Vec::with_capacity(BATCH * TIME);
    for row in 0..BATCH {
        let mut token = (stream.uniform(row as u64) * VOCABULARY as f32) as i64;
        for position in 0..TIME {
            tokens.push(token);
            token = (token * 7 + 3) % VOCABULARY as i64;
            targets.push(if (row + position) % 9 == 4 { -1 } else { token });
        }
    }
    let layout = Layout::new(arrangement.plan.mesh(), &arrangement.batch)?;
    let spread =
        |values: &[i64]| DTensor::distribute(dist, &Tensor::from_slice(values, &[BATCH, TIME])?, layout);
    Ok([spread(&tokens)?, spread(&targets)?])
}

/// Trains for some steps and returns the losses.
pub fn train(dist: &Arc<DistContext>, arrangement: &Arrangement, steps: usize) -> Result<Vec<f32>> {
    let mut model = Model::new(dist, arrangement)?;
    let names: Vec<&str> = model.parameters.iter().map(|(name, _)| name.as_str()).collect();
    let modules: Vec<String> = (0..LAYERS)
        .flat_map(|layer| ["attention", "mlp"].map(|module| format!("layers.{layer}.{module}")))
        .chain(["embed".to_owned(), "head".to_owned()])
        .collect();
    arrangement.plan.check(&names, &modules.iter().map(String::as_str).collect::<Vec<_>>())?;
    let zero = |(_, parameter): &(String, DTensor)| Moments::zero(parameter.to_local());
    let mut moments: Vec<Moments> = model.parameters.iter().map(zero).collect::<Result<_, _>>()?;
    let optimizer = AdamW { learning_rate: 1e-3, ..AdamW::default() };
    let mut losses = Vec::with_capacity(steps);
    for step in 0..steps {
        let [tokens, targets] = batch(dist, arrangement, step)?;
        let loss = model.loss(&tokens, &targets)?;
        losses.push(loss.detach().item::<f32>()?);
        let gradients = backward([(loss, None)])?;
        let mut all = Vec::with_capacity(model.parameters.len());
        for (name, parameter) in &model.parameters {
            let missing = || DTensorError::UnknownName { pattern: name.clone(), near: None };
            all.push(gradients.of(parameter).ok_or_else(missing)??);
        }
        let norm = global_norm(&all.iter().collect::<Vec<_>>())?;
        let clip = (1.0 / norm).min(1.0);
        for (((_, parameter), gradient), moments) in model.parameters.iter_mut().zip(&all).zip(&mut moments) {
            let gradient = gradient.scale(clip)?;
            parameter
                .change_local(|local| optimizer.step(step as u64 + 1, local, gradient.to_local(), moments))?;
        }
    }
    Ok(losses)
}
