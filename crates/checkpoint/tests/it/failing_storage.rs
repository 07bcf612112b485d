//! What goes wrong around a checkpoint: full disks, locked folders, files that
//! vanish, ranks that fail. Every rank reports the failure, none waits forever, and what
//! was complete stays as it was.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::model::{blank, locals, state, wanted};
use weightloom_checkpoint::plan::{
    Metadata, PlanContext, PlanError, SavePlan, SavePlanner, StandardSavePlanner, WriteItem,
};
use weightloom_checkpoint::{
    Bytes, CheckpointError, LoadOptions, LocalStorage, MemoryStorage, ReadOptions, SaveOptions, SaveReport,
    Saver, Source, State, Storage, StorageError, StoredFile, Target, TargetError, Upload, load,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::Mesh;

/// A save from two ranks, and what each of them says.
fn save_with(
    target: &Target,
    planner: impl Fn(usize) -> Box<dyn SavePlanner> + Sync,
) -> Vec<Result<SaveReport, CheckpointError>> {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    threads::run(2, patient(), |gang| {
        let locals = locals(mesh, gang.rank(), 3);
        let planner = planner(gang.rank());
        let mut saver = Saver::with_planner(gang, planner)?;
        saver.save(&state(&locals), target, &SaveOptions::default(), &())
    })
    .unwrap()
}

fn save(target: &Target) -> Vec<Result<SaveReport, CheckpointError>> {
    save_with(target, |_| Box::new(StandardSavePlanner::new()))
}

/// Ranks that wait for one another, but not longer than a test may.
fn patient() -> GangOptions {
    GangOptions { timeout: Duration::from_secs(20) }
}

/// Loads a checkpoint on some ranks, each of which wants all of it, and
/// compares every bit.
fn load_on(ranks: usize, source: &Source) -> Vec<Result<(), CheckpointError>> {
    let mesh = Mesh::new(&[("a", ranks)]).unwrap();
    threads::run(ranks, patient(), |gang: Arc<dyn Gang>| {
        // A seed that replicates everything of two dims.
        let expected = locals(mesh, gang.rank(), 2);
        let mut found = locals(mesh, gang.rank(), 2);
        blank(&mut found);
        let (mut blob, mut counters) = (Vec::new(), Vec::new());
        let read = ReadOptions { threads: Some(1), ..ReadOptions::default() };
        let state = wanted(&mut found, &mut blob, &mut counters);
        load(source, state, &*gang, &LoadOptions { read, ..LoadOptions::default() }, &())?;
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.bytes, found.bytes, "{}", expected.name);
        }
        Ok(())
    })
    .unwrap()
}

fn assert_whole(path: &Path) {
    load_on(1, &Source::open(path).unwrap()).pop().unwrap().unwrap();
}

/// A folder with a checkpoint that must survive whatever happens.
fn with_older() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let older = folder.path().join("older");
    save(&Target::Folder(older.clone())).into_iter().for_each(|rank| assert!(rank.is_ok(), "{rank:?}"));
    (folder, older)
}

fn texts<T: std::fmt::Debug>(outcomes: Vec<Result<T, CheckpointError>>) -> Vec<String> {
    outcomes.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect()
}

/// What is in a folder, hidden names too.
fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

const TASK: &str = "WEIGHTLOOM_TEST_FULL";

