//! Gradients of trained parameters, which add up where they are held, are those
//! of plain ones and those of whole tensors.
//!
//! All numbers are small integers, which even bf16 adds up without rounding. So
//! whatever the order of sums, not a bit may differ.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, DTensorError, DistContext, Release, Role, backward, recompute};
use weightloom_gang::{Gang, GangOptions, solo, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};
use weightloom_tensor::Tensor;

const ROWS: usize = 7;
const INPUTS: usize = 3;
const OUTPUTS: usize = 5;

/// Integers from -2 to 2 that look like chance.
fn integers(dims: &[usize], seed: usize) -> Tensor {
    let count: usize = dims.iter().product();
    let values: Vec<f32> =
        (0..count).map(|at| ((at * 7 + seed * 13 + at * at * 3) % 5) as f32 - 2.0).collect();
    Tensor::from_slice(&values, dims).unwrap()
}

/// Every layout of a matrix without pending sums.
fn layouts(mesh: Mesh) -> Vec<Layout> {
    let choices = [Placement::Replicate, Placement::Shard(0), Placement::Shard(1)];
    let mut all: Vec<Vec<Placement>> = vec![vec![]];
    for _ in 0..mesh.ndim() {
        all = all.iter().flat_map(|begun| choices.map(|next| [begun.clone(), vec![next]].concat())).collect();
    }
    let mut found: Vec<Layout> = all.iter().map(|list| Layout::new(mesh, list).unwrap()).collect();
    if mesh.ndim() == 2 {
        // As tensor parallelism followed by FSDP cuts.
        found.push(Layout::with_split_order(mesh, &[Placement::Shard(0); 2], &[(0, &["b", "a"])]).unwrap());
    }
    found
}

/// How a parameter is used in a pass.
#[derive(Clone, Copy, Debug)]
enum Uses {
    /// As it is held, without being asked for.
    Plain,
    /// Moved once.
    Once,
    /// Moved once, and used by two operations.
    Shared,
    /// Moved twice.
    Twice,
    /// Moved inside of a region that is computed again.
    Again,
}

const USES: [Uses; 5] = [Uses::Plain, Uses::Once, Uses::Shared, Uses::Twice, Uses::Again];

/// One way to use a parameter.
#[derive(Clone, Copy, Debug)]
struct Case {
    held: Layout,
    used: Layout,
    rows: Layout,
    uses: Uses,
    release: Release,
    dtype: DType,
}

/// `sum((x · wᵀ) ∘ c)`, and for some uses `sum(w ∘ k)` beside it: in the first,
/// ranks with other rows use the whole weight; in the second, each its part.
fn losses(case: &Case, x: &DTensor, w: &DTensor) -> Result<Vec<DTensor>, DTensorError> {
    let constant = |dims: &[usize], seed: usize| {
        let whole = integers(dims, seed).cast(case.dtype)?;
        DTensor::distribute(x.dist(), &whole, Layout::replicated(case.held.mesh()))
    };
    let (c, k) = (constant(&[ROWS, OUTPUTS], 5)?, constant(&[OUTPUTS, INPUTS], 6)?);
    let product = |w: &DTensor| x.linear(w, None, None)?.mul(&c)?.sum_all();
    let alone = |w: &DTensor| w.mul(&k)?.sum_all();
    let moved = || w.used(case.used, case.dtype, case.release);
    Ok(match case.uses {
        Uses::Plain => vec![product(w)?, alone(w)?],
        Uses::Once => vec![product(&moved()?)?],
        Uses::Shared => {
            let moved = moved()?;
            vec![product(&moved)?, alone(&moved)?]
        }
        Uses::Twice => vec![product(&moved()?)?, alone(&moved()?)?],
        Uses::Again => {
            let (weight, c, case) = (w.clone(), c.clone(), *case);
            recompute(std::slice::from_ref(x), std::slice::from_ref(w), move |x| {
                let moved = weight.used(case.used, case.dtype, case.release)?;
                Ok(vec![x[0].linear(&moved, None, None)?.mul(&c)?.sum_all()?])
            })?
        }
    })
}

