//! The states that an optimizer keeps for a parameter.

use weightloom_dtensor::{DTensor, DTensorError};
use weightloom_errors::Hint;
use weightloom_layout::{DType, Layout, LayoutError, Placement, Shape};
use weightloom_tensor::{Device, Tensor, TensorError};

use super::Optimizer;

/// A state of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StateSpec {
    pub name: &'static str,
    pub form: StateForm,
    pub start: StateStart,
}

/// Shape, dtype and sharding of a state, given those of its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateForm {
    /// As the parameter.
    Elementwise,
    /// As the parameter, without this dim.
    Without(usize),
    /// So many numbers in `f64`, the same on every rank, in host memory.
    Numbers(usize),
    /// A byte for each element of the parameter, sharded alike, in host memory.
    Bytes,
    /// A number in `f32` for each block of so many elements of a row, sharded as the
    /// parameter, in host memory.
    Blocks(usize),
}

/// The first value of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateStart {
    /// Zeros.
    Zero,
    /// A copy of the parameter, for an elementwise state.
    Parameter,
}

impl StateSpec {
    /// A state with the shape of the parameter that starts at zero.
    pub fn zeros(name: &'static str) -> Self {
        Self { name, form: StateForm::Elementwise, start: StateStart::Zero }
    }
}

impl StateForm {
    /// The global shape.
    pub(crate) fn shape(self, parameter: &Shape) -> Shape {
        let dims: Vec<usize> = match self {
            Self::Elementwise | Self::Bytes => return parameter.clone(),
            Self::Without(dim) => {
                parameter.iter().enumerate().filter(|(at, _)| *at != dim).map(|(_, size)| *size).collect()
            }
            Self::Numbers(count) => vec![count],
            Self::Blocks(size) => {
                let mut dims = parameter.to_vec();
                if let Some(row) = dims.last_mut() {
                    *row = row.div_ceil(size);
                }
                dims
            }
        };
        Shape::new(&dims).expect("no larger than the parameter, or a few numbers")
    }

    /// The layout. Axes that shard the dropped dim hold replicas.
    pub(crate) fn layout(self, parameter: Layout) -> Result<Layout, LayoutError> {
        let mesh = parameter.mesh();
        let dropped = match self {
            Self::Elementwise | Self::Bytes | Self::Blocks(_) => return Ok(parameter),
            Self::Without(dim) => dim,
            Self::Numbers(_) => return Ok(Layout::replicated(mesh)),
        };
        let moved = |dim: usize| if dim > dropped { dim - 1 } else { dim };
        let placements: Vec<Placement> = parameter
            .placements()
            .iter()
            .map(|placement| match *placement {
                Placement::Shard(dim) if dim == dropped => Placement::Replicate,
                Placement::Shard(dim) => Placement::Shard(moved(dim)),
                other => other,
            })
            .collect();
        let orders: Vec<(usize, Vec<&str>)> = parameter
            .splits()
            .iter()
            .filter(|split| split.dim != dropped)
            .map(|split| (moved(split.dim), split.axes.iter().map(|&axis| mesh.axis_name(axis)).collect()))
            .collect();
        let orders: Vec<(usize, &[&str])> = orders.iter().map(|(dim, names)| (*dim, &names[..])).collect();
        Layout::with_split_order(mesh, &placements, &orders)
    }

    /// Checks that no block is shared by ranks.
    fn check(self, name: &str, parameter: &DTensor) -> Result<(), BlockError> {
        let Self::Blocks(size) = self else { return Ok(()) };
        let (layout, shape) = (parameter.layout(), parameter.shape());
        let (Some(last), Some(row)) = (shape.ndim().checked_sub(1), shape.last()) else { return Ok(()) };
        let ranks = layout.split_axes(last).iter().map(|&axis| layout.mesh().axis_size(axis)).product();
        let blocks = row / size;
        match blocks.is_multiple_of(ranks) {
            true => Ok(()),
            false => Err(BlockError { name: name.to_owned(), blocks, size, ranks }),
        }
    }

    fn dtype(self, parameter: DType) -> DType {
        match self {
            Self::Elementwise | Self::Without(_) => parameter,
            Self::Numbers(_) => DType::F64,
            Self::Bytes => DType::U8,
            Self::Blocks(_) => DType::F32,
        }
    }

    /// The device: what the host reads in every step is in its memory.
    pub(crate) fn device(self, parameter: Device) -> Device {
        match self {
            Self::Elementwise | Self::Without(_) => parameter,
            _ if parameter == Device::Meta => parameter,
            Self::Numbers(_) | Self::Bytes | Self::Blocks(_) => Device::Cpu,
        }
    }
}

/// A parameter whose ranks would share a block of its states.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot keep states of `{name}` in blocks of {size} elements: {ranks} ranks share rows of {blocks} blocks"
)]
#[allow(missing_docs)]
pub struct BlockError {
    pub name: String,
    pub blocks: usize,
    pub size: usize,
    pub ranks: usize,
}

impl Hint for BlockError {
    fn hint(&self) -> Option<String> {
        Some(format!(
            "use fewer tensor-parallel ranks, so that their number divides {}, or another optimizer",
            self.blocks
        ))
    }
}

impl From<BlockError> for DTensorError {
    fn from(error: BlockError) -> Self {
        TensorError::from_function("optimizer", error).into()
    }
}

/// Where a state is kept, and as what.
#[derive(Clone, Debug)]
pub(crate) struct StateTensor {
    pub(crate) name: &'static str,
    pub(crate) dtype: DType,
    /// The global shape.
    pub(crate) shape: Shape,
    pub(crate) layout: Layout,
    pub(crate) device: Device,
}