/// Runs itself where there is room for one checkpoint but not for a second:
/// on a small filesystem where one can be mounted, else under a limit to the
/// length of files.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_and_frees_its_space() {
    if let Ok(folder) = env::var(TASK) {
        return fill(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |wrapper: &str| {
        Command::new("bash")
            .args(["-c", wrapper])
            .arg(env::current_exe().unwrap())
            .arg(folder.path())
            .env(TASK, folder.path())
            .output()
            .unwrap()
    };
    let again =
        r#"exec "$0" --exact failing_storage::a_full_disk_is_reported_and_frees_its_space --nocapture"#;
    let mounted = run(&format!(
        r#"exec unshare -m bash -c 'mount -t tmpfs -o size=200k none "$1" && {again}' "$0" "$1""#
    ));
    let said = String::from_utf8_lossy(&mounted.stdout).into_owned();
    if said.contains("full: ") {
        assert!(mounted.status.success(), "{said}{}", String::from_utf8_lossy(&mounted.stderr));
        assert!(said.contains("StorageFull"), "{said}");
    }
    let limited = run(&format!("trap '' XFSZ; ulimit -f 100; {again}"));
    let said = String::from_utf8_lossy(&limited.stdout).into_owned();
    assert!(limited.status.success(), "{said}{}", String::from_utf8_lossy(&limited.stderr));
    assert!(said.contains("full: FileTooLarge"), "{said}");
}

/// Saves a little, then too much, then a little.
fn fill(folder: &Path) {
    let target = |name: &str| Target::Folder(folder.join(name));
    save(&target("older")).into_iter().for_each(|rank| assert!(rank.is_ok(), "{rank:?}"));
    let outcomes = threads::run(2, patient(), |gang| {
        let mesh = Mesh::new(&[("a", 2)]).unwrap();
        let locals = locals(mesh, gang.rank(), 3);
        let mut state = state(&locals);
        // Bytes are written by one rank alone.
        state.bytes("large", vec![7; 400_000]);
        Saver::new(gang)?.save(&state, &target("larger"), &SaveOptions::default(), &())
    });
    let outcomes = outcomes.unwrap();
    let kind = outcomes.iter().find_map(|outcome| match outcome {
        Err(CheckpointError::Storage(StorageError::Io { kind, .. })) => Some(*kind),
        _ => None,
    });
    let messages = texts(outcomes);
    assert!(
        messages.iter().any(|text| text.starts_with("rank ")),
        "the other rank names the rank whose disk it was: {messages:?}"
    );
    assert_eq!(names(folder), ["older"], "what was written in vain is gone");
    let mut out = io::stdout().lock();
    writeln!(out, "full: {:?}", kind.unwrap()).unwrap();
    drop(out);
    assert_whole(&folder.join("older"));
    fs::remove_dir_all(folder.join("older")).unwrap();
    save(&target("larger")).into_iter().for_each(|rank| assert!(rank.is_ok(), "{rank:?}"));
    assert_whole(&folder.join("larger"));
}

#[test]
fn places_that_cannot_be_written_are_named() {
    let (folder, older) = with_older();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    // Below a file, and in a filesystem where nobody may make folders.
    for path in [file.join("step_1"), PathBuf::from("/proc/weightloom/step_1")] {
        let messages = texts(save(&Target::Folder(path.clone())));
        let name = path.parent().unwrap().display().to_string();
        assert!(messages.iter().all(|text| text.contains(&name)), "{messages:?}");
        assert!(messages[1].starts_with("rank 0: cannot "), "{messages:?}");
    }
    for path in ["/", "..", ""] {
        let messages = save(&Target::Folder(PathBuf::from(path)));
        assert!(messages.iter().all(Result::is_err), "{path}: {messages:?}");
    }
    assert_whole(&older);
}

#[test]
fn nothing_that_exists_is_overwritten() {
    let (folder, older) = with_older();
    let file = folder.path().join("file");
    fs::write(&file, b"mine").unwrap();
    for path in [&older, &file] {
        let messages = save(&Target::Folder(path.clone()));
        assert!(
            matches!(messages[0], Err(CheckpointError::Target(TargetError::Exists { .. }))),
            "{messages:?}"
        );
        assert!(messages[1].as_ref().unwrap_err().to_string().starts_with("rank 0: `"), "{messages:?}");
    }
    let objects = folder.path().join("objects");
    fs::create_dir(&objects).unwrap();
    let objects = Target::Objects(Arc::new(LocalStorage::new(objects)));
    save(&objects).into_iter().for_each(|rank| assert!(rank.is_ok(), "{rank:?}"));
    assert!(texts(save(&objects)).iter().all(|text| text.contains("exists already")));
    assert_eq!(fs::read(file).unwrap(), b"mine");
    assert_whole(&older);
}

#[test]
fn files_that_change_after_they_were_opened_are_noticed() {
    let (_folder, older) = with_older();
    let source = Source::open(&older).unwrap();
    let model = older.join("model.safetensors");
    let bytes = fs::read(&model).unwrap();
    // Open files outlive their names.
    fs::remove_file(&model).unwrap();
    load_on(1, &source).pop().unwrap().unwrap();
    assert!(texts(vec![Source::open(&older).map(|_| ())])[0].contains("cannot find `model.safetensors`"));
    fs::write(&model, &bytes).unwrap();
    let source = Source::open(&older).unwrap();
    fs::File::options().write(true).open(&model).unwrap().set_len(bytes.len() as u64 - 1).unwrap();
    assert!(texts(load_on(1, &source))[0].contains("`model.safetensors` ends before byte"));

    let memory = Arc::new(
        MemoryStorage::copy_of(&LocalStorage::new(&older)).unwrap().with("model.safetensors", &bytes),
    );
    let source = Source::open_folder(memory.clone()).unwrap();
    memory.change(|files| files.remove("model.safetensors"));
    for ranks in [1, 2, 3] {
        let messages = texts(load_on(ranks, &source));
        assert!(
            messages.iter().all(|text| text.contains("cannot find `model.safetensors` in memory")),
            "{messages:?}"
        );
    }
}

/// Gives out no data on one rank.
struct Failing {
    inner: StandardSavePlanner,
    fails: bool,
}

impl SavePlanner for Failing {
    fn name(&self) -> &str {
        "failing"
    }

    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
        self.inner.configure(state, context)
    }

    fn derived_plan(&mut self) -> Result<(SavePlan, Metadata), PlanError> {
        self.inner.derived_plan()
    }

    fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
        self.inner.local_plan()
    }

    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        self.inner.global_plan(plans)
    }

    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
        if self.fails {
            return Err(PlanError::NoSuchItem { name: "what this rank lost".to_owned() });
        }
        self.inner.data(state, item)
    }
}

