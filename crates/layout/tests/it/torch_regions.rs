//! Regions agree with torch DTensor on every rank of every recorded case.
//!
//! `torch/make_regions.py` wrote the record.

use serde::Deserialize;
use weightloom_layout::{Layout, Region, Shape};

#[derive(Deserialize)]
struct Record {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    shape: Vec<usize>,
    mesh: Vec<usize>,
    placements: Vec<String>,
    regions: Vec<(Vec<usize>, Vec<usize>)>,
}

#[test]
fn regions_agree_with_torch_dtensor() {
    let record: Record = serde_json::from_str(include_str!("../torch/regions.json")).unwrap();
    let mut compared = 0;
    for case in &record.cases {
        let axes: Vec<String> =
            case.mesh.iter().zip(["a", "b", "c"]).map(|(n, name)| format!("{name}={n}")).collect();
        let text = format!("mesh({}) [{}]", axes.join(","), case.placements.join(", "));
        let layout: Layout = text.parse().unwrap();
        let shape = Shape::new(&case.shape).unwrap();
        for (rank, (start, size)) in case.regions.iter().enumerate() {
            let ours = layout.region_of(&shape, rank).unwrap();
            assert_eq!(ours.size(), size, "{text} of {shape}, rank {rank}");
            // torch parks empty shards at the end of the tensor, we at the end
            // of their parent chunk; neither holds an element.
            if !ours.is_empty() {
                assert_eq!(ours, Region::new(start, size).unwrap(), "{text} of {shape}, rank {rank}");
                compared += 1;
            }
        }
    }
    assert!(record.cases.len() > 400 && compared > 1_000, "{compared}");
}
