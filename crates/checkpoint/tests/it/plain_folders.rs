//! Plain Hugging Face folders in object stores: the same files as in a folder,
//! whatever the number of ranks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::model::{locals, state};
use weightloom_checkpoint::storage::SharedBytes;
use weightloom_checkpoint::{
    CheckpointError, ConvertOptions, MemoryStorage, SaveFormat, SaveOptions, SaveReport, Saver, Source,
    Storage, StorageError, StoredFile, Target, Upload, convert,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::Mesh;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Blocking,
    Background,
    /// In the background, with a budget that nothing fits into.
    OverBudget,
}

/// Options that make several files.
fn options() -> SaveOptions {
    let assets = BTreeMap::from([("config.json".to_owned(), b"{}".to_vec())]);
    SaveOptions { format: SaveFormat::HuggingFace, shard_size: 1000, assets, ..SaveOptions::default() }
}

fn save(ranks: usize, target: &Target, mode: Mode) -> Vec<Result<SaveReport, CheckpointError>> {
    let mesh = Mesh::new(&[("a", ranks)]).unwrap();
    threads::run(ranks, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let locals = locals(mesh, gang.rank(), 4);
        let mut saver = Saver::new(gang)?;
        let budget = if mode == Mode::OverBudget { 0 } else { 1 << 30 };
        let options = SaveOptions { budget, ..options() };
        if mode == Mode::Blocking {
            return saver.save(&state(&locals), target, &options, &());
        }
        saver.save_async(&state(&locals), target, &options, Arc::new(()))?;
        Ok(saver.wait()?.expect("there was a save"))
    })
    .unwrap()
}

fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    MemoryStorage::copy_of(&weightloom_checkpoint::LocalStorage::new(folder)).unwrap().files()
}

#[test]
fn ranks_upload_the_files_that_a_folder_would_have() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("x");
    let expected_report = save(1, &Target::Folder(folder.clone()), Mode::Blocking).remove(0).unwrap();
    let expected = files_of(&folder);
    assert!(expected.len() > 5, "{:?}", expected.keys());
    for ranks in [1, 2, 3, 4] {
        for mode in [Mode::Blocking, Mode::Background, Mode::OverBudget] {
            let storage = Arc::new(MemoryStorage::default());
            for report in save(ranks, &Target::Objects(Arc::clone(&storage) as _), mode) {
                assert_eq!(report.unwrap().fingerprint, expected_report.fingerprint);
            }
            assert!(storage.files() == expected, "{ranks} ranks, {mode:?}: {:?}", storage.files().keys());
        }
    }
}

#[test]
fn a_converted_model_is_uploaded() {
    let place = tempfile::tempdir().unwrap();
    let native = place.path().join("native");
    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    let locals = locals(mesh, 0, 4);
    let gang = weightloom_gang::solo(GangOptions::default());
    let saved = Target::Folder(native.clone());
    Saver::new(gang).unwrap().save(&state(&locals), &saved, &SaveOptions::default(), &()).unwrap();
    let source = Source::open(&native).unwrap();
    let options = ConvertOptions { save: options(), ..ConvertOptions::default() };
    let folder = place.path().join("hf");
    convert(&source, &Target::Folder(folder.clone()), &options, &()).unwrap();
    let storage = Arc::new(MemoryStorage::default());
    convert(&source, &Target::Objects(Arc::clone(&storage) as _), &options, &()).unwrap();
    assert!(storage.files() == files_of(&folder), "{:?}", storage.files().keys());
    assert!(Source::open_folder(storage).unwrap().index.tensors().contains_key("model.embed.weight"));
}

#[test]
fn a_prefix_with_a_model_is_not_overwritten() {
    let storage = Arc::new(MemoryStorage::default());
    let target = Target::Objects(Arc::clone(&storage) as _);
    for report in save(2, &target, Mode::Blocking) {
        report.unwrap();
    }
    let before = storage.files();
    for report in save(2, &target, Mode::Blocking) {
        assert!(matches!(report.unwrap_err(), CheckpointError::Target(_) | CheckpointError::Ranks { .. }));
    }
    assert!(storage.files() == before);
}

/// Fails to write files whose names contain a text.
struct Failing {
    files: MemoryStorage,
    text: &'static str,
}

impl Storage for Failing {
    fn location(&self) -> String {
        self.files.location()
    }

    fn list(&self) -> Result<Vec<StoredFile>, StorageError> {
        self.files.list()
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        self.files.length(name)
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.files.read_at(name, offset, into)
    }

    fn map(&self, name: &str) -> Result<Option<SharedBytes>, StorageError> {
        self.files.map(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.files.put(name, bytes)
    }

    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        match name.contains(self.text) {
            true => Err(StorageError::Unsupported { action: "write to", location: self.location() }),
            false => self.files.create(name),
        }
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.files.remove(name)
    }

    fn gap(&self) -> u64 {
        self.files.gap()
    }
}

#[test]
fn a_failed_upload_fails_on_every_rank_and_leaves_no_files() {
    for text in ["model-00001", "model-00002", "training"] {
        let storage = Arc::new(Failing { files: MemoryStorage::default(), text });
        for report in save(3, &Target::Objects(Arc::clone(&storage) as _), Mode::Blocking) {
            let error = report.unwrap_err();
            assert!(matches!(error, CheckpointError::Storage(_) | CheckpointError::Ranks { .. }), "{error}");
        }
        assert_eq!(storage.list().unwrap(), [], "{text}");
    }
}
