//! Damaged checkpoints, full disks and output that cannot be written.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::place::{Place, ended};

const SAVING: [&str; 3] =
    ["train.max_steps=8", "train.checkpoint.save_steps=2", "train.checkpoint.keep_last=0"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Copies the folder of a run.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => {
                fs::copy(&path, &target).unwrap();
            }
        }
    }
}

fn cut(file: &Path, length: u64) {
    fs::File::options().write(true).open(file).unwrap().set_len(length).unwrap();
}

fn flip(file: &Path, from_end: usize) {
    let mut bytes = fs::read(file).unwrap();
    let at = bytes.len() - from_end;
    bytes[at] ^= 0x10;
    fs::write(file, bytes).unwrap();
}

/// A way to damage a checkpoint folder.
type Damage = (&'static str, fn(&Path));

const DAMAGES: [Damage; 10] = [
    ("emptied", |folder| {
        fs::remove_dir_all(folder).unwrap();
        fs::create_dir(folder).unwrap();
    }),
    ("no manifest", |folder| fs::remove_file(folder.join("weightloom.json")).unwrap()),
    ("an empty manifest", |folder| cut(&folder.join("weightloom.json"), 0)),
    ("half of a manifest", |folder| cut(&folder.join("weightloom.json"), 200)),
    ("no weights", |folder| fs::remove_file(folder.join("model.safetensors")).unwrap()),
    ("truncated weights", |folder| cut(&folder.join("model.safetensors"), 500)),
    ("empty weights", |folder| cut(&folder.join("model.safetensors"), 0)),
    ("a flipped bit in the weights", |folder| flip(&folder.join("model.safetensors"), 9)),
    ("a flipped bit in the header", |folder| {
        let file = folder.join("model.safetensors");
        let length = fs::metadata(&file).unwrap().len() as usize;
        flip(&file, length - 20);
    }),
    ("a flipped bit in the optimizer state", |folder| flip(&folder.join("training.safetensors"), 9)),
];

#[test]
fn a_damaged_checkpoint_is_skipped_for_the_newest_intact_one() {
    let place = Place::new();
    place.train(&[&SAVING[..], &["train.checkpoint.output_dir=whole"]].concat());
    let expected = place.fingerprint("whole/checkpoints/step_8");
    for (what, damage) in DAMAGES {
        for ranks in ["1", "2"] {
            let _ = fs::remove_dir_all(place.path("out"));
            copy(&place.path("whole"), &place.path("out"));
            fs::remove_dir_all(place.path("out/checkpoints/step_8")).unwrap();
            damage(&place.path("out/checkpoints/step_6"));
            let output = place
                .command()
                .args(["--json", "train", "run.yaml", "--ranks", ranks])
                .args(SAVING)
                .output()
                .unwrap();
            let (end, errors) = (ended(&output), text(&output.stderr));
            assert_eq!(end["steps_done"], 4, "{what} on {ranks}: {end}");
            // The warning names the checkpoint, everywhere.
            let name = "checkpoints/step_6`";
            assert!(errors.contains("warning: ") && errors.contains(name), "{what}: {errors}");
            assert!(end["warnings"][0].as_str().unwrap().contains(name), "{what}: {end}");
            let events: Vec<Value> =
                place.metrics("out").into_iter().filter(|line| line["event"] == "warning").collect();
            assert!(events.len() == 1 && events[0]["message"] == end["warnings"][0], "{what}: {events:?}");
            if ranks == "1" {
                assert_eq!(place.fingerprint("out/checkpoints/step_8"), expected, "{what}");
            }
            // The step was saved again, and what was there is kept, unless there was nothing.
            place.json(&["verify", "out/checkpoints/step_6"]);
            let aside = place.path("out/checkpoints/step_6.damaged");
            assert_eq!(aside.exists(), what != "emptied", "{what}");
        }
    }
}

#[test]
fn several_damaged_checkpoints_are_skipped() {
    let place = Place::new();
    place.train(&SAVING);
    let expected = place.fingerprint("out/checkpoints/step_8");
    flip(&place.path("out/checkpoints/step_8/model.safetensors"), 9);
    flip(&place.path("out/checkpoints/step_6/training.safetensors"), 9);
    fs::create_dir(place.path("out/checkpoints/step_99")).unwrap();
    let end = place.train(&SAVING);
    assert_eq!((&end["steps_done"], end["warnings"].as_array().unwrap().len()), (&4.into(), 3), "{end}");
    assert_eq!(place.fingerprint("out/checkpoints/step_8"), expected);
}

/// Starting from the beginning would be a loss that nobody asked for.
#[test]
fn a_run_without_an_intact_checkpoint_does_not_start_again() {
    let place = Place::new();
    place.train(&SAVING);
    for step in [2, 4, 6, 8] {
        flip(&place.path(&format!("out/checkpoints/step_{step}/model.safetensors")), 9);
    }
    let said = place.run(&[&["train", "run.yaml"], &SAVING[..]].concat());
    assert!(said.contains("exit code 1"), "{said}");
    assert!(said.contains("no checkpoint is intact: step 8: ") && said.contains("step 2: "), "{said}");
    assert!(said.contains("hint: restore one of them"), "{said}");
    // Nothing was touched.
    assert!(place.path("out/checkpoints/step_8/weightloom.json").exists());
}

/// Runs a command under a limit on the size of files, in KiB. Writes beyond it fail like
/// those to a full disk.
fn with_file_limit(place: &Place, limit: u64, arguments: &[&str]) -> Output {
    let command = place.plain_command();
    let program = command.get_program().to_str().unwrap().to_owned();
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", 2 * limit);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh", &program]).args(arguments).current_dir(place.path(""));
    shell.env_clear().env("HOME", place.path("")).env("WEIGHTLOOM_OFFLINE", "1").env("PATH", "/usr/bin:/bin");
    shell.env("WEIGHTLOOM_THREADS", "1");
    shell.output().unwrap()
}

