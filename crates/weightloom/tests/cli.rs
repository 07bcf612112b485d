//! Help, errors, layouts, doctor and completions: a smoke test of the binary,
//! which `./test quick` runs too, and `./test` also without the `mpi` feature.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::fmt::Write as _;

use assert_cmd::Command;

fn weightloom() -> Command {
    let mut command = Command::cargo_bin("weightloom").unwrap();
    // A surrounding shell or MPI job must not change results.
    for name in ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"] {
        command.env_remove(name);
    }
    command.env("COLUMNS", "100").env("NO_COLOR", "1");
    command
}

/// Exit code, stdout and stderr of a run, with times taken out.
fn run(arguments: &[&str]) -> String {
    let output = weightloom().args(arguments).output().unwrap();
    let mut text = format!("exit code {}\n", output.status.code().unwrap());
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            write!(text, "--- {name}\n{}", String::from_utf8_lossy(bytes)).unwrap();
        }
    }
    text
}

macro_rules! snapshot {
    ($name:ident, $($argument:expr),*) => {
        #[test]
        fn $name() {
            let mut settings = insta::Settings::clone_current();
            settings.add_filter(r"\d+\.\d+ m?s\b", "[time]");
            settings.add_filter(r#""seconds": [0-9.e-]+"#, r#""seconds": "[time]""#);
            settings.add_filter(r" +\[time\]", " [time]");
            settings.bind(|| insta::assert_snapshot!(run(&[$($argument),*])));
        }
    };
}

snapshot!(help, "--help");
snapshot!(help_quickstart, "quickstart", "--help");
snapshot!(help_doctor, "doctor", "--help");
snapshot!(help_layout_show, "layout", "show", "--help");
snapshot!(help_layout_move, "layout", "move", "--help");
snapshot!(help_gang_check, "gang", "check", "--help");
snapshot!(help_dtensor_check, "dtensor", "check", "--help");
snapshot!(version, "--version");
snapshot!(gang_check, "gang", "check", "--ranks", "2");
snapshot!(gang_check_json, "gang", "check", "--ranks", "2", "--json");
snapshot!(layout_show, "layout", "show", "mesh(dp=2,tp=3) [R, S(0)]", "--shape", "7x2", "--dtype", "bf16");
snapshot!(
    layout_show_one_rank_json,
    "layout",
    "show",
    "mesh(tp=8) [S(1)]",
    "--shape",
    "4096x1024",
    "--rank",
    "3",
    "--json"
);
snapshot!(layout_show_scalar, "layout", "show", "mesh(x=2) [P(sum)]", "--shape", "scalar");
snapshot!(layout_show_many_ranks, "layout", "show", "mesh(dp=10,tp=10) [R, S(0)]", "--shape", "100");
snapshot!(
    layout_move,
    "layout",
    "move",
    "mesh(dp=2,tp=4) [P(sum), S(0)]",
    "mesh(dp=2,tp=4) [S(0), S(1)]",
    "--shape",
    "4096x4096"
);
snapshot!(
    layout_move_between_meshes_json,
    "layout",
    "move",
    "mesh(x=3) [S(0)]",
    "mesh(a=2,b=2) [S(1), R]",
    "--shape",
    "5x4",
    "--json"
);
snapshot!(layout_move_to_itself, "layout", "move", "mesh(x=3) [S(0)]", "mesh(x=3) [S(0)]", "--shape", "5");
snapshot!(error_unknown_command, "quikstart");
snapshot!(error_unknown_command_json, "quikstart", "--json");
snapshot!(error_no_command,);
snapshot!(error_bad_layout, "layout", "show", "mesh(dp=2) [S(zero)]", "--shape", "4");
snapshot!(error_bad_mesh, "layout", "show", "mesh(dp=0) [R]", "--shape", "4");
snapshot!(error_missing_dim, "layout", "show", "mesh(dp=2) [S(1)]", "--shape", "4");
snapshot!(error_bad_shape, "layout", "show", "mesh(dp=2) [R]", "--shape", "4 by 4");
snapshot!(error_foreign_placement, "layout", "show", "mesh(dp=2) [Shard(0)]", "--shape", "4");
snapshot!(error_huge_number, "layout", "show", "mesh(dp=99999999999999999999) [R]", "--shape", "4");
snapshot!(error_huge_mesh, "layout", "show", "mesh(dp=4294967296,tp=4294967296) [R]", "--shape", "4");
snapshot!(error_negative_rank, "layout", "show", "mesh(dp=2) [R]", "--shape", "4", "--rank", "-1");
snapshot!(error_negative_shape, "layout", "show", "mesh(dp=2) [R]", "--shape", "-7x2");
snapshot!(error_missing_arguments_json, "layout", "show", "--json");
snapshot!(
    error_not_reducible,
    "layout",
    "move",
    "mesh(x=2) [P(avg)]",
    "mesh(x=2) [R]",
    "--shape",
    "4",
    "--dtype",
    "i32"
);
snapshot!(layout_show_pending, "layout", "show", "mesh(dp=2,tp=2) [P(sum), R]", "--shape", "7");
snapshot!(
    gang_check_on_more_ranks_than_five,
    "gang",
    "check",
    "--ranks",
    "7",
    "--timeout",
    "18446744073709551614"
);
snapshot!(error_bad_dtype, "layout", "show", "mesh(dp=2) [R]", "--shape", "4", "--dtype", "bfloat16");
snapshot!(
    error_bad_dtype_json,
    "layout",
    "show",
    "mesh(dp=2) [R]",
    "--shape",
    "4",
    "--dtype",
    "bfloat16",
    "--json"
);
snapshot!(error_too_many_ranks, "layout", "show", "mesh(dp=999999999999) [R]", "--shape", "4");
snapshot!(
    layout_show_one_of_too_many_ranks,
    "layout",
    "show",
    "mesh(dp=999999999999) [S(0)]",
    "--shape",
    "4",
    "--rank",
    "2"
);
snapshot!(error_unknown_rank, "layout", "show", "mesh(dp=2) [R]", "--shape", "4", "--rank", "2");
snapshot!(error_too_many_thread_ranks, "gang", "check", "--ranks", "100000");
snapshot!(error_no_ranks, "gang", "check", "--ranks", "0");

#[test]
fn doctor_reports_every_part() {
    let output = weightloom().args(["doctor", "--json"]).output().unwrap();
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<&str> =
        report["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "version",
            "platform",
            "cpu",
            "threads",
            "memory",
            "gpu",
            "mpi build",
            "mpirun",
            "cache folder",
            "config folder"
        ]
    );
    for check in report["checks"].as_array().unwrap() {
        assert_eq!(
            check["status"] == "ok",
            check["fix"].is_null(),
            "what is not there says how to get it: {check}"
        );
    }
}