/// What the gradients of one pass are, from whole tensors.
fn expected(case: &Case) -> [Tensor; 2] {
    let c = integers(&[ROWS, OUTPUTS], 5);
    let of_x = c.matmul(&integers(&[OUTPUTS, INPUTS], 2)).unwrap();
    let of_w = c.transpose(0, 1).unwrap().matmul(&integers(&[ROWS, INPUTS], 1)).unwrap();
    match case.uses {
        Uses::Once | Uses::Again => [of_x, of_w],
        Uses::Plain | Uses::Shared | Uses::Twice => {
            [of_x, of_w.add(&integers(&[OUTPUTS, INPUTS], 6)).unwrap()]
        }
    }
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.cast(DType::F32).unwrap().to_vec().unwrap()
}

fn check(dist: &Arc<DistContext>, case: &Case) {
    let spread = |dims: &[usize], seed: usize, dtype: DType, layout: Layout| {
        DTensor::distribute(dist, &integers(dims, seed).cast(dtype).unwrap(), layout).unwrap()
    };
    let x = spread(&[ROWS, INPUTS], 1, case.dtype, case.rows).requires_grad();
    // What is used as it is held has the dtype of the computation.
    let kept = if matches!(case.uses, Uses::Plain) { case.dtype } else { DType::F32 };
    let plain = spread(&[OUTPUTS, INPUTS], 2, kept, case.held);
    let [of_x, of_w] = expected(case);
    let pass = |w: &DTensor| {
        let losses = losses(case, &x, w).unwrap();
        backward(losses.into_iter().map(|loss| (loss, None))).unwrap()
    };
    let same = |found: &DTensor, expected: &Tensor, what: &str| {
        let whole = found.full_tensor().unwrap();
        assert_eq!(values(&whole), values(expected), "{what} of {case:?}, overlap {}", dist.overlaps());
    };
    // Plain parameters.
    let ordinary = plain.requires_grad();
    let gradients = pass(&ordinary);
    same(&gradients.of(&ordinary).unwrap().unwrap(), &of_w, "the gradient of a plain weight");
    // Trained ones, once.
    let trained = plain.parameter(Role::Trained);
    let gradients = pass(&trained);
    assert!(gradients.of(&trained).is_none(), "{case:?}: it is where the parameter is");
    same(&gradients.of(&x).unwrap().unwrap(), &of_x, "the gradient of x");
    let found = trained.take_gradient().unwrap().unwrap();
    assert_eq!(found.layout(), case.held, "{case:?}");
    // What nothing was added to may be as narrow as it came.
    let summed = matches!(case.uses, Uses::Twice);
    assert!(found.dtype() == kept || (found.dtype() == case.dtype && !summed), "{case:?}");
    same(&found, &of_w, "the gradient of a trained weight");
    assert!(trained.take_gradient().unwrap().is_none(), "{case:?}: it was taken");
    // Over three passes, of which one was summed on the way.
    (0..3).for_each(|number| {
        drop(pass(&trained));
        if number == 1 {
            trained.reduce_gradient().unwrap();
        }
    });
    let found = trained.take_gradient().unwrap().unwrap();
    same(&found, &of_w.scale(3.0).unwrap(), "the gradient of three passes");
    // And none.
    drop(pass(&trained));
    trained.zero_grad().unwrap();
    assert!(trained.take_gradient().unwrap().is_none(), "{case:?}: it was dropped");
    let frozen = plain.parameter(Role::Frozen);
    let gradients = losses(case, &x, &frozen).unwrap();
    let gradients: Vec<(DTensor, Option<DTensor>)> =
        gradients.into_iter().filter(DTensor::tracks_gradient).map(|loss| (loss, None)).collect();
    let gradients = backward(gradients).unwrap();
    same(&gradients.of(&x).unwrap().unwrap(), &of_x, "the gradient of x beside a frozen weight");
    assert!(frozen.take_gradient().unwrap().is_none(), "{case:?}: it is frozen");
}

