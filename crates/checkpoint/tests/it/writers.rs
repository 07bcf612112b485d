//! Several writers of one target, targets that do not fit, and assets that lead
//! out of their folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use weightloom_checkpoint::{
    CheckpointError, ConvertOptions, Observer, SaveFormat, SaveOptions, Source, StorageError, Target,
    convert, fingerprint,
};
use weightloom_errors::Hint as _;
use weightloom_files::WriteError;
use weightloom_machine::free_space;

/// A safetensors file with two tensors whose bytes are all `fill`.
fn source(path: &Path, fill: u8) -> Source {
    let header = r#"{"a":{"dtype":"U8","shape":[30000],"data_offsets":[0,30000]},
        "b":{"dtype":"U8","shape":[20000],"data_offsets":[30000,50000]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[fill; 50_000]].concat();
    fs::write(path, bytes).unwrap();
    Source::open(path).unwrap()
}

fn to(format: SaveFormat) -> ConvertOptions {
    ConvertOptions { save: SaveOptions { format, ..SaveOptions::default() }, ..ConvertOptions::default() }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn of_concurrent_conversions_one_succeeds_and_the_target_is_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let sources: Vec<Source> =
        (0..4).map(|fill| source(&folder.path().join(format!("{fill}.safetensors")), fill)).collect();
    for (round, format) in [SaveFormat::Native, SaveFormat::HuggingFace, SaveFormat::Dcp]
        .into_iter()
        .cycle()
        .take(24)
        .enumerate()
    {
        let place = folder.path().join(format!("{round}"));
        let target = place.join("model");
        let start = Barrier::new(sources.len());
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let writers: Vec<_> = sources
                .iter()
                .map(|source| {
                    let (target, start) = (Target::Folder(target.clone()), &start);
                    scope.spawn(move || {
                        start.wait();
                        convert(source, &target, &to(format), &())
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let mut succeeded = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok(report) => succeeded.push(report.fingerprint),
                Err(CheckpointError::Write(WriteError::InUse { .. })) => {}
                Err(CheckpointError::Target(error)) => {
                    assert!(error.to_string().ends_with("exists already"));
                }
                Err(other) => panic!("round {round}: {other:?}"),
            }
        }
        let found = fingerprint(&Source::open(&target).unwrap(), &()).unwrap().fingerprint;
        assert_eq!(succeeded, [found], "round {round}, {format:?}");
        assert_eq!(names(&place), ["model"], "round {round}");
    }
}

/// Starts another conversion while one is running.
struct Meanwhile<'a> {
    source: &'a Source,
    target: PathBuf,
    found: std::sync::Mutex<Vec<CheckpointError>>,
}

impl Observer for Meanwhile<'_> {
    fn begin(&self, _: &str, _: u64) {
        let second = convert(self.source, &Target::Folder(self.target.clone()), &to(SaveFormat::Native), &());
        self.found.lock().unwrap().extend(second.err());
    }
}

#[test]
fn a_second_writer_learns_who_is_writing() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(&folder.path().join("x.safetensors"), 7);
    let target = folder.path().join("model");
    let observer = Meanwhile { source: &source, target: target.clone(), found: Default::default() };
    convert(&source, &Target::Folder(target.clone()), &to(SaveFormat::Native), &observer).unwrap();
    let holder = Some(format!("process {}", std::process::id()));
    let expected = WriteError::InUse { path: target.display().to_string(), holder };
    assert_eq!(*observer.found.lock().unwrap(), [CheckpointError::Write(expected)]);
    assert!(observer.found.lock().unwrap()[0].hint().is_some());
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let Some(available) = free_space(folder.path()) else { return };
    let length = available + (1 << 30);
    let header = format!(r#"{{"a":{{"dtype":"U8","shape":[{length}],"data_offsets":[0,{length}]}}}}"#);
    let path = folder.path().join("sparse.safetensors");
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    // File systems have a longest file.
    if file.set_len(8 + header.len() as u64 + length).is_err() {
        return;
    }
    let target = folder.path().join("deep/model");
    let source = Source::open(&path).unwrap();
    let error = convert(&source, &Target::Folder(target.clone()), &to(SaveFormat::Native), &()).unwrap_err();
    match &error {
        CheckpointError::Write(WriteError::NoSpace { path, needed, .. }) => {
            assert_eq!(*path, target.display().to_string());
            assert!(*needed >= length);
        }
        other => panic!("{other}"),
    }
    assert!(error.hint().is_some());
    assert_eq!(names(folder.path()), ["sparse.safetensors"]);
}

#[cfg(unix)]
#[test]
fn assets_that_lead_out_of_the_folder_are_not_copied() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret.json");
    fs::write(&secret, "secret").unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    source(&model.join("model.safetensors"), 1);
    fs::write(model.join("vocab.json"), "{}").unwrap();
    symlink("vocab.json", model.join("tokenizer.json")).unwrap();
    let convert_model = |name: &str| {
        let target = Target::Folder(folder.path().join(name));
        convert(&Source::open(&model).unwrap(), &target, &to(SaveFormat::HuggingFace), &())
    };
    // Links inside the folder are fine.
    assert_eq!(convert_model("inside").unwrap().assets, ["tokenizer.json", "vocab.json"]);
    for link in [secret.clone(), PathBuf::from("../secret.json")] {
        symlink(&link, model.join("config.json")).unwrap();
        let error = convert_model("outside").unwrap_err();
        match &error {
            CheckpointError::Storage(StorageError::Link { file, target, .. }) => {
                assert_eq!(file, "config.json");
                assert_eq!(Path::new(target), fs::canonicalize(&secret).unwrap());
            }
            other => panic!("{other}"),
        }
        assert!(error.hint().is_some());
        assert!(!folder.path().join("outside").exists());
        fs::remove_file(model.join("config.json")).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn the_links_of_a_hugging_face_cache_are_followed() {
    use std::os::unix::fs::symlink;

    let folder = tempfile::tempdir().unwrap();
    let repo = folder.path().join("models--org--name");
    let snapshot = repo.join("snapshots/0123abcd");
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(repo.join("blobs")).unwrap();
    source(&snapshot.join("model.safetensors"), 1);
    fs::write(repo.join("blobs/feed"), "{}").unwrap();
    symlink("../../blobs/feed", snapshot.join("config.json")).unwrap();
    let convert_snapshot = |name: &str, from: &Path| {
        let target = Target::Folder(folder.path().join(name));
        convert(&Source::open(from).unwrap(), &target, &to(SaveFormat::HuggingFace), &())
    };
    assert_eq!(convert_snapshot("whole", &snapshot).unwrap().assets, ["config.json"]);
    // Also through a link to the snapshot.
    symlink(&snapshot, folder.path().join("latest")).unwrap();
    convert_snapshot("linked", &folder.path().join("latest")).unwrap();
    // Not to other places of the cache, nor through blobs that are elsewhere.
    fs::write(folder.path().join("token.json"), "hf_secret").unwrap();
    symlink("../../../token.json", snapshot.join("tokenizer.json")).unwrap();
    assert!(matches!(
        convert_snapshot("outside", &snapshot).unwrap_err(),
        CheckpointError::Storage(StorageError::Link { .. })
    ));
    fs::remove_file(snapshot.join("tokenizer.json")).unwrap();
    fs::rename(repo.join("blobs"), folder.path().join("elsewhere")).unwrap();
    symlink(folder.path().join("elsewhere"), repo.join("blobs")).unwrap();
    assert!(matches!(
        convert_snapshot("moved", &snapshot).unwrap_err(),
        CheckpointError::Storage(StorageError::Link { .. })
    ));
}
