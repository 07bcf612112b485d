//! Checkpoints of the example through the typed hub.

use own::family::RecurrenceFamily;
use weightloom::Folders;
use weightloom::gang::{GangOptions, GangSizes, Gangs, threads};
use weightloom::hub::ModelLoadOptions;
use weightloom::nn::Model;

use crate::runs::{ALONE, losses};

#[test]
fn a_checkpoint_is_loaded_as_the_type_of_its_family_on_any_mesh() {
    let folder = tempfile::tempdir().unwrap();
    losses(folder.path(), ALONE, &["train.max_steps=2"]);
    let name = folder.path().join("checkpoints/step_2").display().to_string();
    let hub = own::registry().hub(&|_| None, &Folders::default());
    let models = hub.of(RecurrenceFamily).unwrap();
    let config = models.model_config(&name, &()).unwrap();
    assert_eq!(Some(&config), models.maybe_arch_config("recurrence_tiny").as_ref());
    // The type is that of the model, not `dyn Model`.
    let alone: Box<own::model::RecurrentModel> =
        models.load_model(&name, None, &ModelLoadOptions::default(), &(), &()).unwrap().model;
    let tokens: &[u32] = &[0, 69, 67, 82];
    let scores = |model: &dyn Model| model.score(&[tokens], 0, None).unwrap().remove(0);
    let expected = scores(&*alone);
    let shared = threads::run(2, GangOptions::default(), |root| {
        let gangs = Gangs::new(root, &GangSizes { tp: 2, ..GangSizes::default() }).unwrap();
        let options = ModelLoadOptions { gangs: Some(gangs), ..ModelLoadOptions::default() };
        let loaded = models.load_model(&name, None, &options, &(), &()).unwrap();
        scores(&*loaded.model)
    })
    .unwrap();
    for found in shared {
        for (found, expected) in found.iter().zip(&expected) {
            // Sums over channels are added in another order, in f32.
            assert!((found.chosen - expected.chosen).abs() < 1e-5);
        }
    }
    // A new model of the same type, and one without memory.
    assert!(models.create_new_model(&config, 1, &ModelLoadOptions::default()).is_ok());
    assert!(models.create_meta_model(&config, &ModelLoadOptions::default()).is_ok());
}