#[test]
fn a_rank_that_fails_is_named_on_all_ranks() {
    let (folder, older) = with_older();
    let target = Target::Folder(folder.path().join("newer"));
    for lost in [0, 1] {
        let planner = |rank: usize| -> Box<dyn SavePlanner> {
            Box::new(Failing { inner: StandardSavePlanner::new(), fails: rank == lost })
        };
        let messages = texts(save_with(&target, planner));
        let lost_text = "planner `failing` failed: cannot save `what this rank lost`";
        assert!(messages[lost].starts_with(lost_text), "{messages:?}");
        assert!(messages[1 - lost].starts_with(&format!("rank {lost}: {lost_text}")), "{messages:?}");
    }
    assert_eq!(names(folder.path()), ["older"]);
    save(&target).into_iter().for_each(|rank| assert!(rank.is_ok(), "{rank:?}"));
    assert_whole(&older);
}

#[test]
fn a_rank_that_is_gone_does_not_hold_up_the_others() {
    let (folder, older) = with_older();
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let path = folder.path().join("newer");
    let started = Instant::now();
    let outcomes = threads::run(2, GangOptions::default(), |gang| {
        let locals = locals(mesh, gang.rank(), 3);
        let leaves = gang.rank() == 1;
        let mut saver = Saver::new(gang)?;
        if leaves {
            return Ok(None);
        }
        saver.save(&state(&locals), &Target::Folder(path.clone()), &SaveOptions::default(), &()).map(Some)
    });
    let messages = outcomes.unwrap().remove(0).unwrap_err().to_string();
    assert!(messages.contains("rank 1"), "{messages}");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(!path.exists());
    assert_whole(&older);
}

/// Fails at the call with a certain number and at all after it, until it is
/// mended.
struct Fragile {
    inner: MemoryStorage,
    calls: AtomicUsize,
    most: AtomicUsize,
}

impl Fragile {
    fn new(inner: MemoryStorage, most: usize) -> Self {
        Self { inner, calls: AtomicUsize::new(0), most: AtomicUsize::new(most) }
    }

