//! The choice of layouts for the operands and results of a call.
//!
//! Each mesh axis is decided independently: of all strategies that the sharding
//! rule allows along the axis, the one that communicates least.

use smallvec::SmallVec;
use weightloom_layout::{Layout, Mesh, Placement, Placements, ReduceOp};

use crate::error::{DTensorError, Result};
use crate::redistribute::Axes;
use crate::registry::Call;
use crate::rule::{Dim, DimList, Rule};

/// The placements of operands and results along one axis.
#[derive(Clone, Debug)]
struct Strategy {
    inputs: SmallVec<[Placement; 4]>,
    outputs: SmallVec<[Placement; 2]>,
    /// Inputs whose gradients are sums over the ranks of the axis.
    lifted: SmallVec<[bool; 4]>,
    label: Option<usize>,
}

/// The layouts of all operands and results.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) inputs: Vec<(Layout, Axes)>,
    pub(crate) outputs: Vec<Layout>,
}

/// The latency of a collective, in bytes.
const LATENCY: f64 = 65536.0;

pub(crate) fn choose(call: &Call<'_>, rule: &Rule, mesh: Mesh) -> Result<Choice> {
    check(call, rule)?;
    let strategies = strategies(rule);
    let mut chosen: Vec<&Strategy> = Vec::with_capacity(mesh.ndim());
    for axis in 0..mesh.ndim() {
        let ways = mesh.axis_size(axis);
        let fits = |strategy: &&Strategy| {
            let Some(label) = strategy.label else { return true };
            let so_far = chosen.iter().enumerate().filter(|(_, chosen)| chosen.label == Some(label));
            let product = so_far.map(|(axis, _)| mesh.axis_size(axis)).product::<usize>() * ways;
            has_one_unit(rule, label) || rule.labels[label].size.is_multiple_of(product)
        };
        let price = |strategy: &Strategy| -> f64 {
            let inputs = call.inputs.iter().zip(&strategy.inputs);
            let moved = inputs.map(|(spec, &wanted)| {
                let bytes = (spec.shape().volume() * spec.dtype().size()) as f64;
                cost(spec.layout().placements()[axis], wanted, bytes, ways as f64)
            });
            moved.sum()
        };
        let mut best: Option<(f64, &Strategy)> = None;
        for strategy in strategies.iter().filter(fits) {
            let price = price(strategy);
            if best.is_none_or(|(least, _)| price < least) {
                best = Some((price, strategy));
            }
        }
        // The first strategy, all replicated, always fits.
        chosen.push(best.map_or(&strategies[0], |(_, strategy)| strategy));
    }
    assemble(call, rule, mesh, &chosen)
}

fn check(call: &Call<'_>, rule: &Rule) -> Result<()> {
    let wrong = |reason: String| Err(DTensorError::Rule { op: call.op, reason });
    if rule.inputs.len() != call.inputs.len() || rule.outputs.len() != call.outputs.len() {
        return wrong(format!(
            "it has {} operands and {} results, but the call has {} and {}",
            rule.inputs.len(),
            rule.outputs.len(),
            call.inputs.len(),
            call.outputs.len()
        ));
    }
    let operands = call.inputs.iter().map(|spec| spec.shape()).zip(&rule.inputs);
    let results = call.outputs.iter().map(|(shape, _)| shape).zip(&rule.outputs);
    for (shape, dims) in operands.chain(results) {
        if shape.ndim() != dims.len() {
            return wrong(format!("it has {} dims for {shape}", dims.len()));
        }
        for (&size, dim) in shape.iter().zip(dims) {
            if let Dim::Label { label, unit } = *dim
                && rule.labels.get(label).is_none_or(|label| label.size * unit != size)
            {
                return wrong(format!("label {label} does not have the size {size} in {shape}"));
            }
        }
    }
    if let Some(problem) = &rule.problem {
        return wrong(problem.clone());
    }
    let missing = |term: usize| term >= rule.terms.len().max(1);
    if rule.labels.iter().any(|label| label.summed.is_some_and(missing)) {
        return wrong("a label is summed in a term that does not exist".to_owned());
    }
    if rule.terms.iter().flatten().any(|&factor| factor >= call.inputs.len()) {
        return wrong("a term names an operand that does not exist".to_owned());
    }
    Ok(())
}

