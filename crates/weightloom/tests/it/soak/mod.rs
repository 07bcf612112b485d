//! Training, saving, resuming, serving, converting and judging on bad days.
//!
//! Processes are killed at random moments, disks are full, folders read-only, memory
//! short, checkpoints damaged, and a web server is slow and fails. Every result is compared with that of an undisturbed run.
//! The test takes half a minute; `scripts/soak 60` runs it for an hour.

mod fault;
mod model;
mod storage;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::train::interruptions::Dice;
use crate::train::place::{Place, ended};
use fault::{Ended, Fault};
use model::Judging;
use storage::BadStorage;

const STEPS: u64 = 40;

const RUN: [&str; 7] = [
    "--json",
    "train",
    "run.yaml",
    "train.max_steps=40",
    "train.checkpoint.save_steps=2",
    "train.checkpoint.keep_last=3",
    "data.max_seq_len=8",
];

/// The checkpoint that is served, converted and judged.
const MODEL: &str = "whole/checkpoints/step_40";

struct Soak {
    place: Place,
    dice: Dice,
    /// Operations and faults, by name.
    operations: BTreeMap<&'static str, u64>,
    faults: BTreeMap<&'static str, u64>,
    /// Steps of the run in `out` that were damaged here.
    damaged: BTreeSet<u64>,
    /// Whether every record of the run in `out` could be written.
    all_recorded: bool,
    fingerprint: String,
    converted: String,
    file: String,
    losses: Vec<f64>,
    /// How long an undisturbed run takes.
    duration: Duration,
    judging: Judging,
    storage: BadStorage,
}

#[test]
fn bad_days_lose_nothing_and_change_nothing() {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<f64>().ok());
    let minutes = variable("WEIGHTLOOM_SOAK_MINUTES").unwrap_or(0.5);
    let seed = variable("WEIGHTLOOM_SOAK_SEED").unwrap_or(19.0) as u64;
    let mut soak = Soak::new(seed);
    let begun = Instant::now();
    let mut shown = Instant::now();
    while begun.elapsed().as_secs_f64() < 60.0 * minutes {
        soak.round();
        if shown.elapsed() > Duration::from_secs(60) {
            shown = Instant::now();
            soak.report(begun.elapsed());
        }
    }
    soak.finish();
    soak.report(begun.elapsed());
    assert!(soak.faults.len() > 3 && soak.operations.len() > 3, "{:?} {:?}", soak.operations, soak.faults);
}

fn count(of: &mut BTreeMap<&'static str, u64>, name: &'static str) {
    *of.entry(name).or_default() += 1;
}

impl Soak {
    fn new(seed: u64) -> Self {
        let place = Place::new();
        let begun = Instant::now();
        let whole = [&RUN[..], &["train.checkpoint.output_dir=whole"]].concat();
        ended(&place.command().args(whole).output().unwrap());
        let duration = begun.elapsed();
        place.json(&["convert", MODEL, "expected", "--to", "hf"]);
        Self {
            fingerprint: place.fingerprint(MODEL),
            converted: place.fingerprint("expected"),
            file: place.fingerprint(&format!("expected/{}", storage::NAME)),
            losses: place.losses("whole"),
            judging: Judging::new(&place, MODEL),
            storage: BadStorage::start(fs::read(place.path("expected").join(storage::NAME)).unwrap(), seed),
            place,
            dice: Dice(seed),
            operations: BTreeMap::new(),
            faults: BTreeMap::new(),
            damaged: BTreeSet::new(),
            all_recorded: true,
            duration,
        }
    }

    /// One operation with one fault.
    fn round(&mut self) {
        match self.dice.below(12) {
            0 => self.serve(),
            1 => self.judge(),
            2 => self.convert(),
            3 => self.download(),
            _ => self.train(),
        }
    }

    /// Runs a command with a fault; how it ended, if the fault could be injected.
    fn run(&mut self, fault: Fault, arguments: &[&str]) -> Option<Ended> {
        // Most die early, so that runs have long lives.
        let longest = self.duration.as_micros() as u64 / (1 + self.dice.below(3)) + 1;
        let moment = Duration::from_micros(self.dice.below(longest));
        let child = fault.start(&self.place, &mut self.dice, arguments);
        let ended = Ended::wait(child, fault, moment);
        if !ended.was_allowed() {
            return None;
        }
        if fault != Fault::None {
            count(&mut self.faults, fault.name());
        }
        Some(ended)
    }

    /// Starts or resumes the run, damages its newest checkpoint now and then, and
    /// compares what it comes to.
    fn train(&mut self) {
        if self.dice.below(4) == 0 {
            self.damage();
        }
        let fault = Fault::random(&mut self.dice, "out");
        let Some(ended) = self.run(fault, &RUN) else { return };
        count(&mut self.operations, "train");
        self.all_recorded &= fault != Fault::FullDisk;
        let succeeded = ended.check(fault);
        let summary = || -> Value { serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap() };
        match ended.status.code() {
            Some(0) => {
                assert_eq!((&summary()["end"], &summary()["step"]), (&"finished".into(), &STEPS.into()));
            }
            Some(75) => {
                assert_eq!(summary()["end"], "stopped");
                // What it says is saved is saved.
                let saved = summary()["checkpoint"].as_str().unwrap().to_owned();
                self.place.json(&["verify", &saved]);
            }
            _ => {}
        }
        self.check_folder();
        if succeeded {
            self.check_end();
        }
    }

    /// The steps in the folder of the run.
    fn steps(&self) -> BTreeSet<u64> {
        let Ok(entries) = fs::read_dir(self.place.path("out/checkpoints")) else { return BTreeSet::new() };
        let names = entries.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        names.filter_map(|name| name.strip_prefix("step_")?.parse().ok()).collect()
    }