#[test]
fn metrics_that_cannot_be_written_do_not_end_a_run() {
    let place = Place::new();
    place.train(&[&SAVING[..], &["train.checkpoint.output_dir=whole"]].concat());
    let expected = place.fingerprint("whole/checkpoints/step_8");
    // A file of metrics that is almost as long as the limit, which is more than a checkpoint needs.
    let limit = 1024;
    let line = "{\"step\":0,\"texts\":{\"filler\":\"................................................\"}}\n";
    let lines = (limit * 1024 - 600) / line.len();
    place.write("out/metrics.jsonl", line.repeat(lines));
    let arguments = [&["--json", "train", "run.yaml"], &SAVING[..]].concat();
    let output = with_file_limit(&place, limit as u64, &arguments);
    let (end, errors) = (ended(&output), text(&output.stderr));
    assert_eq!(errors.matches("warning: metrics are incomplete").count(), 1, "{errors}");
    assert!(errors.contains("metrics.jsonl"), "{errors}");
    assert_eq!(end["warnings"].as_array().unwrap().len(), 1, "{end}");
    assert_eq!(place.fingerprint("out/checkpoints/step_8"), expected);
    // What was written is whole, so that the run can be resumed.
    assert_eq!(place.metrics("out").len() - lines, place.metrics("out")[lines..].len());
    let more = [&SAVING[1..], &["train.max_steps=10"]].concat();
    assert_eq!(place.train(&more)["steps_done"], 2);
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_an_error_and_leaves_the_others() {
    let place = Place::new();
    place.train(&[&SAVING[1..], &["train.max_steps=2"]].concat());
    let before = place.fingerprint("out/checkpoints/step_2");
    let arguments = [&["--json", "train", "run.yaml"], &SAVING[..]].concat();
    let output = with_file_limit(&place, 8, &arguments);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("cannot "), "{}", text(&output.stderr));
    assert_eq!(place.fingerprint("out/checkpoints/step_2"), before);
    assert!(!place.path("out/checkpoints/step_4").exists());
    assert_eq!(place.train(&SAVING)["steps_done"], 6);
}