fn dim_of(dims: &DimList, label: usize) -> Option<usize> {
    dims.iter().position(|dim| matches!(dim, Dim::Label { label: here, .. } if *here == label))
}

/// Whether all dims of a label split alike, whatever its size.
fn has_one_unit(rule: &Rule, label: usize) -> bool {
    let mut units = rule.inputs.iter().chain(&rule.outputs).flatten().filter_map(|dim| match *dim {
        Dim::Label { label: here, unit } if here == label => Some(unit),
        _ => None,
    });
    let first = units.next();
    units.all(|unit| Some(unit) == first)
}

fn strategies(rule: &Rule) -> Vec<Strategy> {
    let (inputs, outputs) = (rule.inputs.len(), rule.outputs.len());
    let replicated = Strategy {
        inputs: SmallVec::from_elem(Placement::Replicate, inputs),
        outputs: SmallVec::from_elem(Placement::Replicate, outputs),
        lifted: SmallVec::from_elem(false, inputs),
        label: None,
    };
    let mut all = vec![replicated.clone()];
    for label in 0..rule.labels.len() {
        all.extend(by_label(rule, label, &replicated));
    }
    for op in [ReduceOp::Sum, ReduceOp::Avg] {
        if rule.terms.is_empty() {
            break;
        }
        for factors in factor_choices(&rule.terms) {
            let mut strategy = replicated.clone();
            strategy.outputs.fill(Placement::Partial(op));
            strategy.lifted.fill(true);
            for factor in factors {
                strategy.inputs[factor] = Placement::Partial(op);
                strategy.lifted[factor] = false;
            }
            all.push(strategy);
        }
    }
    for &op in rule.passes.iter().filter(|op| !matches!(op, ReduceOp::Sum | ReduceOp::Avg)) {
        let mut strategy = replicated.clone();
        strategy.inputs.fill(Placement::Partial(op));
        strategy.outputs.fill(Placement::Partial(op));
        all.push(strategy);
    }
    all
}

/// The strategy that shards all dims of a label, if the rule allows it.
fn by_label(rule: &Rule, label: usize, replicated: &Strategy) -> Option<Strategy> {
    let mut strategy = Strategy { label: Some(label), ..replicated.clone() };
    for (input, dims) in rule.inputs.iter().enumerate() {
        match dim_of(dims, label) {
            Some(dim) => strategy.inputs[input] = Placement::Shard(dim),
            None => strategy.lifted[input] = true,
        }
    }
    let summed = rule.labels[label].summed;
    for (output, dims) in rule.outputs.iter().enumerate() {
        strategy.outputs[output] = match (dim_of(dims, label), summed) {
            (Some(dim), _) => Placement::Shard(dim),
            (None, Some(_)) => Placement::Partial(ReduceOp::Sum),
            (None, None) if rule.labels[label].reduced_inside => Placement::Replicate,
            (None, None) => return None,
        };
    }
    let belongs = |factor: usize| {
        let summed = summed.and_then(|term| rule.terms.get(term));
        summed.is_some_and(|factors| factors.contains(&factor))
            || dim_of(&rule.inputs[factor], label).is_some()
    };
    // Other terms must be added once, so they become pending sums.
    let others =
        rule.terms.iter().enumerate().filter(|(term, _)| summed.is_some_and(|summed| summed != *term));
    for (_, factors) in others {
        // A factor of both terms would count twice.
        let &factor = factors.iter().find(|&&factor| !belongs(factor))?;
        strategy.inputs[factor] = Placement::Partial(ReduceOp::Sum);
        strategy.lifted[factor] = false;
    }
    Some(strategy)
}

/// All ways to choose one factor of each term.
fn factor_choices(terms: &[SmallVec<[usize; 2]>]) -> Vec<SmallVec<[usize; 4]>> {
    let mut choices = vec![SmallVec::new()];
    for factors in terms {
        choices = choices
            .iter()
            .flat_map(|chosen| {
                factors.iter().map(move |&factor| {
                    let mut choice: SmallVec<[usize; 4]> = chosen.clone();
                    choice.push(factor);
                    choice
                })
            })
            .collect();
    }
    // A term with two pending factors would be a product of sums.
    choices.retain(|choice: &SmallVec<[usize; 4]>| {
        terms.iter().all(|factors| {
            let mut chosen: SmallVec<[usize; 4]> =
                factors.iter().copied().filter(|f| choice.contains(f)).collect();
            chosen.dedup();
            chosen.len() == 1
        })
    });
    choices
}

