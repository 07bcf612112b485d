//! A load takes no more memory than its result and the budget, however large
//! the checkpoint is; so does what goes through all of it.

use crate::allocation::{most_held, turn};
use weightloom_checkpoint::plan::LoadState;
use weightloom_checkpoint::{
    ConvertOptions, LoadOptions, LocalTensor, ReadOptions, SaveOptions, Saver, Sharding, Source, State,
    Target, TensorSpec, convert, fingerprint, load,
};
use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{DType, Layout, Mesh, Region, Shape};

/// What is small and does not grow with the checkpoint: names, headers,
/// manifest, threads.
const CONSTANT: usize = 1 << 20;

#[test]
fn memory_is_bounded_by_result_and_budget() {
    let _turn = turn();
    const ROWS: usize = 2048;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let shape = Shape::new(&[ROWS, 1024]).unwrap();
    let layout = Layout::replicated(Mesh::new(&[("a", 1)]).unwrap());
    let bytes: Vec<u8> = (0..ROWS * 1024 * 2).map(|i| (i % 251) as u8).collect();
    let gang = solo(GangOptions::default());
    {
        let mut state = State::new();
        for number in 0..16 {
            let spec =
                TensorSpec { dtype: DType::Bf16, shape: shape.clone(), sharding: Sharding::Layout(layout) };
            state.model(format!("t{number}"), LocalTensor { spec, bytes: (&bytes).into() });
        }
        let mut saver = Saver::new(gang.clone()).unwrap();
        let target = Target::Folder(path.clone());
        let (saved, used) = most_held(|| saver.save(&state, &target, &SaveOptions::default(), &()));
        saved.unwrap();
        assert!(used < CONSTANT, "a save that waits needs no copies, but took {used}");
    }
    for budget in [64 << 10, 8 << 20] {
        // As they are, as another type, and a column of each.
        for (dtype, columns) in [(DType::Bf16, 1024), (DType::F32, 1024), (DType::Bf16, 100)] {
            let (loaded, used) = most_held(|| {
                let source = Source::open(&path).unwrap();
                let region = Region::new(&[0, 3], &[ROWS, columns.min(1021)]).unwrap();
                let mut parts: Vec<Vec<u8>> =
                    (0..16).map(|_| vec![0; region.volume() * dtype.size()]).collect();
                let mut wanted = LoadState::new();
                for (number, part) in parts.iter_mut().enumerate() {
                    let sharding = Sharding::Region(region.clone());
                    wanted.tensor(
                        format!("t{number}"),
                        TensorSpec { dtype, shape: shape.clone(), sharding },
                        part,
                    );
                }
                let read = ReadOptions { budget, threads: Some(2), ..ReadOptions::default() };
                let options = LoadOptions { read, ..LoadOptions::default() };
                load(&source, wanted, &*gang, &options, &()).unwrap();
                parts
            });
            let result: usize = loaded.iter().map(Vec::len).sum();
            assert!(
                used <= result + budget + CONSTANT,
                "{dtype}, {columns} columns, budget {budget}: {used} for a result of {result}"
            );
        }
    }
    let source = Source::open(&path).unwrap();
    // Each thread holds a stretch of 4 MiB, and twice that again for it as f32.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (_, used) = most_held(|| fingerprint(&source, &()).unwrap());
    assert!(used < threads * (4 << 20) + CONSTANT, "going through 64 MiB took {used}");
    let other = Target::Folder(folder.path().join("y"));
    let options = ConvertOptions { dtype: Some(DType::F32), ..ConvertOptions::default() };
    let (converted, used) = most_held(|| convert(&source, &other, &options, &()));
    converted.unwrap();
    assert!(used < threads * (12 << 20) + CONSTANT, "converting 64 MiB took {used}");
}
