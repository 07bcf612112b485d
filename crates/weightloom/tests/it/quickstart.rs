//! The tour, shortened: every station of it, and what it leaves behind.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

/// The program in a folder, away from what a surrounding MPI job sets.
fn weightloom(folder: &Path) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("weightloom"));
    for name in ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"] {
        command.env_remove(name);
    }
    command.current_dir(folder);
    command
}

fn told(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A tour of so many steps, told as JSON.
fn tour(folder: &Path, steps: &str) -> Value {
    let output = weightloom(folder).args(["quickstart", "--json", "--steps", steps]).output().unwrap();
    serde_json::from_str(&told(&output)).unwrap()
}

#[test]
fn the_tour_is_told_station_by_station() {
    let root = tempfile::tempdir().unwrap();
    let output = weightloom(root.path()).args(["quickstart", "--steps", "2"]).output().unwrap();
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+\.\d+ s\b", "[time]");
    settings.add_filter(r"[\d.]+k? tok/s", "[speed]");
    settings.add_filter(r"loss \d\.\d\d → \d\.\d\d", "loss [from] → [to]");
    settings.add_filter(r"\b[0-9a-f]{8} as", "[fingerprint] as");
    // After two steps it has nothing to say yet.
    settings.add_filter(r"(before|after ) … .*", "$1 … [text]");
    settings.add_filter(r"(?m)^  \S+/weightloom ", "  weightloom ");
    settings.add_filter(r"(?m)^(   Did .*\?) (yes|no|undecided|not tested)\b.*$", "$1 [answer]");
    settings.add_filter(r"(?m)(sway.yaml, \[time\]):\n.*$", "$1:\n   [headline]");
    settings.add_filter(r"(?m)^   probes: .*$", "   probes: [verdicts]");
    settings.bind(|| insta::assert_snapshot!(told(&output)));
}

#[test]
fn a_tour_certifies_learns_and_leaves_everything_behind() {
    let root = tempfile::tempdir().unwrap();
    let story = tour(root.path(), "20");
    let certificate = &story["certificate"];
    assert_eq!((&certificate["equal"], &certificate["ranks"]), (&Value::from(true), &Value::from(2)));
    assert_eq!(certificate["saved"], certificate["loaded"]);
    assert_eq!(certificate["saved"].as_str().unwrap().len(), 32);
    // An adapter of what knows next to nothing learns little; batches differ by less.
    for (run, ranks, learned) in [("pretrain", 4, 1.0), ("tune", 2, 0.1)] {
        let lesson = &story[run];
        let loss = |name: &str| lesson[name].as_f64().unwrap();
        assert!(loss("last_loss") < loss("first_loss") - learned, "{lesson}");
        assert_eq!((&lesson["ranks"], &lesson["steps"]), (&Value::from(ranks), &Value::from(20)));
        for file in ["file", "checkpoint", "metrics"] {
            assert!(root.path().join(lesson[file].as_str().unwrap()).exists(), "{lesson}");
        }
    }
    // The model was told apart from what was added to it.
    let samples = story["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 3);
    assert!(samples.iter().any(|sample| sample["before"] != sample["after"]), "{samples:?}");
    // The verdict is on a page that needs nothing else.
    let verdict = &story["verdict"];
    assert!((0.0..=1.0).contains(&verdict["overall"].as_f64().unwrap()), "{verdict}");
    let probes = verdict["probes"].as_array().unwrap();
    assert!(probes.len() > 4 && probes.iter().all(|probe| probe["verdict"] != "error"), "{verdict}");
    let page = std::fs::read_to_string(root.path().join(verdict["html"].as_str().unwrap())).unwrap();
    assert!(page.contains("<h2 id=\"layers\">"));
    // What it suggests works as it is written.
    let next = story["next"].as_array().unwrap();
    assert!(next.len() > 3);
    for suggested in next {
        let command = suggested["command"].as_str().unwrap();
        let output = Command::new("sh").args(["-c", command]).current_dir(root.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{command}\n{text}");
        assert!(!output.stdout.is_empty(), "{command}");
    }
    assert!(root.path().join("weightloom-quickstart/merged/config.json").exists());
}

#[test]
fn every_tour_is_the_same() {
    let seen: Vec<Value> = (0..2)
        .map(|_| {
            let root = tempfile::tempdir().unwrap();
            let mut story = tour(root.path(), "2");
            for timed in ["pretrain", "tune", "certificate", "verdict"] {
                let fields = story[timed].as_object_mut().unwrap();
                fields.retain(|name, _| !name.contains("second"));
            }
            story.as_object_mut().unwrap().remove("seconds");
            story
        })
        .collect();
    assert_eq!(seen[0], seen[1]);
}

#[test]
fn a_folder_that_is_there_already_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("weightloom-quickstart");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("mine"), "of value").unwrap();
    let output = weightloom(root.path()).arg("quickstart").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: `weightloom-quickstart` already exists\n\
         hint: remove it, or choose another folder: --dir weightloom-quickstart-2\n"
    );
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn an_mpi_job_is_refused_by_rank_0_before_anything_is_written() {
    for (rank, size) in [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")] {
        for (number, expected) in [
            (
                "0",
                "error: `quickstart` runs in one process, but this is an MPI job of 4\nhint: run it without mpirun\n",
            ),
            // One message is enough.
            ("1", ""),
        ] {
            let root = tempfile::tempdir().unwrap();
            let mut command = weightloom(root.path());
            let output = command.arg("quickstart").env(rank, number).env(size, "4").output().unwrap();
            assert_eq!(output.status.code(), Some(2));
            assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
            assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
        }
    }
}

#[test]
fn a_tour_without_steps_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let output = weightloom(root.path()).args(["quickstart", "--steps", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_tour_that_is_stopped_says_how_to_go_on() {
    let root = tempfile::tempdir().unwrap();
    // More steps than anybody waits for.
    let mut child = weightloom(root.path())
        .args(["quickstart", "--steps", "1000000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let metrics = root.path().join("weightloom-quickstart/pretrain/metrics.jsonl");
    while std::fs::read(&metrics).map_or(true, |text| text.is_empty()) {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    let command = "weightloom train weightloom-quickstart/pretrain.yaml --ranks 4";
    assert!(text.contains("stopped at step") && text.contains(command), "{text}");
    // What it had learned is kept.
    let checkpoints = metrics.with_file_name("checkpoints");
    assert!(std::fs::read_dir(checkpoints).unwrap().count() > 0);
}