/// Runs a command whose stdout takes nothing.
fn into_full(place: &Place, arguments: &[&str]) -> Output {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    place.plain_command().args(arguments).stdout(full).output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let place = Place::new();
    place.train(&SAVING);
    let model = "out/checkpoints/step_8";
    place.write("text.jsonl", "{\"text\": \"a sheep\"}\n");
    let commands: [&[&str]; 20] = [
        &["generate", model, "3 sheep", "--max-new-tokens", "4"],
        &["--json", "generate", model, "3 sheep", "--max-new-tokens", "4"],
        &["score", model, "3 sheep"],
        &["tokenize", model, "3 sheep"],
        &["inspect", model],
        &["verify", model],
        &["fingerprint", model],
        &["diff", model, model],
        &["plan", model],
        &["data", "show", "run.yaml"],
        &["doctor"],
        &["models", "list"],
        &["completions", "bash"],
        &["--help"],
        &["train", "--help"],
        &["--version"],
        &["train", "run.yaml", "--dump-config"],
        &["train", "run.yaml", "--dry-run"],
        &["train", "run.yaml", "train.checkpoint.output_dir=text"],
        &["--json", "train", "run.yaml", "train.checkpoint.output_dir=json"],
    ];
    for arguments in commands {
        let output = into_full(&place, arguments);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {errors}");
        assert!(
            errors.contains("cannot write to stdout: No space left on device"),
            "{arguments:?}: {errors}"
        );
        // The same command succeeds where there is room.
        let output = place.command().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    }
    // What was trained is there nevertheless.
    assert_eq!(place.fingerprint("text/checkpoints/step_2"), place.fingerprint("json/checkpoints/step_2"));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let place = Place::new();
    place.train(&SAVING);
    for arguments in ["generate out/checkpoints/step_8 x --max-new-tokens 40", "--help", "models list"] {
        let command = place.plain_command();
        let program = command.get_program().to_str().unwrap().to_owned();
        let script = format!("{{ {program} {arguments}; echo $? >&2; }} | head -c 1");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(place.path("")).env("HOME", place.path(""));
        let output = shell.env("WEIGHTLOOM_OFFLINE", "1").output().unwrap();
        assert_eq!(text(&output.stderr), "0\n", "{arguments}");
    }
}

#[test]
fn a_model_that_computes_nan_is_an_error() {
    let place = Place::new();
    place.train(&[]);
    place.json(&["export", "out/checkpoints/step_2", "model"]);
    let file = place.path("model/model.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for value in bytes[8 + header..].chunks_exact_mut(4) {
        value.copy_from_slice(&f32::NAN.to_le_bytes());
    }
    fs::write(&file, bytes).unwrap();
    for command in [&["score", "model", "3 sheep"][..], &["generate", "model", "3 sheep"]] {
        let said = place.run(command);
        assert!(said.contains("exit code 1"), "{said}");
        assert!(said.contains("error: the model computed NaN") && said.contains("hint: "), "{said}");
    }
}

/// Runs a command with a small disk mounted at a folder, which only it sees. `None` where
/// that is not allowed.
fn with_small_disk(place: &Place, folder: &str, kibibytes: u64, arguments: &[&str]) -> Option<Output> {
    fs::create_dir_all(place.path(folder)).unwrap();
    let command = place.plain_command();
    let program = command.get_program().to_str().unwrap().to_owned();
    let script = format!("mount -t tmpfs -o size={kibibytes}k none {folder} || exit 99; exec \"$@\"");
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", &script, "sh", &program]).args(arguments).current_dir(place.path(""));
    shell
        .env_clear()
        .env("HOME", place.path(""))
        .env("WEIGHTLOOM_OFFLINE", "1")
        .env("WEIGHTLOOM_THREADS", "1");
    shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let output = shell.output().ok()?;
    let allowed = !matches!(output.status.code(), Some(99)) && !text(&output.stderr).contains("unshare");
    allowed.then_some(output)
}