/// The approximate cost of a new placement along one axis, in bytes.
fn cost(from: Placement, to: Placement, bytes: f64, ways: f64) -> f64 {
    use Placement::{Partial, Replicate, Shard};
    let others = (ways - 1.0) / ways;
    match (from, to) {
        (from, to) if from == to => 0.0,
        // Nothing is sent, but keeping the placement is still better.
        (Replicate, Shard(_)) => 1.0,
        (Replicate, Partial(ReduceOp::Sum | ReduceOp::Avg)) => 2.0,
        (Replicate, _) => f64::INFINITY,
        (Shard(_), Replicate) => LATENCY + bytes * others,
        (Shard(_), Shard(_)) => LATENCY + bytes * others / ways,
        (Shard(_), Partial(ReduceOp::Sum | ReduceOp::Avg)) => LATENCY + bytes * others + 2.0,
        (Shard(_), Partial(_)) => f64::INFINITY,
        (Partial(_), Replicate) => LATENCY + 2.0 * bytes * others,
        (Partial(_), Shard(_)) => LATENCY + bytes * others,
        (Partial(_), Partial(ReduceOp::Sum | ReduceOp::Avg)) => LATENCY + 2.0 * bytes * others + 2.0,
        (Partial(_), Partial(_)) => f64::INFINITY,
    }
}

fn assemble(call: &Call<'_>, rule: &Rule, mesh: Mesh, chosen: &[&Strategy]) -> Result<Choice> {
    let orders: Vec<SmallVec<[usize; 4]>> =
        (0..rule.labels.len()).map(|label| order(call, rule, chosen, label)).collect();
    let layout = |dims: &DimList, placements: Placements| {
        let names: Vec<(usize, Vec<&str>)> = dims
            .iter()
            .enumerate()
            .filter_map(|(dim, named)| match *named {
                Dim::Label { label, .. } if orders[label].len() > 1 => {
                    Some((dim, orders[label].iter().map(|&axis| mesh.axis_name(axis)).collect()))
                }
                _ => None,
            })
            .collect();
        let listed: Vec<(usize, &[&str])> = names.iter().map(|(dim, names)| (*dim, &names[..])).collect();
        Layout::with_split_order(mesh, &placements, &listed)
    };
    let inputs = rule.inputs.iter().enumerate().map(|(input, dims)| {
        let mut lifted = Axes::default();
        for (axis, strategy) in chosen.iter().enumerate() {
            if strategy.lifted[input] && mesh.axis_size(axis) > 1 {
                lifted.insert(axis);
            }
        }
        let placements = chosen.iter().map(|strategy| strategy.inputs[input]).collect();
        Ok((layout(dims, placements)?, lifted))
    });
    let outputs = rule.outputs.iter().enumerate().map(|(output, dims)| {
        Ok(layout(dims, chosen.iter().map(|strategy| strategy.outputs[output]).collect())?)
    });
    Ok(Choice { inputs: inputs.collect::<Result<_>>()?, outputs: outputs.collect::<Result<_>>()? })
}

/// The order in which axes split a label: that of an operand, or that of the mesh.
fn order(call: &Call<'_>, rule: &Rule, chosen: &[&Strategy], label: usize) -> SmallVec<[usize; 4]> {
    let axes: SmallVec<[usize; 4]> =
        (0..chosen.len()).filter(|&axis| chosen[axis].label == Some(label)).collect();
    let found = call.inputs.iter().zip(&rule.inputs).find_map(|(spec, dims)| {
        let split = spec.layout().split_axes(dim_of(dims, label)?);
        let same = split.len() == axes.len() && split.iter().all(|axis| axes.contains(axis));
        same.then(|| SmallVec::from_slice(split))
    });
    found.unwrap_or(axes)
}
