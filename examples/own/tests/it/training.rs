//! The model learns, and every mesh gives the losses of one rank.

use crate::runs::{ALONE, FSDP_TP, Mesh, PP, TP, assert_equal, losses};

fn run(mesh: Mesh, overrides: &[&str]) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    losses(folder.path(), mesh, overrides)
}

#[test]
fn every_mesh_gives_the_losses_of_one_rank() {
    let alone = run(ALONE, &[]);
    assert!(alone[19] < 0.7 * alone[0], "it learns: {alone:?}");
    for mesh in [TP, FSDP_TP, PP] {
        assert_equal(mesh.0, &run(mesh, &[]), &alone);
    }
    let sequence_parallel = run(TP, &["train.accelerator.sequence_parallel=true"]);
    assert_equal("sequence parallel", &sequence_parallel, &alone);
    let recomputed = run(FSDP_TP, &["train.gradient_checkpointing=full"]);
    assert_equal("recomputed activations", &recomputed, &alone);
}

/// A packed row holds several facts, whose states must not mix.
#[test]
fn packed_documents_do_not_see_each_other() {
    // One step over all facts, once each: packing changes neither targets nor their
    // number.
    let step = ["train.max_steps=null", "train.epochs=1"];
    let alone = run(ALONE, &step);
    let packed = ["data.packing=true", "data.max_seq_len=512", "train.global_batch_size=1"];
    let packed = run(ALONE, &[&step[..], &packed].concat());
    assert_equal("packed", &packed, &alone);
}