#[test]
fn a_full_disk_below_tensorboard_does_not_end_a_run() {
    let place = Place::new();
    let steps = ["train.max_steps=60", "train.checkpoint.save_steps=20", "data.max_seq_len=8"];
    place.train(&[&steps[..], &["train.checkpoint.output_dir=whole"]].concat());
    let arguments = [&["--json", "train", "run.yaml"], &steps[..]].concat();
    let Some(output) = with_small_disk(&place, "out/tensorboard", 8, &arguments) else { return };
    let (end, errors) = (ended(&output), text(&output.stderr));
    assert_eq!(end["step"], 60, "{end}");
    assert!(errors.contains("warning: metrics are incomplete") && errors.contains("tfevents"), "{errors}");
    let last = |folder: &str| place.fingerprint(&format!("{folder}/checkpoints/step_60"));
    assert_eq!(last("out"), last("whole"));
    assert_eq!(place.losses("out"), place.losses("whole"));
}

#[test]
fn a_disk_without_room_for_a_checkpoint_is_an_error_before_the_first_step() {
    let place = Place::new();
    let Some(output) = with_small_disk(&place, "out", 64, &["--json", "train", "run.yaml"]) else { return };
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert!(errors.contains("cannot save a checkpoint of ") && errors.contains("are free"), "{errors}");
    assert!(!text(&output.stdout).contains("loss"), "{}", text(&output.stdout));
    // Room for one, but not for all.
    let more = [&["--json", "train", "run.yaml"], &SAVING[..]].concat();
    let Some(output) = with_small_disk(&place, "out", 400, &more) else { return };
    assert!(text(&output.stderr).contains("warning: `out/checkpoints` has "), "{}", text(&output.stderr));
}

#[test]
fn pipes_and_devices_are_not_read_as_data() {
    let place = Place::new();
    let made = Command::new("mkfifo").arg(place.path("pipe.txt")).status().unwrap();
    assert!(made.success());
    fs::create_dir(place.path("mixed")).unwrap();
    fs::copy(place.path("texts/0.txt"), place.path("mixed/0.txt")).unwrap();
    assert!(Command::new("mkfifo").arg(place.path("mixed/pipe.txt")).status().unwrap().success());
    for (path, kind) in [("/dev/zero", "a device"), ("pipe.txt", "a pipe"), ("pip*.txt", "a pipe")] {
        let said = place.run(&["train", "run.yaml", &format!("data.paths=[{path}]"), "data.format=text"]);
        assert!(said.contains("exit code 2"), "{said}");
        assert!(said.contains(&format!("it is {kind}, not a file")) && said.contains("hint: "), "{said}");
    }
    // In a folder they are counted among the files that are not read.
    place.train(&["data.paths=[mixed]"]);
}

/// A document is tokenized in pieces, which are the same tokens and take less memory.
#[cfg(target_os = "linux")]
#[test]
fn a_long_document_does_not_take_a_hundred_times_its_size() {
    let place = Place::new();
    let lines: String =
        (0..70_000).map(|number| format!("{number} sheep jumped over the fence, and so on.\n")).collect();
    let megabytes = lines.len() as f64 / 1e6;
    place.write("long/long.txt", &lines);
    place.train(&["data.paths=[long]", "train.max_steps=1", "data.max_seq_len=8"]);
    let memory = place.records("out")[0]["memory"].as_f64().unwrap() / 1e6;
    assert!(megabytes > 3.0 && memory < 250.0 + 20.0 * megabytes, "{memory} MB for {megabytes} MB");
}

#[cfg(target_os = "linux")]
#[test]
fn a_text_without_end_is_an_error() {
    let place = Place::new();
    for command in ["tokenize", "generate", "score"] {
        let endless = fs::File::open("/dev/zero").unwrap();
        let output = place.plain_command().args([command, "tokenizer", "-"]).stdin(endless).output().unwrap();
        let errors = text(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains("from stdin"), "{command}: {errors}");
    }
}
