//! Regions, layouts and tilings against element-by-element truth.

use std::collections::BTreeSet;

use crate::simulation::*;
use proptest::prelude::*;
use weightloom_layout::*;

fn any_region_in(shape: Shape) -> impl Strategy<Value = Region> {
    shape
        .iter()
        .map(|&size| (0..=size, 0..=size).prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b))).boxed())
        .collect::<Vec<_>>()
        .prop_map(|parts| {
            let (start, size): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            Region::new(&start, &size).unwrap()
        })
}

fn set(region: &Region) -> BTreeSet<Vec<usize>> {
    indices(region).into_iter().collect()
}

fn offset(index: &[usize], shape: &Shape) -> usize {
    index.iter().zip(&shape.strides()).map(|(a, b)| a * b).sum()
}

fn shape_and_regions() -> impl Strategy<Value = (Shape, Region, Region)> {
    any_shape().prop_flat_map(|s| (Just(s.clone()), any_region_in(s.clone()), any_region_in(s)))
}

fn shape_and_layout() -> impl Strategy<Value = (Shape, Layout)> {
    (any_shape(), any_mesh())
        .prop_flat_map(|(shape, mesh)| (Just(shape.clone()), any_layout(mesh, shape.ndim())))
}

/// Regions made by cutting the tensor at random, which always tile it.
fn any_tiling() -> impl Strategy<Value = (Shape, Vec<Region>)> {
    (any_shape(), prop::collection::vec((any::<prop::sample::Index>(), 0usize..3, 0usize..10), 0..12))
        .prop_map(|(shape, cuts)| {
            let mut tiles = vec![Region::whole(&shape)];
            for (which, dim, at) in cuts {
                let tile = tiles.swap_remove(which.index(tiles.len()));
                let dim = dim % shape.ndim();
                let range = tile.range(dim);
                let middle = range.start + at % (range.len() + 1);
                tiles.push(tile.with_range(dim, range.start..middle));
                tiles.push(tile.with_range(dim, middle..range.end));
            }
            (shape, tiles)
        })
}

