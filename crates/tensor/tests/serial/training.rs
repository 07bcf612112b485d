//! A small transformer learns, and learns the same every time.

use weightloom_layout::{DType, Shape};
use weightloom_tensor::{
    AdamW, Attention, CrossEntropy, Moments, RopeStyle, Stream, Tensor, TensorError, backward, global_norm,
    threads,
};

const VOCABULARY: usize = 11;
const HIDDEN: usize = 16;
const HEADS: usize = 2;
const TIME: usize = 12;
const BATCH: usize = 4;

struct Model {
    parameters: Vec<Tensor>,
}

impl Model {
    fn new() -> Result<Self, TensorError> {
        let shapes: [&[usize]; 8] = [
            &[VOCABULARY, HIDDEN],
            &[HIDDEN],
            &[HIDDEN, 3 * HIDDEN],
            &[HIDDEN, HIDDEN],
            &[HIDDEN],
            &[HIDDEN, 4 * HIDDEN],
            &[2 * HIDDEN, HIDDEN],
            &[HIDDEN, VOCABULARY],
        ];
        let parameters = shapes.iter().zip(0..).map(|(dims, number)| {
            let stream = Stream { seed: 42, number };
            let drawn = Tensor::normal(DType::F32, dims, stream, 0)?.scale(0.2)?;
            Ok(if dims.len() == 1 { drawn.scale(0.0)?.exp()? } else { drawn })
        });
        Ok(Self { parameters: parameters.collect::<Result<_, TensorError>>()? })
    }

    fn loss(p: &[Tensor], tokens: &Tensor, targets: &Tensor) -> Result<Tensor, TensorError> {
        let width = HIDDEN / HEADS;
        let angles: Vec<f64> = (0..TIME)
            .flat_map(|t| (0..width / 2).map(move |i| t as f64 * 100f64.powf(-2.0 * i as f64 / width as f64)))
            .collect();
        let angles = Tensor::from_slice(&angles, &[TIME, width / 2])?;
        let heads = |x: Tensor| x.reshape(&Shape::new(&[BATCH, TIME, HEADS, width])?)?.transpose(1, 2);
        let x = p[0].embedding(tokens)?;
        let qkv = x.rms_norm(&p[1], 1e-6)?.matmul(&p[2])?;
        let part = |n: usize| heads(qkv.narrow(1, n * HIDDEN, HIDDEN)?);
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let turned = |part: Tensor| part.rope(&cos, &sin, RopeStyle::Half);
        let (q, k) = (turned(part(0)?)?, turned(part(1)?)?);
        let attended = q.attention(&k, &part(2)?, Attention { causal: true, ..Attention::default() })?;
        let attended = attended.transpose(1, 2)?.reshape(&Shape::new(&[BATCH * TIME, HIDDEN])?)?;
        let x = x.add(&attended.matmul(&p[3])?)?;
        let wide = x.rms_norm(&p[4], 1e-6)?.matmul(&p[5])?;
        let gated = wide.narrow(1, 0, 2 * HIDDEN)?.swiglu(&wide.narrow(1, 2 * HIDDEN, 2 * HIDDEN)?)?;
        let x = x.add(&gated.matmul(&p[6])?)?;
        x.matmul(&p[7])?.cross_entropy(targets, CrossEntropy::default())
    }
}

/// Sequences in which each token is the one before the last plus one: the next
/// depends on the token two positions before.
fn sequences() -> (Tensor, Tensor) {
    let (mut tokens, mut targets) = (Vec::<i64>::new(), Vec::<i64>::new());
    for row in 0..BATCH {
        let mut sequence = vec![row as i64 % 11, (3 * row as i64 + 5) % 11];
        for t in 2..=TIME {
            sequence.push((sequence[t - 2] + 1) % VOCABULARY as i64);
        }
        tokens.extend(&sequence[..TIME]);
        targets.extend(&sequence[1..]);
    }
    let count = BATCH * TIME;
    (Tensor::from_slice(&tokens, &[count]).unwrap(), Tensor::from_slice(&targets, &[count]).unwrap())
}

fn train(steps: u64) -> Result<Vec<f32>, TensorError> {
    let mut model = Model::new()?;
    let mut moments = model.parameters.iter().map(Moments::zero).collect::<Result<Vec<_>, _>>()?;
    let (tokens, targets) = sequences();
    let options = AdamW { learning_rate: 0.01, ..AdamW::default() };
    let mut losses = Vec::new();
    for number in 1..=steps {
        let parameters: Vec<Tensor> = model.parameters.iter().map(Tensor::requires_grad).collect();
        let loss = Model::loss(&parameters, &tokens, &targets)?;
        losses.push(loss.item::<f32>()?);
        let gradients = backward([(loss, None)])?;
        let all: Vec<&Tensor> = parameters.iter().map(|p| gradients.of(p).unwrap()).collect();
        let clip = (1.0 / global_norm(&all)?).min(1.0);
        for ((parameter, gradient), moments) in model.parameters.iter_mut().zip(all).zip(&mut moments) {
            options.step(number, parameter, &gradient.scale(clip)?, moments)?;
        }
    }
    Ok(losses)
}

#[test]
fn a_small_transformer_learns() {
    let _serial = crate::serial();
    let losses = train(150).unwrap();
    let chance = (VOCABULARY as f32).ln();
    assert!((losses[0] - chance).abs() < 1.0, "starts near chance: {}", losses[0]);
    let last = losses[losses.len() - 1];
    assert!(last < 0.1 * chance, "ends well below chance: {last}");
}

#[test]
fn training_gives_the_same_bits_every_time() {
    let _serial = crate::serial();
    let bits = |losses: Vec<f32>| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    let first = bits(train(20).unwrap());
    for count in [1, 2, 3] {
        assert_eq!(bits(threads::at_most(count, || train(20).unwrap())), first);
    }
}
