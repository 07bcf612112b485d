//! Adapters to compare with: noise of the shape or of the size of a real one.
//!
//! Tensors of an adapter are replaced one after the other, in the order of the
//! decoder's parameters, with `A` before `B`. The holder of the tensors asks for
//! the new values of each: the local backend for its own, a program for those in
//! its memory.

mod torch_rng;

use weightloom_nn::{AdapterTensor, AdapterTensorKind};
use weightloom_tensor::Stream;

use torch_rng::TorchRng;

/// New values for the tensors of an adapter, one after the other.
///
/// ```
/// use weightloom_layout::Shape;
/// use weightloom_nn::{AdapterTensor, AdapterTensorKind};
/// use weightloom_sway::backend::adapter_noise::AdapterNoise;
///
/// let (shape, values) = (Shape::new(&[2, 3])?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// let tensor = AdapterTensor { name: "q_proj", kind: AdapterTensorKind::A, shape: &shape, values: &values };
/// let permuted = AdapterNoise::matched(7).replace(&tensor).expect("every tensor is permuted");
/// let mut sizes: Vec<f32> = permuted.iter().map(|value| value.abs()).collect();
/// sizes.sort_by(f32::total_cmp);
/// assert_eq!(sizes, values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AdapterNoise(Kind);

enum Kind {
    Normal { rng: Box<TorchRng>, std_dev: f64 },
    Matched { seed: u64, tensors: u64 },
}

impl AdapterNoise {
    /// Normal noise in both matrices of each projection, drawn from one generator
    /// as in dlm-sway. The standard deviation is `init_scale · √rank_scale`.
    pub fn normal(seed: u64, init_scale: f64, rank_scale: f64) -> Self {
        let std_dev = init_scale * rank_scale.sqrt();
        Self(Kind::Normal { rng: Box::new(TorchRng::new(seed)), std_dev })
    }

    /// The adapter in a random direction: inputs and outputs of each module are
    /// permuted and their signs flipped at random. Ranks, norms and singular values
    /// of each module's weight change are preserved exactly.
    pub fn matched(seed: u64) -> Self {
        Self(Kind::Matched { seed, tensors: 0 })
    }

    /// The new values of the next tensor; `None` keeps them.
    pub fn replace(&mut self, tensor: &AdapterTensor<'_>) -> Option<Vec<f32>> {
        match &mut self.0 {
            Kind::Normal { rng, std_dev } => {
                let is_matrix = matches!(tensor.kind, AdapterTensorKind::A | AdapterTensorKind::B);
                is_matrix.then(|| {
                    let normals = rng.normals(tensor.values.len());
                    normals.into_iter().map(|x| (f64::from(x) * *std_dev) as f32).collect()
                })
            }
            Kind::Matched { seed, tensors } => {
                *tensors += 1;
                Some(matched(tensor, *seed, *tensors))
            }
        }
    }
}

/// The values of the tensor with this number, permuted and with flipped signs.
fn matched(tensor: &AdapterTensor<'_>, seed: u64, number: u64) -> Vec<f32> {
    let stream = |side: u64| Stream { seed, number: 2 * number + side };
    let (rows, columns) = match tensor.shape[..] {
        [] => (1, 1),
        [length] => (length, 1),
        [rows, ..] => (rows, tensor.values.len() / rows.max(1)),
    };
    // Rows of A and columns of B are the rank dim, which stays as it is.
    match tensor.kind {
        AdapterTensorKind::A => permute(tensor, [rows, columns], None, Some(stream(0))),
        AdapterTensorKind::B
        | AdapterTensorKind::EmbeddingA
        | AdapterTensorKind::EmbeddingB
        | AdapterTensorKind::Bias => permute(tensor, [rows, columns], Some(stream(0)), None),
        AdapterTensorKind::Replacement => permute(tensor, [rows, columns], Some(stream(0)), Some(stream(1))),
    }
}

/// Permutes rows and columns and flips their signs.
fn permute(
    tensor: &AdapterTensor<'_>,
    [rows, columns]: [usize; 2],
    row_stream: Option<Stream>,
    column_stream: Option<Stream>,
) -> Vec<f32> {
    let row_order = signed_permutation(rows, row_stream);
    let column_order = signed_permutation(columns, column_stream);
    let mut values = Vec::with_capacity(tensor.values.len());
    for &(row, row_sign) in &row_order {
        let line = &tensor.values[row * columns..(row + 1) * columns];
        values.extend(column_order.iter().map(|&(column, sign)| line[column] * sign * row_sign));
    }
    values
}

/// A random permutation with random signs: the source index and sign of each
/// element. The identity without a stream.
fn signed_permutation(count: usize, stream: Option<Stream>) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = (0..count).map(|index| (index, 1.0)).collect();
    let Some(stream) = stream else { return order };
    for index in (1..count).rev() {
        let drawn = f64::from(stream.uniform(2 * index as u64)) * (index + 1) as f64;
        order.swap(index, (drawn as usize).min(index));
    }
    for (index, element) in order.iter_mut().enumerate() {
        if stream.uniform(2 * index as u64 + 1) < 0.5 {
            element.1 = -1.0;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_permutations_are_permutations_with_both_signs() {
        for count in [1, 2, 7, 100] {
            let order = signed_permutation(count, Some(Stream { seed: 5, number: 1 }));
            let mut sources: Vec<usize> = order.iter().map(|element| element.0).collect();
            sources.sort_unstable();
            assert_eq!(sources, (0..count).collect::<Vec<_>>());
        }
        let order = signed_permutation(100, Some(Stream { seed: 5, number: 1 }));
        assert!(order.iter().any(|element| element.1 < 0.0) && order.iter().any(|element| element.1 > 0.0));
        assert!(order.iter().enumerate().any(|(index, element)| element.0 != index));
    }
}