    fn verifies(&self, folder: &str) -> bool {
        self.place.command().args(["verify", folder]).output().unwrap().status.success()
    }

    /// What has the name of a checkpoint is whole, unless it was damaged here.
    fn check_folder(&mut self) {
        let steps = self.steps();
        self.damaged.retain(|step| steps.contains(step));
        for step in steps {
            let folder = format!("out/checkpoints/step_{step}");
            match self.verifies(&folder) {
                true => {
                    self.damaged.remove(&step);
                }
                false => assert!(self.damaged.contains(&step), "{folder} is not whole"),
            }
        }
        count(&mut self.operations, "verify");
    }

    fn check_end(&mut self) {
        assert_eq!(self.place.fingerprint(&format!("out/checkpoints/step_{STEPS}")), self.fingerprint);
        if self.all_recorded {
            assert_eq!(self.place.losses("out"), self.losses);
        }
        count(&mut self.operations, "finished run");
        self.place.remove("out");
        self.damaged.clear();
        self.all_recorded = true;
    }

    /// Damages the newest checkpoint, as long as an older one is intact.
    fn damage(&mut self) {
        let steps = self.steps();
        let intact = steps.difference(&self.damaged).count();
        let Some(&step) = steps.last().filter(|step| intact >= 2 && !self.damaged.contains(step)) else {
            return;
        };
        let folder = self.place.path(&format!("out/checkpoints/step_{step}"));
        let files: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
            .collect();
        let file = &files[self.dice.below(files.len() as u64) as usize];
        let length = fs::metadata(file).unwrap().len();
        let name = match self.dice.below(5) {
            0 => {
                fs::remove_dir_all(&folder).unwrap();
                fs::create_dir(&folder).unwrap();
                "emptied checkpoint"
            }
            1 => {
                fs::remove_file(file).unwrap();
                "deleted file"
            }
            2 => {
                let shorter = self.dice.below(length);
                fs::File::options().write(true).open(file).unwrap().set_len(shorter).unwrap();
                "truncated file"
            }
            3 => {
                fs::remove_file(folder.join("weightloom.json")).unwrap();
                "deleted manifest"
            }
            _ => {
                let at = self.dice.below(length) as usize;
                flip(file, at);
                "flipped bit"
            }
        };
        count(&mut self.faults, name);
        self.damaged.insert(step);
    }

    fn serve(&mut self) {
        let fault = [Fault::None, Fault::Kill, Fault::Memory][self.dice.below(3) as usize];
        let moment = Duration::from_micros(self.dice.below(self.duration.as_micros() as u64 + 1));
        let child = fault.start(&self.place, &mut self.dice, &model::serve(MODEL));
        self.judging.ask_server(child, fault, moment);
        count(&mut self.operations, "serve");
        if fault != Fault::None {
            count(&mut self.faults, fault.name());
        }
    }

    fn judge(&mut self) {
        let fault = Fault::random(&mut self.dice, "cache");
        let Some(ended) = self.run(fault, &model::JUDGE) else { return };
        count(&mut self.operations, "judge");
        if ended.check(fault) {
            self.judging.check_verdict(&ended.stdout);
        }
        if self.dice.below(4) == 0 {
            let _ = fs::remove_dir_all(self.place.path("cache"));
        }
    }

    fn convert(&mut self) {
        let fault = Fault::random(&mut self.dice, "cache");
        let Some(ended) = self.run(fault, &["convert", MODEL, "copy", "--to", "hf"]) else { return };
        count(&mut self.operations, "convert");
        let succeeded = ended.check(fault);
        let exists = self.place.path("copy").exists();
        assert!(exists || !succeeded, "{ended:?}");
        if exists {
            assert_eq!(self.place.fingerprint("copy"), self.converted, "{fault:?}");
            self.place.remove("copy");
        }
    }

    /// Converts a file of a server that is slow and fails now and then.
    fn download(&mut self) {
        let fault = [Fault::None, Fault::Kill, Fault::FullDisk][self.dice.below(3) as usize];
        let (url, before) = (self.storage.url(), self.storage.faults());
        let Some(ended) = self.run(fault, &["convert", &url, "copy", "--to", "hf"]) else { return };
        count(&mut self.operations, "download");
        *self.faults.entry("slow or failing storage").or_default() += self.storage.faults() - before;
        // Retries have an end, so that a command may fail without any other fault.
        let gave_up = ended.status.code() == Some(3) && ended.stderr.contains("error");
        let succeeded = !gave_up && ended.check(fault);
        let exists = self.place.path("copy").exists();
        assert!(exists || !succeeded, "{ended:?}");
        if exists {
            assert_eq!(self.place.fingerprint("copy"), self.file, "{fault:?}");
            self.place.remove("copy");
        }
    }

    /// Brings the run in `out` to its end without a fault.
    fn finish(&mut self) {
        let ended = self.run(Fault::None, &RUN).unwrap();
        assert!(ended.check(Fault::None), "{ended:?}");
        self.check_folder();
        self.check_end();
    }

    fn report(&self, after: Duration) {
        let list = |of: &BTreeMap<&str, u64>| {
            let entries: Vec<String> = of.iter().map(|(name, count)| format!("{count} {name}")).collect();
            format!("{} ({})", of.values().sum::<u64>(), entries.join(", "))
        };
        let line = format!(
            "soak: {:.1} minutes, operations: {}, faults: {}, nothing lost, nothing wrong\n",
            after.as_secs_f64() / 60.0,
            list(&self.operations),
            list(&self.faults)
        );
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0x10;
    fs::write(file, bytes).unwrap();
}