/// The states of a parameter on this rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParameterStates {
    pub(crate) kept: Vec<StateTensor>,
    /// The local tensor of each.
    pub(crate) tensors: Vec<Tensor>,
}

impl ParameterStates {
    /// The first states of a parameter.
    pub(crate) fn new(
        optimizer: &dyn Optimizer,
        name: &str,
        parameter: &DTensor,
    ) -> Result<Self, DTensorError> {
        let mut states = Self::default();
        for spec in optimizer.states_of(name, parameter.shape()) {
            let StateSpec { name: state, form, .. } = spec;
            form.check(name, parameter)?;
            let (shape, layout) = (form.shape(parameter.shape()), form.layout(parameter.layout())?);
            let (dtype, device) = (form.dtype(parameter.dtype()), form.device(parameter.device()));
            states.tensors.push(initial_state(spec, parameter)?);
            states.kept.push(StateTensor { name: state, dtype, shape, layout, device });
        }
        Ok(states)
    }

    /// Each state with its local tensor.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&StateTensor, &Tensor)> {
        self.kept.iter().zip(&self.tensors)
    }
}

/// The first value of a state of a distributed parameter: this rank's shard.
pub fn initial_state(spec: StateSpec, parameter: &DTensor) -> Result<Tensor, DTensorError> {
    let StateSpec { form, start, .. } = spec;
    if start == StateStart::Parameter {
        return Ok(copy(parameter.to_local())?);
    }
    let (shape, layout) = (form.shape(parameter.shape()), form.layout(parameter.layout())?);
    let local = layout.local_shape(&shape, parameter.dist().rank())?;
    Ok(Tensor::zeros(form.dtype(parameter.dtype()), &local, form.device(parameter.device()))?)
}

/// The first states of a whole parameter.
pub fn initial_states(optimizer: &dyn Optimizer, parameter: &Tensor) -> Result<Vec<Tensor>, TensorError> {
    let first = |StateSpec { form, start, .. }: StateSpec| match start {
        StateStart::Zero => {
            let (shape, device) = (form.shape(parameter.shape()), form.device(parameter.device()));
            Tensor::zeros(form.dtype(parameter.dtype()), &shape, device)
        }
        StateStart::Parameter => copy(parameter),
    };
    optimizer.states_of("", parameter.shape()).into_iter().map(first).collect()
}

/// The same values in separate memory.
fn copy(tensor: &Tensor) -> Result<Tensor, TensorError> {
    // Bits stay as they are.
    tensor.detach().scale(1.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_layout::Mesh;

    use super::*;

    #[test]
    fn a_state_without_a_dim_is_sharded_as_the_other_dims() {
        let mesh = Mesh::new(&[("sdp", 2), ("tp", 2)]).unwrap();
        let (shard, replicate) = (Placement::Shard, Placement::Replicate);
        let of = |placements: [Placement; 2], dropped: usize| {
            let layout = Layout::new(mesh, &placements).unwrap();
            StateForm::Without(dropped).layout(layout).unwrap().placements().to_vec()
        };
        assert_eq!(of([shard(0), shard(1)], 0), [replicate, shard(0)]);
        assert_eq!(of([shard(0), shard(1)], 1), [shard(0), replicate]);
        assert_eq!(of([shard(2), replicate], 1), [shard(1), replicate]);
        let shape = Shape::new(&[4, 6, 8]).unwrap();
        assert_eq!(&StateForm::Without(1).shape(&shape)[..], [4, 8]);
        assert_eq!(&StateForm::Numbers(2).shape(&shape)[..], [2]);
    }

    #[test]
    fn ranks_cannot_share_a_block() {
        use std::sync::Arc;

        use weightloom_dtensor::{DistContext, DistOptions};

        let dist = DistContext::dry_run(0, DistOptions::default());
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let check = |columns: usize, dim: usize| {
            let layout = Layout::new(mesh, &[Placement::Shard(dim)]).unwrap();
            let shape = Shape::new(&[2, columns]).unwrap();
            let local =
                Tensor::zeros(DType::F32, &layout.local_shape(&shape, 0).unwrap(), Device::Meta).unwrap();
            let value = DTensor::from_local(&Arc::clone(&dist), local, layout, &shape).unwrap();
            StateForm::Blocks(256).check("down_proj", &value)
        };
        assert_eq!([check(512, 1), check(256, 0), check(768, 0)], [Ok(()), Ok(()), Ok(())]);
        let error = check(768, 1).unwrap_err();
        let expected =
            "cannot keep states of `down_proj` in blocks of 256 elements: 2 ranks share rows of 3 blocks";
        assert_eq!(error.to_string(), expected);
        assert!(error.hint().unwrap().contains("divides 3"));
    }

    #[test]
    fn axes_that_split_a_dim_in_another_order_keep_it() {
        let mesh = Mesh::new(&[("sdp", 2), ("tp", 2)]).unwrap();
        let both = [Placement::Shard(1); 2];
        let layout = Layout::with_split_order(mesh, &both, &[(1, &["tp", "sdp"])]).unwrap();
        let found = StateForm::Without(0).layout(layout).unwrap();
        let expected =
            Layout::with_split_order(mesh, &[Placement::Shard(0); 2], &[(0, &["tp", "sdp"])]).unwrap();
        assert_eq!(found, expected);
        assert_eq!(StateForm::Numbers(1).layout(layout).unwrap(), Layout::replicated(mesh));
    }
}
