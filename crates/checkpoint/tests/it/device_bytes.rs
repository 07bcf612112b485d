//! Tensors on a device: the checkpoint that host memory would give, within a budget,
//! and errors of the device.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use weightloom_checkpoint::{
    Bytes, CheckpointError, DeviceBytes, DeviceReadError, LocalTensor, MemoryStorage, SaveFormat,
    SaveOptions, SaveReport, Saver, Sharding, State, Target, TensorSpec,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Shape};

use crate::model::{Local, locals};

/// A device that counts what is copied from it.
#[derive(Default)]
struct Device {
    reads: AtomicUsize,
    largest: AtomicUsize,
    is_lost: AtomicBool,
}

/// Bytes that may change once they have been saved.
struct OnDevice(Arc<Device>, Arc<Mutex<Vec<u8>>>);

impl DeviceBytes for OnDevice {
    fn len(&self) -> usize {
        self.1.lock().unwrap().len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceReadError> {
        if self.0.is_lost.load(Ordering::Relaxed) {
            return Err(DeviceReadError { message: "the GPU stopped".to_owned() });
        }
        self.0.reads.fetch_add(1, Ordering::Relaxed);
        self.0.largest.fetch_max(into.len(), Ordering::Relaxed);
        into.copy_from_slice(&self.1.lock().unwrap()[offset..offset + into.len()]);
        Ok(())
    }
}

/// The small tensors of the model, and one of many chunks.
fn tensors(mesh: Mesh, rank: usize) -> Vec<Local> {
    let mut all = locals(mesh, rank, 4);
    let shape = Shape::new(&[1200, 700]).unwrap();
    let layout = Layout::new(mesh, &[Placement::Shard(0)]).unwrap();
    let region = layout.region_of(&shape, rank).unwrap();
    let bytes = region.runs(&shape).unwrap().flatten().flat_map(|at| (at as u32).to_le_bytes()).collect();
    let spec = TensorSpec { dtype: DType::U32, shape, sharding: Sharding::Layout(layout) };
    all.push(Local { name: "model.large".to_owned(), spec, bytes });
    all
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Blocking,
    /// In the background, with a budget for copies.
    Background(u64),
}

/// Saves from the device, or from host memory.
fn save(
    ranks: usize,
    target: &Target,
    (format, mode): (SaveFormat, Mode),
    device: Option<&Arc<Device>>,
) -> Vec<Result<SaveReport, CheckpointError>> {
    let mesh = Mesh::new(&[("a", ranks)]).unwrap();
    threads::run(ranks, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let tensors = tensors(mesh, gang.rank());
        let memory: Vec<Arc<Mutex<Vec<u8>>>> =
            tensors.iter().map(|tensor| Arc::new(Mutex::new(tensor.bytes.clone()))).collect();
        let mut state = State::new();
        for (tensor, memory) in tensors.iter().zip(&memory) {
            let bytes = match device {
                Some(device) => Bytes::Device(Arc::new(OnDevice(Arc::clone(device), Arc::clone(memory)))),
                None => Bytes::Borrowed(&tensor.bytes),
            };
            state.model(&tensor.name, LocalTensor { spec: tensor.spec.clone(), bytes });
        }
        let mut saver = Saver::new(gang)?;
        let options = SaveOptions { format, shard_size: 1 << 20, ..SaveOptions::default() };
        let Mode::Background(budget) = mode else {
            return saver.save(&state, target, &options, &());
        };
        let options = SaveOptions { budget, ..options };
        let started = saver.save_async(&state, target, &options, Arc::new(()));
        // The next step changes the weights.
        memory.iter().for_each(|memory| memory.lock().unwrap().fill(0));
        started?;
        Ok(saver.wait()?.expect("there was a save"))
    })
    .unwrap()
}

const MODES: [Mode; 4] =
    [Mode::Blocking, Mode::Background(1 << 30), Mode::Background(1 << 20), Mode::Background(0)];

fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    MemoryStorage::copy_of(&weightloom_checkpoint::LocalStorage::new(folder)).unwrap().files()
}

