//! A save that is killed, anywhere: what was committed stays, nothing else is
//! taken for a checkpoint, and the next save to the same name succeeds.
//!
//! The test runs itself as the program that saves, and kills it. Three things
//! say when: a delay, anywhere in the time that saves take; what can be seen
//! in the folder; and the saving program itself, which stops and waits for its
//! end at a piece of work with a certain number.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::model::{bytes_of, layout_for, part};
use weightloom_checkpoint::plan::LoadState;
use weightloom_checkpoint::{
    CheckpointError, Format, LoadOptions, LocalStorage, LocalTensor, Observer, SaveOptions, Saver, Sharding,
    Source, State, Target, TensorSpec, load,
};
use weightloom_gang::{GangOptions, threads};
use weightloom_layout::{DType, Mesh, Shape};

/// Tells the test that it is the program that saves: where, from which step
/// on, and at which piece of work to wait for the end.
const TASK: &str = "WEIGHTLOOM_TEST_SAVES";
const NAME: &str = "killed::a_save_killed_anywhere_leaves_what_was_committed";
const TENSORS: [(&str, [usize; 2]); 5] =
    [("model.a", [40, 24]), ("model.b", [33, 17]), ("model.c", [5, 300]), ("m", [40, 24]), ("v", [7, 9])];
const DTYPE: DType = DType::F32;

#[test]
fn a_save_killed_anywhere_leaves_what_was_committed() {
    match env::var(TASK) {
        Ok(task) => save_until_killed(&task),
        Err(_) => kill_saves(),
    }
}

/// A task of the program that saves.
#[derive(Clone, Copy)]
struct Task {
    step: u64,
    /// The piece of work to stop at, or 0 for none.
    stop: u64,
}

fn kill_saves() {
    // A killed process leaves behind what it wrote, on any filesystem. In
    // memory nothing waits for a disk, which makes room for many kills; a few
    // are done where saves usually go.
    let disk = tempfile::tempdir().unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut watch = Watch { folder: disk.path().to_owned(), ..Watch::default() };
    watch.kill_at_random(30);
    watch.folder = memory.path().to_owned();
    watch.next = 0;
    watch.kill_at_random(300);
    for turn in 0..120 {
        let run = Run::start(&watch.folder, Task { step: watch.next, stop: 0 });
        run.until_partial_holds(turn % 8);
        watch.kill(run);
    }
    for turn in 0..100 {
        let mut run = Run::start(&watch.folder, Task { step: watch.next, stop: 1 + turn % 25 });
        while run.next_saved().is_some() {}
        watch.kill(run);
    }

    let Watch { kills, partials, phases, committed_unsaid, saved, interrupted, retaken, .. } = watch;
    let messages = format!(
        "{kills} kills: {partials} left an unfinished folder, by its number of files {phases:?}; \
         {committed_unsaid} came between a commit and its report; {saved} saves were committed, {retaken} of \
         {interrupted} that were cut short before"
    );
    say(&messages);
    assert!(kills > 500);
    // Not all at one moment: before, within and behind the writing.
    assert!(partials > kills / 4 && partials < kills, "{messages}");
    assert!(phases.len() >= 5, "{messages}");
    assert!(saved > 50 && retaken > 20, "{messages}");
}

/// What was found after all kills so far.
#[derive(Default)]
struct Watch {
    folder: PathBuf,
    /// The next step to save.
    next: u64,
    kills: usize,
    partials: usize,
    /// Files in the unfinished folders, and how often there were so many.
    phases: BTreeMap<usize, usize>,
    committed_unsaid: usize,
    saved: usize,
    interrupted: usize,
    retaken: usize,
    /// Whether the next step was cut short before.
    cut: Option<u64>,
}

impl Watch {
    /// Kills at moments spread evenly over two saves and a little more; the
    /// kinds of save take turns.
    fn kill_at_random(&mut self, times: u32) {
        let mut run = Run::start(&self.folder, Task { step: self.next, stop: 0 });
        assert!(run.next_saved().is_some());
        let started = Instant::now();
        (0..8).for_each(|_| assert!(run.next_saved().is_some()));
        let span = started.elapsed() * 5 / 16;
        self.kill(run);
        // In an order that has no rhythm: steps of the golden ratio.
        for turn in 0..times {
            let run = Run::start(&self.folder, Task { step: self.next, stop: 0 });
            std::thread::sleep(span.mul_f64((f64::from(turn) * 0.618_033_988_75).fract()));
            self.kill(run);
        }
    }