    fn mend(&self) {
        self.most.store(usize::MAX, Ordering::SeqCst);
    }

    fn call(&self, file: &str) -> Result<(), StorageError> {
        if self.calls.fetch_add(1, Ordering::SeqCst) < self.most.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (kind, message) = (io::ErrorKind::Other, "the cable is out".to_owned());
        Err(StorageError::Io { action: "reach", file: file.to_owned(), kind, message })
    }
}

impl Storage for Fragile {
    fn location(&self) -> String {
        self.inner.location()
    }

    fn list(&self) -> Result<Vec<StoredFile>, StorageError> {
        self.call("")?;
        self.inner.list()
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        self.call(name)?;
        self.inner.length(name)
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.call(name)?;
        self.inner.read_at(name, offset, into)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.call(name)?;
        self.inner.put(name, bytes)
    }

    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        self.call(name)?;
        self.inner.create(name)
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.inner.remove(name)
    }

    fn gap(&self) -> u64 {
        0
    }
}

#[test]
fn a_load_that_fails_at_any_read_says_so() {
    let (_folder, older) = with_older();
    let memory = MemoryStorage::copy_of(&LocalStorage::new(&older)).unwrap();
    let started = Instant::now();
    for ranks in [1, 2, 3] {
        let mut failures = 0;
        loop {
            let storage = Arc::new(Fragile::new(memory.clone(), failures));
            let outcomes = match Source::open_folder(storage) {
                Ok(source) => load_on(ranks, &source),
                Err(error) => vec![Err(error)],
            };
            let messages: Vec<String> =
                outcomes.iter().filter_map(|rank| Some(rank.as_ref().err()?.to_string())).collect();
            if messages.is_empty() {
                break;
            }
            assert!(
                messages.iter().all(|text| text.contains("the cable is out")),
                "{failures}: {messages:?}"
            );
            failures += 1;
        }
        assert!(failures > 12, "{failures}");
    }
    assert!(started.elapsed() < Duration::from_secs(15), "no rank waited for one that had failed");
}

#[test]
fn a_save_that_fails_at_any_write_says_so_and_can_be_done_again() {
    for most in 0.. {
        let storage = Arc::new(Fragile::new(MemoryStorage::default(), most));
        let target = Target::Objects(storage.clone());
        let outcomes = save(&target);
        if outcomes.iter().all(Result::is_ok) {
            assert!(most > 4);
            break;
        }
        let messages = texts(outcomes);
        assert!(messages.iter().all(|text| text.contains("the cable is out")), "{most}: {messages:?}");
        storage.mend();
        assert!(Source::open_folder(storage.clone()).is_err());
        save(&target).into_iter().for_each(|rank| assert!(rank.is_ok(), "{rank:?}"));
        load_on(2, &Source::open_folder(storage).unwrap()).into_iter().for_each(|rank| rank.unwrap());
    }
}

#[test]
fn a_failed_background_save_is_reported_by_the_next_call() {
    let (folder, older) = with_older();
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let storage = Arc::new(Fragile::new(MemoryStorage::default(), 3));
    let newer = Target::Folder(folder.path().join("newer"));
    threads::run(2, patient(), |gang| {
        let (rank, options) = (gang.rank(), SaveOptions::default());
        let locals = locals(mesh, rank, 3);
        let state = state(&locals);
        let mut saver = Saver::new(gang).unwrap();
        saver.save_async(&state, &Target::Objects(storage.clone()), &options, Arc::new(())).unwrap();
        let messages = saver.save(&state, &newer, &options, &()).unwrap_err().to_string();
        assert!(messages.contains("the cable is out"), "{messages}");
        // Told once; then there is nothing in the way.
        saver.save_async(&state, &newer, &options, Arc::new(())).unwrap();
        assert!(saver.wait().unwrap().is_some());
    })
    .unwrap();
    storage.mend();
    assert!(Source::open_folder(storage).is_err());
    assert_whole(&older);
    assert_whole(&folder.path().join("newer"));
}
