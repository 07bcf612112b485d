//! The binary under `mpirun`.

use std::process::{Command, Output};

fn mpirun(ranks: usize, arguments: &[&str]) -> Output {
    // Concurrent jobs must not share a session folder.
    let session = tempfile::tempdir().unwrap();
    Command::new("mpirun")
        .env("TMPDIR", session.path())
        .args(["--oversubscribe", "-n", &ranks.to_string()])
        .arg(assert_cmd::cargo::cargo_bin("weightloom"))
        .args(arguments)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        // mpirun waits forever for a lock in shared memory that a killed rank held.
        .env("PMIX_MCA_gds", "hash")
        .output()
        .expect("mpirun is needed: install openmpi-bin")
}

#[test]
fn quickstart_refuses_to_run_in_an_mpi_job() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("tour").display().to_string();
    let output = mpirun(2, &["quickstart", "--dir", &folder]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("`quickstart` runs in one process, but this is an MPI job of 2"), "{text}");
    assert!(!std::path::Path::new(&folder).exists());
}

#[test]
fn a_run_of_thread_ranks_resumes_on_mpi_ranks() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("tour");
    let tour = Command::new(assert_cmd::cargo::cargo_bin("weightloom"))
        .args(["quickstart", "--steps", "2", "--dir", folder.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(tour.status.success(), "{}", String::from_utf8_lossy(&tour.stderr));
    let file = folder.join("pretrain.yaml").display().to_string();
    let output = mpirun(2, &["train", &file, "train.max_steps=4", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let ended: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&ended["step"], &ended["steps_done"]), (&4.into(), &2.into()), "{text}");
}

#[test]
fn gang_check_runs_on_mpi_ranks() {
    let output = mpirun(4, &["gang", "check"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("4 ranks (mpi) pass the conformance suite"), "{text}");
}

#[test]
fn models_train_alike_on_mpi_ranks() {
    for ranks in [2, 4] {
        let output = mpirun(ranks, &["dtensor", "check", "--json"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&report["engine"], &report["ranks"]), (&"mpi".into(), &ranks.into()));
        let arrangements = report["arrangements"].as_array().unwrap();
        assert_eq!(arrangements.len(), if ranks == 4 { 6 } else { 4 });
        assert!(arrangements.iter().all(|one| one["apart"].as_f64().unwrap() <= 1e-5), "{text}");
    }
}

/// The metrics of each step, without times.
fn metrics(folder: &std::path::Path) -> Vec<[serde_json::Value; 3]> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    // Events say what the run is, not what a step measured.
    let steps = lines.filter(|line| line.get("event").is_none());
    steps.map(|line| ["step", "loss", "gradient_norm"].map(|key| line[key].clone())).collect()
}

fn weightloom(arguments: &[&str]) -> String {
    let output = Command::new(assert_cmd::cargo::cargo_bin("weightloom")).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn a_run_is_the_same_on_mpi_ranks_and_on_threads() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("run.yaml");
    std::fs::write(
        &file,
        "model: {name: llama, config_overrides: {vocab_size: 67, hidden_size: 16, intermediate_size: 24, \
         num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64}}\n\
         data: {type: dummy, max_seq_len: 16}\n\
         train: {max_steps: 6, global_batch_size: 8, checkpoint: {save_steps: 2}}\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    for way in ["{tp: 2, dp_shard: 2}", "{dp_replicate: 2, dp_shard: 2}", "{pp: 2, tp: 2}"] {
        let folder = |name: &str| place.path().join(name);
        let way = format!("train.accelerator={way}");
        let (processes, threads) = (folder("processes"), folder("threads"));
        let output = |folder: &std::path::Path| format!("train.checkpoint.output_dir={}", folder.display());
        let ran = mpirun(4, &["--json", "train", file, &way, &output(&processes)]);
        let text = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
        // Only rank 0 prints: a line at the start, one per step, and one at the end.
        assert_eq!(text.lines().count(), 8, "{text}");
        weightloom(&["--json", "train", file, &way, &output(&threads), "--ranks", "4"]);
        assert_eq!(metrics(&processes).len(), 6);
        assert_eq!(metrics(&processes), metrics(&threads), "{way}");
        let fingerprint = |folder: &std::path::Path| -> serde_json::Value {
            let checkpoint = folder.join("checkpoints/step_6");
            let text = weightloom(&["--json", "fingerprint", checkpoint.to_str().unwrap()]);
            serde_json::from_str::<serde_json::Value>(&text).unwrap()["fingerprint"].clone()
        };
        assert!(fingerprint(&processes).is_string());
        assert_eq!(fingerprint(&processes), fingerprint(&threads), "{way}");
        // Threads resume from what processes saved.
        weightloom(&["train", file, &output(&processes), "train.max_steps=7", "--ranks", "2"]);
        assert_eq!(metrics(&processes).len(), 7);
        std::fs::remove_dir_all(processes).unwrap();
        std::fs::remove_dir_all(threads).unwrap();
    }
}

/// A user error is reported, and no rank waits for the others.
#[test]
fn a_run_that_cannot_begin_ends_on_all_mpi_ranks() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("run.yaml");
    std::fs::write(&file, "model: {name: lama}\ndata: {type: dummy}\ntrain: {max_steps: 1}\n").unwrap();
    let output = mpirun(2, &["train", file.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("unknown model spec `lama`"), "{text}");
}

#[test]
fn a_number_of_ranks_that_contradicts_the_job_is_refused() {
    let output = mpirun(2, &["gang", "check", "--ranks", "3"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("cannot run on 3 ranks: the MPI job has 2"), "{text}");
}

/// Commands without ranks would otherwise run once per process, and overwrite
/// each other's results.
#[test]
fn commands_of_one_process_are_refused_once() {
    let commands: [&[&str]; 6] = [
        &["score", "model", "text"],
        &["serve", "model"],
        &["convert", "model", "target", "--to", "hf"],
        &["doctor"],
        &["train", "--schema"],
        &["--json", "sway", "check", "adapter"],
    ];
    for arguments in commands {
        let output = mpirun(4, arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        let refusals = text.matches("runs in one process, but this is an MPI job of 4").count();
        assert_eq!(refusals, 1, "{arguments:?}: {text}");
        assert!(text.contains("run it without mpirun"), "{text}");
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn generate_shares_the_model_over_mpi_ranks() {
    let place = crate::models::Place::new();
    let model = place.path("llama").display().to_string();
    let arguments = ["generate", &model, "t3 t4", "--max-new-tokens", "8", "--dtype", "f32"];
    let alone = weightloom(&arguments);
    let output = mpirun(2, &arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, alone, "one text, printed once");
    let output = mpirun(2, &["generate", &model, "-"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("cannot read the prompt from stdin under mpirun"), "{text}");
}
