//! A run goes on with other numbers of ranks and other ways to share the work.

use super::place::Place;

/// How ranks share the work, one way for each part of a run.
const WAYS: [(&str, &[&str]); 6] = [
    ("4", &["train.accelerator.tp=2", "train.accelerator.pp=2"]),
    ("3", &["train.accelerator.dp_shard=3"]),
    ("1", &[]),
    ("4", &["train.accelerator.dp_replicate=2", "train.accelerator.dp_shard=2"]),
    ("2", &["train.accelerator.pp=2", "train.accelerator.pp_schedule=gpipe"]),
    (
        "4",
        &[
            "train.accelerator.tp=2",
            "train.accelerator.dp_shard=2",
            "train.accelerator.sequence_parallel=true",
        ],
    ),
];

const BATCH: [&str; 2] = ["train.global_batch_size=12", "train.micro_batch_size=1"];

/// Steps that each way does.
const EACH: u64 = 3;

fn end(step: u64) -> (String, String) {
    (format!("train.max_steps={step}"), format!("out/checkpoints/step_{step}"))
}

fn lives_on_every_mesh(place: &Place, more: &[&str]) {
    let all = EACH * WAYS.len() as u64;
    // The learning rate must not depend on where a part ends.
    let steady = "train.schedule.kind=constant";
    let (steps, _) = end(all);
    let whole = [&[&steps[..], steady, "train.checkpoint.output_dir=whole"], &BATCH[..], more].concat();
    place.train(&whole);
    let expected = place.losses("whole");
    for (part, (ranks, way)) in WAYS.iter().enumerate() {
        let done = EACH * part as u64;
        let common = [&[steady, "--ranks", ranks], &BATCH[..], way, more].concat();
        if done > 0 {
            // Loaded on the new mesh and saved again, it is the same.
            let (steps, before) = end(done);
            let again = [
                "train.checkpoint.output_dir=again",
                &format!("train.checkpoint.resume_from={before}"),
                &steps,
            ];
            let ended = place.train(&[&again[..], &common].concat());
            assert_eq!((&ended["step"], &ended["steps_done"]), (&done.into(), &0.into()), "{ended}");
            let after = format!("again/checkpoints/step_{done}");
            assert_eq!(place.fingerprint(&after), place.fingerprint(&before), "{ranks} ranks, {way:?}");
            place.remove("again");
        }
        let (steps, _) = end(done + EACH);
        let ended = place.train(&[&[&steps[..]], &common[..]].concat());
        assert_eq!(ended["steps_done"], EACH, "{ended}");
    }
    let found = place.losses("out");
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        // Sums in another order; a gradient that is lost or doubled changes
        // the second digit.
        let apart = (found - expected).abs() / expected.abs();
        assert!(apart <= 1e-4, "step {}: {found} is not {expected}", step + 1);
    }
}

#[test]
fn a_run_goes_on_on_any_mesh() {
    lives_on_every_mesh(&Place::new(), &[]);
}

#[test]
fn a_run_with_a_tied_head_goes_on_on_any_mesh() {
    lives_on_every_mesh(&Place::new(), &["model.config_overrides.tie_word_embeddings=true"]);
}

#[test]
fn an_adapter_goes_on_on_any_mesh() {
    let place = Place::new();
    place.train(&["train.checkpoint.output_dir=first"]);
    let lora = "model.lora={rank: 3, target_modules: [q_proj, down_proj]}";
    lives_on_every_mesh(&place, &["model.weights_path=./first/checkpoints/step_2", lora]);
}

/// All documents in one packed row are learnt as if each had a row.
#[test]
fn a_packed_run_computes_what_an_unpacked_run_computes() {
    let place = Place::new();
    let first = |more: &[&str]| {
        let ended = place.train(&[&["train.max_steps=1"], more].concat());
        assert_eq!(ended["data"]["used"], 8, "{ended}");
        let record = place.records("out").remove(0);
        place.remove("out");
        ["loss", "gradient_norm"].map(|key| record[key].as_f64().unwrap())
    };
    let alone = ["data.packing=false", "data.max_seq_len=64", "train.global_batch_size=8"];
    let packed = ["data.packing=true", "data.max_seq_len=455", "train.global_batch_size=1"];
    let expected = first(&alone);
    for mesh in [
        &[][..],
        &["--ranks", "2", "train.accelerator.tp=2"],
        &["--ranks", "2", "train.accelerator.pp=2"],
        &["train.gradient_checkpointing=full"],
    ] {
        let found = first(&[&packed[..], mesh].concat());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-5, "{mesh:?}: {found} {expected}");
        }
    }
}