#[test]
fn doctor_fails_where_a_folder_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let output = weightloom().arg("doctor").env("WEIGHTLOOM_CACHE_DIR", file.join("cache")).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("FAILED") && text.contains("is not a folder"), "{text}");
    assert!(text.contains("set WEIGHTLOOM_CACHE_DIR to another folder"), "{text}");
}

#[test]
fn doctor_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    weightloom().arg("doctor").env("WEIGHTLOOM_CACHE_DIR", folder.path()).assert().success();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = weightloom().args(["completions", shell]).output().unwrap();
        assert!(output.status.success());
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        for command in ["quickstart", "doctor", "layout", "gang", "completions"] {
            assert!(script.contains(command), "{shell} completions lack {command}");
        }
    }
    let output = weightloom().args(["completions", "bash", "--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["shell"], "bash");
}

#[test]
fn a_reader_that_stops_early_is_no_failure() {
    use std::process::Stdio;
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("weightloom"))
        .args(["layout", "show", "mesh(dp=4096) [S(0)]", "--shape", "4096", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Only rank 0 reports the error, so that it is printed once.
#[test]
fn a_command_of_one_process_refuses_an_mpi_job() {
    for (arguments, name) in [(["completions", "bash"], "completions"), (["--json", "doctor"], "doctor")] {
        let as_rank = |rank: &str, size: &str| {
            let mut command = weightloom();
            command.args(arguments).env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", size);
            command.output().unwrap()
        };
        let first = as_rank("0", "4");
        let text = String::from_utf8_lossy(&first.stderr).into_owned();
        assert_eq!(first.status.code(), Some(2), "{text}");
        let message = format!("`{name}` runs in one process, but this is an MPI job of 4");
        assert!(text.contains(&message) && text.contains("run it without mpirun"), "{text}");
        let other = as_rank("3", "4");
        assert_eq!((other.status.code(), other.stdout, other.stderr), (Some(2), Vec::new(), Vec::new()));
        assert!(as_rank("0", "1").status.success(), "a job of one process is fine");
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_build_without_mpi_refuses_an_mpi_job() {
    let as_rank = |rank: &str| {
        let mut command = weightloom();
        command.args(["gang", "check"]).env("OMPI_COMM_WORLD_RANK", rank).env("OMPI_COMM_WORLD_SIZE", "4");
        command.output().unwrap()
    };
    let output = as_rank("0");
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("an MPI job of 4 as rank 0") && text.contains("--features mpi"), "{text}");
    assert!(as_rank("1").stderr.is_empty());
}

#[test]
fn man_pages_cover_every_visible_command() {
    let folder = tempfile::tempdir().unwrap();
    weightloom().args(["man", "--out"]).arg(folder.path().join("man1")).assert().success();
    let page = |name: &str| std::fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
    assert!(page("weightloom.1").contains("weightloom\\-generate(1)"), "{}", page("weightloom.1"));
    assert!(page("weightloom-sway-run.1").contains("weightloom"));
    assert!(page("weightloom-generate.1").contains("max\\-new\\-tokens"));
    assert!(!folder.path().join("man1/weightloom-man.1").exists(), "hidden");
}

/// `--json` chooses the format of results; only `--quiet` hides the status.
#[test]
fn quiet_and_json_are_independent() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("run.yaml");
    std::fs::write(
        &config,
        "model: {name: llama, config_overrides: {vocab_size: 64, hidden_size: 16, intermediate_size: 24, \
         num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2, max_position_embeddings: 32}}\n\
         data: {type: dummy, max_seq_len: 16}\ntrain: {max_steps: 2, global_batch_size: 2}\n",
    )
    .unwrap();
    let mut number = 0;
    let mut run = |options: &[&str]| {
        number += 1;
        let output =
            format!("train.checkpoint.output_dir={}", folder.path().join(number.to_string()).display());
        let mut command = weightloom();
        let output = command.args(options).arg("train").arg(&config).arg(output).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    };
    let is_json =
        |text: &str| text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok());
    let (plain, status) = run(&[]);
    assert!(plain.contains("trainable parameters") && status.is_empty(), "{plain}{status}");
    let (quiet, status) = run(&["--quiet"]);
    assert!(
        !quiet.contains("trainable parameters") && !quiet.is_empty() && status.is_empty(),
        "{quiet}{status}"
    );
    let (json, status) = run(&["--json"]);
    assert!(is_json(&json) && status.contains("trainable parameters"), "{json}{status}");
    let (json, status) = run(&["--json", "-q"]);
    assert!(is_json(&json) && !json.is_empty() && status.is_empty(), "{json}{status}");
}