#[test]
fn tensors_of_a_device_are_saved_as_those_of_the_host() {
    let place = tempfile::tempdir().unwrap();
    for format in [SaveFormat::Native, SaveFormat::HuggingFace, SaveFormat::Dcp] {
        for ranks in [1, 3] {
            let folder = |name: &str| place.path().join(format!("{format:?}-{ranks}-{name}"));
            let host = folder("host");
            let expected = save(ranks, &Target::Folder(host.clone()), (format, Mode::Blocking), None);
            let expected = expected.into_iter().next().unwrap().unwrap().fingerprint;
            let files = files_of(&host);
            for (number, mode) in MODES.into_iter().enumerate() {
                let device = Arc::new(Device::default());
                let how = (format, mode);
                let path = folder(&format!("device-{number}"));
                for report in save(ranks, &Target::Folder(path.clone()), how, Some(&device)) {
                    assert_eq!(report.unwrap().fingerprint, expected, "{format:?}, {ranks} ranks, {mode:?}");
                }
                assert!(files_of(&path) == files, "{format:?}, {ranks} ranks, {mode:?}");
                // Without a budget for copies, only chunks are in host memory.
                if matches!(mode, Mode::Blocking | Mode::Background(0)) {
                    assert!(device.largest.load(Ordering::Relaxed) <= 512 << 10);
                }
                let storage = Arc::new(MemoryStorage::default());
                for report in save(ranks, &Target::Objects(Arc::clone(&storage) as _), how, Some(&device)) {
                    assert_eq!(report.unwrap().fingerprint, expected, "objects, {ranks} ranks, {mode:?}");
                }
            }
        }
    }
}

/// Before long runs are written, columns become rows: ranks exchange what they hold.
#[test]
fn a_rank_whose_device_is_lost_keeps_no_other_waiting() {
    let place = tempfile::tempdir().unwrap();
    for storage in [None, Some(Arc::new(MemoryStorage::default()))] {
        let target = match &storage {
            None => Target::Folder(place.path().join("checkpoint")),
            Some(storage) => Target::Objects(Arc::clone(storage) as _),
        };
        let mesh = Mesh::new(&[("a", 2)]).unwrap();
        let shape = Shape::new(&[64, 64]).unwrap();
        let all = threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
            let device = Arc::new(Device::default());
            device.is_lost.store(gang.rank() == 1, Ordering::Relaxed);
            let mut state = State::new();
            for dim in [0, 1] {
                let layout = Layout::new(mesh, &[Placement::Shard(dim)]).unwrap();
                let memory = Arc::new(Mutex::new(vec![gang.rank() as u8; 64 * 64 / 2]));
                let sharding = Sharding::Layout(layout);
                let spec = TensorSpec { dtype: DType::U8, shape: shape.clone(), sharding };
                let bytes = Bytes::Device(Arc::new(OnDevice(Arc::clone(&device), memory)));
                state.model(format!("model.{dim}"), LocalTensor { spec, bytes });
            }
            Saver::new(gang).unwrap().save(&state, &target, &SaveOptions::default(), &())
        });
        for report in all.unwrap() {
            let text = report.unwrap_err().to_string();
            assert!(text.contains("the GPU stopped"), "{text}");
        }
    }
}

#[test]
fn a_lost_device_is_an_error_and_leaves_no_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    for (number, mode) in MODES.into_iter().enumerate() {
        let device = Arc::new(Device::default());
        device.is_lost.store(true, Ordering::Relaxed);
        let path = place.path().join(number.to_string());
        for ranks in [1, 2] {
            let storage = Arc::new(MemoryStorage::default());
            for target in [Target::Folder(path.clone()), Target::Objects(Arc::clone(&storage) as _)] {
                for report in save(ranks, &target, (SaveFormat::Native, mode), Some(&device)) {
                    let text = report.unwrap_err().to_string();
                    assert!(text.contains("cannot copy a tensor to the host: the GPU stopped"), "{text}");
                }
            }
            assert!(!path.exists() && !storage.files().contains_key("weightloom.json"));
        }
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0, "nothing is left behind");
}