    fn kill(&mut self, mut run: Run) {
        run.child.kill().unwrap();
        run.child.wait().unwrap();
        self.kills += 1;
        let said = run.said();
        let mut committed = Vec::new();
        for entry in fs::read_dir(&self.folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            match name.strip_prefix("step_") {
                Some(step) => committed.push(step.parse::<u64>().unwrap()),
                // The lock of a killed process is free.
                None if name.ends_with(".lock") => {}
                None => self.check_unfinished(&path),
            }
        }
        committed.sort_unstable();
        // All that was said to be saved is there, and at most one more.
        let last = committed.last().copied();
        assert!(said.iter().all(|step| committed.contains(step)), "{said:?} {committed:?}");
        for &step in &committed {
            check_committed(&self.folder.join(format!("step_{step}")), step);
        }
        let new = committed.iter().filter(|&&step| step >= self.next).count();
        assert!(new <= said.len() + 1, "{said:?} {committed:?}");
        self.committed_unsaid += new - said.len();
        self.saved += new;
        if new > 0 && self.cut == Some(self.next) {
            self.retaken += 1;
        }
        self.next = last.map_or(0, |step| step + 1).max(self.next);
        // Only the newest is kept; it must outlive the next kill.
        for step in committed.iter().rev().skip(1) {
            fs::remove_dir_all(self.folder.join(format!("step_{step}"))).unwrap();
        }
    }

    fn check_unfinished(&mut self, partial: &Path) {
        self.partials += 1;
        let files: Vec<PathBuf> = fs::read_dir(partial).unwrap().map(|entry| entry.unwrap().path()).collect();
        *self.phases.entry(files.len()).or_default() += 1;
        let step = partial.file_name().unwrap().to_str().unwrap();
        let step = step.strip_prefix(".step_").unwrap().split('.').next().unwrap().parse().unwrap();
        if self.cut != Some(step) {
            self.interrupted += 1;
            self.cut = Some(step);
        }
        let refused = |path: &Path| match Source::open(path).map(|source| source.index.format()) {
            Err(CheckpointError::Unfinished { .. }) => {}
            other => panic!("{}: {other:?}", path.display()),
        };
        refused(partial);
        files.iter().filter(|file| file.extension().is_some_and(|end| end == "safetensors")).for_each(
            |file| {
                refused(file);
            },
        );
        // Nor under another name, unless all of it was there and only the
        // rename was not.
        let other = self.folder.join("renamed");
        fs::rename(partial, &other).unwrap();
        match Source::open(&other) {
            Err(_) => {}
            Ok(source) if source.index.format() == Format::Native => check_committed(&other, step),
            // Files that can be read are whole. Some may be gone: the next
            // save removes what this one left, and may be killed at that.
            Ok(source) => assert!(check_tensors(&source, step) > 0),
        }
        fs::rename(&other, partial).unwrap();
    }
}

/// Loads a checkpoint whole, with checksums, and compares every bit.
fn check_committed(path: &Path, step: u64) {
    let source = Source::open(path).unwrap();
    assert_eq!(source.index.format(), Format::Native);
    assert_eq!(check_tensors(&source, step), TENSORS.len());
    assert_eq!(source.read_bytes("step").unwrap().unwrap(), step.to_string().as_bytes());
    assert_eq!(fs::read(path.join("config.json")).unwrap(), b"{}");
}

/// Compares every bit of the tensors that are there, and says how many are.
fn check_tensors(source: &Source, step: u64) -> usize {
    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    threads::run(1, GangOptions::default(), |gang| {
        let mut expected = locals(mesh, 0, step);
        expected.retain(|(name, ..)| source.index.tensors().contains_key(*name));
        let mut found: Vec<Vec<u8>> = expected.iter().map(|(.., bytes)| vec![0; bytes.len()]).collect();
        let mut state = LoadState::new();
        for ((name, spec, _), into) in expected.iter().zip(&mut found) {
            state.tensor(*name, spec.clone(), into);
        }
        let unexpected = weightloom_checkpoint::plan::UnexpectedKeys::Ignore;
        load(source, state, &*gang, &LoadOptions { unexpected, ..LoadOptions::default() }, &()).unwrap();
        for ((name, _, expected), found) in expected.iter().zip(&found) {
            assert_eq!(expected, found, "{name} of step {step}");
        }
        found.len()
    })
    .unwrap()[0]
}

/// The program that saves, while it runs.
struct Run {
    child: Child,
    lines: Receiver<String>,
    said: Vec<u64>,
    folder: PathBuf,
    step: u64,
}

impl Run {
    fn start(folder: &Path, Task { step, stop }: Task) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(TASK, format!("{step} {stop} {}", folder.display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        let run = Self { child, lines, said: Vec::new(), folder: folder.to_owned(), step };
        // The clock starts when the first save does, not when the process does.
        while !run.line().ends_with("ready") {}
        run
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// The next step that was saved, or `None` if the program has stopped and
    /// waits for its end.
    fn next_saved(&mut self) -> Option<u64> {
        let step = self.line().strip_prefix("saved ")?.parse().unwrap();
        self.said.push(step);
        Some(step)
    }

    /// Waits until the first save's unfinished folder has so many files, or
    /// has got its name.
    fn until_partial_holds(&self, files: usize) {
        let path = self.folder.join(format!("step_{}", self.step));
        let holds = || {
            unfinished(&self.folder, self.step)
                .iter()
                .any(|folder| fs::read_dir(folder).is_ok_and(|found| found.count() >= files))
        };
        while !holds() && !path.exists() {
            std::hint::spin_loop();
        }
    }

    /// All that the program, which has ended, said to be saved.
    fn said(mut self) -> Vec<u64> {
        loop {
            match self.lines.recv_timeout(Duration::from_secs(60)) {
                Ok(line) => {
                    self.said.extend(line.strip_prefix("saved ").map(|step| step.parse::<u64>().unwrap()));
                }
                Err(RecvTimeoutError::Disconnected) => return self.said,
                Err(RecvTimeoutError::Timeout) => panic!("the program outlived its end"),
            }
        }
    }
}

/// The unfinished folders of a step.
fn unfinished(folder: &Path, step: u64) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let prefix = format!(".step_{step}.");
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(&prefix) && name.ends_with(".partial")
    };
    entries.filter(is_ours).collect()
}

