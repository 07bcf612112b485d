//! Runs that are killed, stopped and started again come to the same end.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::place::{Place, ended, is_tidy, stopped};

const STEPS: u64 = 40;

const LONG: [&str; 4] = [
    "train.max_steps=40",
    "train.checkpoint.save_steps=2",
    "data.max_seq_len=8",
    "train.checkpoint.keep_last=3",
];

/// Numbers that look random and are the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        // Steele, Lea and Flood's SplitMix.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

fn start(place: &Place, more: &[&str]) -> Child {
    let mut command = place.command_that_heeds_signals();
    command.args(["--json", "train", "run.yaml"]).args(LONG).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a run has told so many steps; how many it did tell.
fn wait_for(child: &mut Child, steps: u64) -> u64 {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let mut told = 0;
    // The first line is the summary of the run.
    for line in lines.take(1 + steps as usize) {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        told += u64::from(line.get("loss").is_some() && line.get("end").is_none());
    }
    told
}

/// What the uninterrupted run came to: its losses, and its last checkpoint.
fn uninterrupted(place: &Place, more: &[&str]) -> (Vec<f64>, String) {
    place.train(&[&LONG[..], &["train.checkpoint.output_dir=whole"], more].concat());
    (place.losses("whole"), place.fingerprint(&format!("whole/checkpoints/step_{STEPS}")))
}

/// The steps whose checkpoints are there, all of them whole.
fn steps_there(place: &Place) -> Vec<u64> {
    let Ok(entries) = std::fs::read_dir(place.path("out/checkpoints")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<u64> =
        names.filter_map(|name| name.strip_prefix("step_").and_then(|step| step.parse().ok())).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_run_that_is_killed_again_and_again_comes_to_the_same_end() {
    survives(20, &[]);
}

#[test]
fn ranks_that_are_killed_again_and_again_come_to_the_same_end() {
    survives(6, &["--ranks", "2", "train.accelerator.tp=2"]);
}

fn survives(kills: u64, more: &[&str]) {
    let place = Place::new();
    let (losses, fingerprint) = uninterrupted(&place, more);
    let mut dice = Dice(20);
    // Runs that were killed, and those of them that had begun in the middle.
    let (mut killed, mut midway, mut saved) = (0, 0, 0);
    for _ in 0..3 * kills {
        if killed == kills {
            break;
        }
        let mut child = start(&place, more);
        // Most die soon, so that there is something left for the others; some
        // die before their first step. Who has told five steps has saved two.
        wait_for(&mut child, dice.below(10));
        std::thread::sleep(Duration::from_micros(dice.below(2000)));
        child.kill().unwrap();
        if child.wait().unwrap().code().is_none() {
            killed += 1;
            midway += u64::from(saved > 0);
        }
        // What is under the name of a checkpoint is one.
        let steps = steps_there(&place);
        for step in &steps {
            let folder = format!("out/checkpoints/step_{step}");
            let checked = place.command().args(["verify", &folder]).output().unwrap();
            assert!(checked.status.success(), "{folder}: {}", String::from_utf8_lossy(&checked.stderr));
        }
        let last = steps.last().copied().unwrap_or(0);
        assert!(last >= saved, "checkpoint {saved} was there, and {last} is the last now");
        saved = last;
        if saved == STEPS && killed < kills {
            // All was done between two kills: once more from the beginning.
            place.remove("out");
            saved = 0;
        }
    }
    assert!(killed == kills && midway >= kills / 4, "{killed} were killed, {midway} of them midway");
    let output = start(&place, more).wait_with_output().unwrap();
    let end = ended(&output);
    assert_eq!((&end["end"], &end["step"]), (&"finished".into(), &STEPS.into()));
    assert_eq!(place.fingerprint(&format!("out/checkpoints/step_{STEPS}")), fingerprint);
    // Every step once, in order, with the same loss to the last bit.
    assert_eq!(place.losses("out"), losses);
    assert_eq!(place.records("out").len() as u64, STEPS);
    assert_eq!(steps_there(&place), [STEPS - 4, STEPS - 2, STEPS]);
    assert!(is_tidy(&place.path("out/checkpoints")));
}

pub fn signal(child: &Child, name: &str) {
    let sent = std::process::Command::new("sh")
        .args(["-c", &format!("kill -s {name} {}", child.id())])
        .status()
        .unwrap();
    assert!(sent.success());
}

#[test]
fn a_run_that_is_told_to_stop_saves_and_goes_on_later() {
    // So many that the run does not end before the signal arrives, on a busy machine too.
    const MANY: u64 = 2000;
    for (name, ranks) in [("TERM", "1"), ("INT", "1"), ("HUP", "1"), ("USR1", "1"), ("TERM", "2")] {
        let place = Place::new();
        // No checkpoint is due, so that it is the signal that makes one.
        let steps = format!("train.max_steps={MANY}");
        let more = [&steps[..], "train.checkpoint.save_steps=0", "--ranks", ranks];
        place.train(&[&LONG[..], &more, &["train.checkpoint.output_dir=whole"]].concat());
        let mut child = start(&place, &more);
        wait_for(&mut child, 3);
        signal(&child, name);
        let end = stopped(&child.wait_with_output().unwrap());
        let step = end["step"].as_u64().unwrap();
        assert!((3..MANY).contains(&step), "{end}");
        assert_eq!(steps_there(&place), [step]);
        assert_eq!(place.losses("out").len() as u64, step);
        let end = ended(&start(&place, &more).wait_with_output().unwrap());
        assert_eq!(end["steps_done"], MANY - step);
        assert_eq!(place.losses("out"), place.losses("whole"), "{name} with {ranks} ranks");
        let last = |folder: &str| place.fingerprint(&format!("{folder}/checkpoints/step_{MANY}"));
        assert_eq!(last("out"), last("whole"));
    }
}

/// A stopped run says so, and how to resume it.
#[test]
fn a_stopped_run_says_so() {
    let place = Place::new();
    let mut command = place.plain_command();
    command.args(["train", "run.yaml", "train.max_steps=100000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.by_ref().take(3).all(|line| line.is_ok()));
    drop(lines);
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(75), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("stopped at step"), "{text}");
    assert!(text.contains("run the same command again to resume"), "{text}");
}

/// Schedulers announce the end of an allocation with one signal, and send others while
/// the run is saving.
#[test]
fn signals_that_follow_do_not_end_a_save() {
    let place = Place::new();
    let mut child = start(&place, &["train.max_steps=100000"]);
    wait_for(&mut child, 3);
    for name in ["USR1", "TERM", "HUP", "TERM"] {
        signal(&child, name);
    }
    let step = stopped(&child.wait_with_output().unwrap())["step"].as_u64().unwrap();
    assert_eq!(steps_there(&place).last(), Some(&step));
}

/// That is what nohup is for.
#[cfg(target_os = "linux")]
#[test]
fn a_run_that_ignores_the_terminal_outlives_it() {
    let place = Place::new();
    let command = place.plain_command();
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(command.get_program());
    shell.args(["--json", "train", "run.yaml", "train.max_steps=100000"]).current_dir(place.path(""));
    let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.by_ref().take(4).count(), 4);
    signal(&child, "HUP");
    // It would have ended long before.
    assert_eq!(lines.by_ref().take(40).count(), 40);
    signal(&child, "TERM");
    let last = lines.last().unwrap().unwrap();
    assert!(last.contains("\"end\":\"stopped\""), "{last}");
    assert_eq!(child.wait().unwrap().code(), Some(75));
}

/// Two runs in one folder would ruin each other.
#[test]
fn a_folder_with_a_run_under_way_is_left_alone() {
    let place = Place::new();
    let mut first = start(&place, &["train.max_steps=100000"]);
    wait_for(&mut first, 2);
    let is_refused = || {
        let second = place.run(&["train", "run.yaml"]);
        assert!(second.contains("exit code 2"), "{second}");
        let text = "error: another run is writing to `out`\nhint: wait until it has ended";
        assert!(second.contains(text), "{second}");
    };
    is_refused();
    // Also when there is a checkpoint, which the second run could not resume.
    let started = Instant::now();
    while steps_there(&place).is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "no checkpoint");
        std::thread::sleep(Duration::from_millis(20));
    }
    is_refused();
    signal(&first, "TERM");
    stopped(&first.wait_with_output().unwrap());
}
