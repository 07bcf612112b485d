//! A run that is saved and resumed on another mesh continues as if nothing had
//! happened.

use weightloom::checkpoint::{Source, verify};

use crate::runs::{ALONE, FSDP_TP, Mesh, PP, TP, assert_equal, losses, train_until};

/// The losses of a run that is stopped after ten steps on one mesh and resumed on
/// another.
fn resumed(first: Mesh, second: Mesh) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let registry = own::registry();
    let before = train_until(&registry, folder.path(), first, &[], Some(10)).unwrap();
    assert_eq!(before.len(), 10);
    let checkpoint = Source::open(folder.path().join("checkpoints/step_10")).unwrap();
    verify(&checkpoint, &()).unwrap();
    // The note of the planner: the items that each rank wrote.
    let note: Vec<usize> = checkpoint.index.planner_data().unwrap().get().unwrap();
    assert_eq!(note.len(), first.1);
    assert!(note.iter().sum::<usize>() > 0);
    let after = train_until(&registry, folder.path(), second, &[], None).unwrap();
    [before, after].concat()
}

#[test]
fn it_continues_on_another_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = losses(folder.path(), ALONE, &[]);
    assert_eq!(resumed(ALONE, ALONE), undisturbed, "bit for bit on the same mesh");
    for (first, second) in [(FSDP_TP, PP), (PP, TP), (TP, FSDP_TP)] {
        let name = format!("{}, resumed on {}", first.0, second.0);
        assert_equal(&name, &resumed(first, second), &undisturbed);
    }
}