/// Counts pieces of work, and stops at one of them for good.
struct StopAt {
    piece: u64,
    done: AtomicU64,
}

impl StopAt {
    fn count(&self) {
        if self.done.fetch_add(1, Ordering::SeqCst) + 1 == self.piece {
            say("stopped");
            loop {
                std::thread::park();
            }
        }
    }
}

impl Observer for StopAt {
    fn begin(&self, _: &str, _: u64) {
        self.count();
    }

    fn advance(&self, _: u64) {
        self.count();
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).unwrap();
}

/// Saves step after step: from one rank and from two, now and in the
/// background, in turns.
fn save_until_killed(task: &str) {
    let mut words = task.splitn(3, ' ');
    let mut number = || words.next().unwrap().parse::<u64>().unwrap();
    let (first, stop) = (number(), number());
    let folder = PathBuf::from(words.next().unwrap());
    let observer = Arc::new(StopAt { piece: stop, done: AtomicU64::new(0) });
    say("ready");
    for step in first.. {
        let ranks = 1 + (step as usize & 1);
        let mesh = Mesh::new(&[("a", ranks)]).unwrap();
        let target = Target::Folder(folder.join(format!("step_{step}")));
        let options = SaveOptions {
            shard_size: 5000,
            assets: BTreeMap::from([("config.json".to_owned(), b"{}".to_vec())]),
            step: Some(step),
            threads: Some(2),
            ..SaveOptions::default()
        };
        let saved = threads::run(ranks, GangOptions::default(), |gang| {
            let locals = locals(mesh, gang.rank(), step);
            let mut state = State::new();
            for (name, spec, bytes) in &locals {
                let tensor = LocalTensor { spec: spec.clone(), bytes: bytes.into() };
                if name.starts_with("model.") {
                    state.model(*name, tensor)
                } else {
                    state.training(*name, tensor)
                };
            }
            state.value("step", &step).unwrap();
            let mut saver = Saver::new(gang)?;
            if step % 4 < 2 {
                return saver.save(&state, &target, &options, &*observer).map(|_| ());
            }
            let observer: Arc<StopAt> = Arc::clone(&observer);
            saver.save_async(&state, &target, &options, observer)?;
            saver.wait().map(|_| ())
        });
        for rank in saved.unwrap() {
            rank.unwrap();
        }
        say(&format!("saved {step}"));
    }
}

/// A rank's tensors at a step; they differ from step to step.
fn locals(mesh: Mesh, rank: usize, step: u64) -> Vec<(&'static str, TensorSpec, Vec<u8>)> {
    let local = |(number, (name, dims)): (usize, (&'static str, [usize; 2]))| {
        let shape = Shape::new(&dims).unwrap();
        let layout = layout_for(mesh, 2, number as u64);
        let region = layout.region_of(&shape, rank).unwrap();
        let whole = bytes_of(&format!("{name} at {step}"), DTYPE, &dims);
        let bytes = part(&whole, DTYPE, &shape, &region);
        (name, TensorSpec { dtype: DTYPE, shape, sharding: Sharding::Layout(layout) }, bytes)
    };
    TENSORS.into_iter().enumerate().map(local).collect()
}

#[test]
fn objects_without_a_manifest_are_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Arc::new(LocalStorage::new(folder.path()));
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    threads::run(2, GangOptions::default(), |gang| {
        let locals = locals(mesh, gang.rank(), 1);
        let mut state = State::new();
        for (name, spec, bytes) in &locals {
            state.model(*name, LocalTensor { spec: spec.clone(), bytes: bytes.into() });
        }
        let target = Target::Objects(storage.clone());
        Saver::new(gang).unwrap().save(&state, &target, &SaveOptions::default(), &()).unwrap();
    })
    .unwrap();
    assert_eq!(check_tensors(&Source::open(folder.path()).unwrap(), 1), TENSORS.len());
    // Killed before the manifest, and before the second rank's file.
    for late in ["weightloom.json", "chunks-00001.safetensors"] {
        fs::remove_file(folder.path().join(late)).unwrap();
        let opened = Source::open(folder.path()).map(|source| source.index.format());
        assert!(matches!(opened, Err(CheckpointError::Unfinished { .. })), "{opened:?}");
    }
}