/// Runs every combination, or as many as are asked for at equal distances.
fn on_mesh(gang: Arc<dyn Gang>, axes: &[(&str, usize)], most: usize) -> usize {
    let mesh = Mesh::new(axes).unwrap();
    let with = DistContext::new(Arc::clone(&gang));
    with.overlap(mesh).unwrap();
    let without = DistContext::new(gang);
    assert!(with.overlaps() && !without.overlaps());
    let all = layouts(mesh);
    let sizes = [all.len(), all.len(), all.len(), USES.len(), 2, 2, 2];
    let count: usize = sizes.iter().product();
    // A stride that shares no factor with the sizes meets all of each.
    let stride = if count <= most { 1 } else { count / most / 2310 * 2310 + 2311 };
    for number in 0..count.min(most) {
        let mut rest = number * stride % count;
        let mut next = |size: usize| {
            let chosen = rest % size;
            rest /= size;
            chosen
        };
        let case = Case {
            uses: USES[next(USES.len())],
            release: [Release::Keep, Release::AfterUse][next(2)],
            dtype: [DType::F32, DType::Bf16][next(2)],
            held: all[next(all.len())],
            used: all[next(all.len())],
            rows: all[next(all.len())],
        };
        check(if next(2) == 0 { &with } else { &without }, &case);
    }
    count.min(most)
}

#[test]
fn trained_parameters_have_the_gradients_of_plain_ones() {
    let meshes: [(&[(&str, usize)], usize); 3] =
        [(&[("a", 2)], usize::MAX), (&[("a", 3)], 500), (&[("a", 2), ("b", 2)], 500)];
    let mut cases = 0;
    for (axes, most) in meshes {
        let ranks = axes.iter().map(|(_, size)| size).product();
        cases += threads::run(ranks, GangOptions::default(), |gang| on_mesh(gang, axes, most)).unwrap()[0];
    }
    assert!(cases > 2000, "{cases}");
}

/// Whether ranks communicate beside the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Beside,
    InTurn,
}

/// What becomes of layers between the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layers {
    Kept,
    Again,
}

/// With numbers that round: overlap, gathering again and recomputation must not
/// change a bit.
#[test]
fn neither_overlap_nor_release_nor_recomputation_changes_a_bit() {
    const LAYERS: usize = 3;
    let run = |gang: &Arc<dyn Gang>, way: Way, release: Release, layers: Layers, dtype: DType| {
        let mesh = Mesh::new(&[("dp", 3)]).unwrap();
        let dist = DistContext::new(Arc::clone(gang));
        if way == Way::Beside {
            dist.overlap(mesh).unwrap();
        }
        let (shared, whole) = (Layout::new(mesh, &[Placement::Shard(0)]).unwrap(), Layout::replicated(mesh));
        let normal = |dims: &[usize], number: u64, layout: Layout| {
            let stream = weightloom_tensor::Stream { seed: 3, number };
            DTensor::normal(&dist, DType::F32, &Shape::new(dims).unwrap(), layout, stream).unwrap()
        };
        let weights: Vec<DTensor> =
            (0..LAYERS as u64).map(|at| normal(&[8, 8], at, shared).parameter(Role::Trained)).collect();
        let mut bits: Vec<u32> = Vec::new();
        for step in 0..2 {
            let mut x = normal(&[7, 8], 100 + step, shared).cast(dtype).unwrap().requires_grad();
            for (at, weight) in weights.iter().enumerate() {
                if let Some(next) = weights.get(at + 1) {
                    next.prefetch(whole, dtype).unwrap();
                }
                let of_layer = weight.clone();
                if step == 1 {
                    let weight = weight.clone();
                    x = x.register_hook(move || weight.reduce_gradient()).unwrap();
                }
                let layer = move |x: &DTensor| {
                    let weight = of_layer.used(whole, dtype, release)?;
                    x.linear(&weight, None, Some(x))?.tanh()
                };
                x = match layers {
                    Layers::Kept => layer(&x).unwrap(),
                    Layers::Again => {
                        recompute(&[x], std::slice::from_ref(weight), move |x| Ok(vec![layer(&x[0])?]))
                            .unwrap()
                            .remove(0)
                    }
                };
            }
            let loss = x.cast(DType::F32).unwrap().sum_all().unwrap();
            bits.push(loss.to_local().item::<f32>().unwrap().to_bits());
            backward([(loss, None)]).unwrap();
        }
        for weight in &weights {
            let gradient = weight.take_gradient().unwrap().unwrap();
            bits.extend(gradient.to_local().to_vec::<f32>().unwrap().iter().map(|value| value.to_bits()));
        }
        bits
    };
    threads::run(3, GangOptions::default(), |gang| {
        for dtype in [DType::F32, DType::Bf16] {
            let expected = run(&gang, Way::InTurn, Release::Keep, Layers::Kept, dtype);
            for way in [Way::InTurn, Way::Beside] {
                for release in [Release::Keep, Release::AfterUse] {
                    for layers in [Layers::Kept, Layers::Again] {
                        let found = run(&gang, way, release, layers, dtype);
                        assert_eq!(found, expected, "{way:?} {release:?} {layers:?} {dtype}");
                    }
                }
            }
        }
    })
    .unwrap();
}

