//! Runs that are killed, stopped and started again come to the same end.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::place::{Place, ended, is_tidy};

const STEPS: u64 = 40;

const LONG: [&str; 4] = [
    "train.max_steps=40",
    "train.checkpoint.save_steps=2",
    "data.max_seq_len=8",
    "train.checkpoint.keep_last=3",
];

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        // Steele, Lea and Flood's SplitMix.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}

fn start(place: &Place, more: &[&str]) -> Child {
    let mut command = place.plain_command();
    command.args(["--json", "train", "run.yaml"]).args(LONG).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until a run has told so many steps; how many it did tell.
fn wait_for(child: &mut Child, steps: u64) -> u64 {
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let mut told = 0;
    for line in lines.take(steps as usize) {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        told += u64::from(line.get("loss").is_some() && line.get("end").is_none());
    }
    told
}

/// What the uninterrupted run came to: its losses, and its last checkpoint.
fn uninterrupted(place: &Place) -> (Vec<f64>, String) {
    place.train(&[&LONG[..], &["train.checkpoint.output_dir=whole"]].concat());
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
    let place = Place::new();
    let (losses, fingerprint) = uninterrupted(&place);
    let mut dice = Dice(20);
    // Runs that were killed, and those of them that had begun in the middle.
    let (mut killed, mut midway, mut saved) = (0, 0, 0);
    for _ in 0..60 {
        if killed == 20 {
            break;
        }
        let mut child = start(&place, &[]);
        // Most die soon, so that there is something left for the others; some
        // die before their first step.
        wait_for(&mut child, dice.below(6));
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
        if saved == STEPS && killed < 20 {
            // All was done between two kills: once more from the beginning.
            place.remove("out");
            saved = 0;
        }
    }
    assert!(killed == 20 && midway >= 5, "{killed} were killed, {midway} of them midway");
    let output = start(&place, &[]).wait_with_output().unwrap();
    let end = ended(&output);
    assert_eq!((&end["end"], &end["step"]), (&"finished".into(), &STEPS.into()));
    assert_eq!(place.fingerprint(&format!("out/checkpoints/step_{STEPS}")), fingerprint);
    // Every step once, in order, with the same loss to the last bit.
    assert_eq!(place.losses("out"), losses);
    assert_eq!(place.metrics("out").len() as u64, STEPS);
    assert_eq!(steps_there(&place), [STEPS - 4, STEPS - 2, STEPS]);
    assert!(is_tidy(&place.path("out/checkpoints")));
}

fn signal(child: &Child, name: &str) {
    let sent = std::process::Command::new("sh")
        .args(["-c", &format!("kill -s {name} {}", child.id())])
        .status()
        .unwrap();
    assert!(sent.success());
}

#[test]
fn a_run_that_is_told_to_stop_saves_and_goes_on_later() {
    let place = Place::new();
    let (losses, fingerprint) = uninterrupted(&place);
    for (name, ranks) in [("TERM", "1"), ("INT", "1"), ("TERM", "2")] {
        // No checkpoint is due, so that it is the signal that makes one.
        let more = ["train.checkpoint.save_steps=0", "--ranks", ranks];
        let mut child = start(&place, &more);
        wait_for(&mut child, 3);
        signal(&child, name);
        let end = ended(&child.wait_with_output().unwrap());
        assert_eq!(end["end"], "stopped", "{end}");
        let step = end["step"].as_u64().unwrap();
        assert!((3..STEPS).contains(&step), "{end}");
        assert_eq!(steps_there(&place), [step]);
        assert_eq!(place.losses("out").len() as u64, step);
        let end = ended(&start(&place, &more).wait_with_output().unwrap());
        assert_eq!(end["steps_done"], STEPS - step);
        if ranks == "1" {
            assert_eq!(place.losses("out"), losses);
            assert_eq!(place.fingerprint(&format!("out/checkpoints/step_{STEPS}")), fingerprint);
        } else {
            for (one, other) in losses.iter().zip(place.losses("out")) {
                assert!((one - other).abs() <= 1e-4 * one, "{one} {other}");
            }
        }
        place.remove("out");
    }
}

/// A run that stops tells a person so, and how to go on.
#[test]
fn a_stopped_run_says_so() {
    let place = Place::new();
    let mut command = place.plain_command();
    command.args(["train", "run.yaml"]).args(LONG).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.by_ref().take(3).all(|line| line.is_ok()));
    drop(lines);
    signal(&child, "INT");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("stopped at step"), "{text}");
    assert!(text.contains("start it again to go on"), "{text}");
}