proptest! {
    #[test]
    fn set_operations_agree_with_sets((_, a, b) in shape_and_regions()) {
        let (in_a, in_b) = (set(&a), set(&b));
        let common: BTreeSet<_> = in_a.intersection(&in_b).cloned().collect();
        prop_assert_eq!(a.intersect(&b).map_or_else(BTreeSet::new, |r| set(&r)), common);
        prop_assert_eq!(a.contains(&b), in_b.is_subset(&in_a));
    }

    #[test]
    fn runs_are_the_elements_in_order_and_never_touch((shape, region, _) in shape_and_regions()) {
        let runs: Vec<_> = region.runs(&shape).unwrap().collect();
        let expected: Vec<usize> = indices(&region).iter().map(|index| offset(index, &shape)).collect();
        prop_assert_eq!(runs.iter().cloned().flatten().collect::<Vec<_>>(), expected);
        prop_assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        prop_assert_eq!(region.runs(&shape).unwrap().len(), runs.len());
    }

    #[test]
    fn copies_place_every_element((shape, a, b) in shape_and_regions()) {
        let Some(common) = a.intersect(&b) else { return Ok(()) };
        let width = DType::U16.size();
        let numbered: Vec<u8> =
            indices(&a).iter().flat_map(|index| (offset(index, &shape) as u16 + 1).to_le_bytes()).collect();
        let mut copied = vec![0u8; b.volume() * width];
        let (source, mut target) = (Tile { region: &a, bytes: &numbered }, TileMut { region: &b, bytes: &mut copied });
        copy_region(&common, width, source, &mut target).unwrap();
        for (index, bytes) in indices(&b).iter().zip(copied.chunks_exact(width)) {
            let expected = if common.contains_index(index) { offset(index, &shape) as u16 + 1 } else { 0 };
            prop_assert_eq!(u16::from_le_bytes([bytes[0], bytes[1]]), expected);
        }
    }

    #[test]
    fn tiles_of_a_layout_tile_the_tensor((shape, layout) in shape_and_layout()) {
        check_tiling(&shape, &layout.tiles(&shape).unwrap()).unwrap();
        prop_assert_eq!(layout.to_string().parse::<Layout>().unwrap(), layout);
        for rank in layout.mesh().ranks() {
            let region = layout.region_of(&shape, rank).unwrap();
            let replicas = layout.replicas(rank).unwrap();
            prop_assert_eq!(layout.first_replica(rank).unwrap(), replicas[0]);
            for other in layout.mesh().ranks() {
                let same = layout.region_of(&shape, other).unwrap() == region;
                let replica = replicas.contains(&other);
                prop_assert!(!replica || same, "replicas hold the same region");
                prop_assert!(!same || replica || region.is_empty(), "only replicas hold the same elements");
            }
        }
    }

    #[test]
    fn owners_are_exactly_the_ranks_that_hold_a_part(
        (shape, layout, region) in shape_and_layout()
            .prop_flat_map(|(s, l)| (Just(s.clone()), Just(l), any_region_in(s)))
    ) {
        let found: Vec<_> = layout.owners_of(&shape, &region).unwrap().into_iter().map(|o| (o.rank, o.region)).collect();
        let expected: Vec<_> = layout.mesh().ranks()
            .filter_map(|rank| Some((rank, layout.region_of(&shape, rank).unwrap().intersect(&region)?)))
            .collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn tilings_are_accepted((shape, tiles) in any_tiling()) {
        prop_assert_eq!(check_tiling(&shape, &tiles), Ok(()));
    }

    #[test]
    fn damaged_tilings_are_rejected_with_the_true_reason(
        (shape, tiles) in any_tiling(),
        which in any::<prop::sample::Index>(),
        damage in 0usize..3,
    ) {
        let mut tiles = tiles;
        let which = which.index(tiles.len());
        match damage {
            0 => { tiles.remove(which); }
            1 => { let again = tiles[which].clone(); tiles.push(again); }
            _ => {
                let moved = tiles[which].clone();
                let Some(dim) = (0..shape.ndim()).find(|&d| moved.range(d).start > 0) else { return Ok(()) };
                let range = moved.range(dim);
                tiles[which] = moved.with_range(dim, range.start - 1..range.end - 1);
            }
        }
        let coverage = |index: &[usize]| tiles.iter().filter(|tile| tile.contains_index(index)).count();
        let exact = indices(&Region::whole(&shape)).iter().all(|index| coverage(index) == 1);
        match check_tiling(&shape, &tiles) {
            Ok(()) => prop_assert!(exact),
            Err(TilingError::Hole { hole, .. }) => {
                prop_assert!(!hole.is_empty());
                prop_assert!(indices(&hole).iter().all(|index| coverage(index) == 0));
            }
            Err(TilingError::Overlap { first, second, overlap }) => {
                prop_assert!(first != second);
                prop_assert_eq!(tiles[first].intersect(&tiles[second]), Some(overlap));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

/// Every set of up to three boxes in a 2×2 and a 3-element tensor: the proof
/// agrees with counting.
#[test]
fn the_tiling_proof_agrees_with_counting_on_all_small_cases() {
    let mut cases = 0;
    for dims in [&[3][..], &[2, 2], &[1, 3]] {
        let shape = shape(dims);
        let boxes = all_boxes(&shape);
        let mut check = |tiles: &[Region]| {
            let exact = indices(&Region::whole(&shape))
                .iter()
                .all(|index| tiles.iter().filter(|tile| tile.contains_index(index)).count() == 1);
            assert_eq!(check_tiling(&shape, tiles).is_ok(), exact, "{tiles:?}");
            cases += 1;
        };
        for a in &boxes {
            check(std::slice::from_ref(a));
            for b in &boxes {
                check(&[a.clone(), b.clone()]);
                for c in &boxes {
                    check(&[a.clone(), b.clone(), c.clone()]);
                }
            }
        }
    }
    assert!(cases > 7_000, "{cases}");
}

fn all_boxes(shape: &Shape) -> Vec<Region> {
    let mut boxes = vec![Region::whole(shape)];
    for dim in 0..shape.ndim() {
        boxes = boxes
            .into_iter()
            .flat_map(|region| {
                let size = shape[dim];
                (0..=size).flat_map(move |low| {
                    let region = region.clone();
                    (low..=size).map(move |high| region.with_range(dim, low..high))
                })
            })
            .collect();
    }
    boxes
}
