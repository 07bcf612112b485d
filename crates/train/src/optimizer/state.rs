//! The states that an optimizer keeps for a parameter.

use weightloom_dtensor::{DTensor, DTensorError};
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
            Self::Elementwise => return parameter.clone(),
            Self::Without(dim) => {
                parameter.iter().enumerate().filter(|(at, _)| *at != dim).map(|(_, size)| *size).collect()
            }
            Self::Numbers(count) => vec![count],
        };
        Shape::new(&dims).expect("no larger than the parameter, or a few numbers")
    }

    /// The layout. Axes that shard the dropped dim hold replicas.
    pub(crate) fn layout(self, parameter: Layout) -> Result<Layout, LayoutError> {
        let mesh = parameter.mesh();
        let dropped = match self {
            Self::Elementwise => return Ok(parameter),
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

    fn dtype(self, parameter: DType) -> DType {
        match self {
            Self::Elementwise | Self::Without(_) => parameter,
            Self::Numbers(_) => DType::F64,
        }
    }

    /// The device: numbers are read in every step, for which a GPU would be waited for.
    pub(crate) fn device(self, parameter: Device) -> Device {
        match self {
            Self::Numbers(_) if parameter != Device::Meta => Device::Cpu,
            _ => parameter,
        }
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
            let StateSpec { name, form, .. } = spec;
            let (shape, layout) = (form.shape(parameter.shape()), form.layout(parameter.layout())?);
            let (dtype, device) = (form.dtype(parameter.dtype()), form.device(parameter.device()));
            states.tensors.push(initial_state(spec, parameter)?);
            states.kept.push(StateTensor { name, dtype, shape, layout, device });
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