#[test]
fn a_region_must_have_inputs_and_name_its_parameters() {
    let mesh = Mesh::new(&[("dp", 1)]).unwrap();
    let dist = DistContext::new(solo(GangOptions::default()));
    let whole = Layout::replicated(mesh);
    let error = recompute(&[], &[], |_| Ok(vec![])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the sharding rule of recompute does not fit its operands: there are no operands"
    );
    let x = DTensor::distribute(&dist, &integers(&[2, 3], 1), whole).unwrap().requires_grad();
    let w = DTensor::distribute(&dist, &integers(&[4, 3], 2), whole).unwrap().parameter(Role::Trained);
    let hidden = w.clone();
    let error =
        recompute(std::slice::from_ref(&x), &[], move |x| Ok(vec![x[0].linear(&hidden, None, None)?]));
    assert!(matches!(&error, Err(DTensorError::Tensor(_))), "{error:?}");
    // An error inside keeps its type.
    let own = w.clone();
    let error = recompute(&[x], &[w], move |x| Ok(vec![x[0].matmul(&own)?])).unwrap_err();
    assert!(error.to_string().contains("matmul"), "{error}");
}

/// A parameter that was changed is fetched anew.
#[test]
fn what_was_fetched_ahead_of_a_change_is_forgotten() {
    threads::run(2, GangOptions::default(), |gang| {
        let mesh = Mesh::new(&[("dp", 2)]).unwrap();
        let dist = DistContext::new(gang);
        dist.overlap(mesh).unwrap();
        let (shared, whole) = (Layout::new(mesh, &[Placement::Shard(0)]).unwrap(), Layout::replicated(mesh));
        let mut w =
            DTensor::distribute(&dist, &integers(&[4, 3], 2), shared).unwrap().parameter(Role::Trained);
        w.prefetch(whole, DType::F32).unwrap();
        w.change_local(|local| {
            *local = local.detach().scale(2.0)?.requires_grad();
            Ok(())
        })
        .unwrap();
        let used = w.used(whole, DType::F32, Release::Keep).unwrap();
        assert_eq!(values(used.to_local()), values(&integers(&[4, 3], 2).scale(2.0).unwrap()));
        // In another form than was asked for it is not what was fetched.
        w.prefetch(whole, DType::F32).unwrap();
        let half = w.used(whole, DType::Bf16, Release::Keep).unwrap();
        assert_eq!((half.dtype(), values(half.to_local())), (DType::Bf16, values(used.to_local())));
        dist.finish().unwrap();
    })
    .unwrap();
}
