//! The parsers that fuzz targets feed, shared with the tests, and the memory that
//! they may take.

#[path = "../../crates/checkpoint/tests/memory/allocation.rs"]
pub mod allocation;
#[path = "../../crates/serve/tests/it/fixture.rs"]
#[allow(dead_code, reason = "only the model is used here, not the server")]
pub mod fixture;
#[path = "../../crates/hub/tests/it/probe.rs"]
pub mod hub_probe;
pub mod judging;
#[path = "../../crates/checkpoint/tests/it/model.rs"]
pub mod model;
#[path = "../../crates/models/tests/it/probe.rs"]
pub mod models_probe;
#[path = "../../crates/checkpoint/tests/memory/probe.rs"]
pub mod probe;
pub mod requests;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use libfuzzer_sys;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

/// A function that reads an input.
pub type Target = fn(&[u8]);

/// Every target by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("adapter_config", hub_probe::adapter_config),
    ("card", hub_probe::card),
    ("chat_request", requests::chat),
    ("chat_template", hub_probe::chat_template),
    ("completion_request", requests::completion),
    ("consolidated", |input| drop(probe::consolidated(input))),
    ("dcp_items", |input| drop(probe::dcp_items(input))),
    ("dcp_metadata", |input| drop(probe::dcp_metadata(input))),
    ("dcp_value", |input| drop(probe::dcp_value(input))),
    ("folder_index", |input| drop(probe::folder_index(input))),
    ("gguf", |input| drop(probe::gguf(input))),
    ("hub_listing", hub_probe::hub_listing),
    ("manifest", |input| drop(probe::manifest(input))),
    ("mlx_config", |input| drop(probe::mlx_config(input))),
    ("model_config", models_probe::model_config),
    ("npy_header", |input| drop(probe::npy_header(input))),
    ("parquet", weightloom_train::data::check_parquet),
    ("peft_config", |input| drop(probe::peft_config(input))),
    ("pickle", |input| drop(probe::pickle(input))),
    ("report", judging::report),
    ("run_config", run_config),
    ("safetensors", |input| drop(probe::safetensors(input))),
    ("suite", judging::suite),
    ("tokenizer", hub_probe::tokenizer),
    ("torch", |input| drop(probe::torch(input))),
    ("zip", |input| drop(probe::zip(input))),
];

/// Bytes that an input may take, and more for each of its own.
const MEMORY: usize = 64 << 20;
const MEMORY_PER_BYTE: usize = 64;

/// The most memory that an input took so far; larger records are reported in steps.
static RECORD: AtomicUsize = AtomicUsize::new(0);
const RECORD_STEP: usize = 64 << 10;

/// Defines the entry point of libFuzzer for a target.
#[macro_export]
macro_rules! fuzz {
    ($name:expr) => {
        use $crate::libfuzzer_sys;
        libfuzzer_sys::fuzz_target!(init: $crate::start($name), |input: &[u8]| $crate::run(input));
    };
}

static TARGET: std::sync::OnceLock<Target> = std::sync::OnceLock::new();

/// Selects the target, and feeds it once, so that what it keeps is not counted.
pub fn start(name: &str) {
    let found = TARGETS.iter().find(|(each, _)| *each == name);
    let (_, target) = found.unwrap_or_else(|| panic!("no fuzz target `{name}`"));
    if ["chat_template", "chat_request", "completion_request", "tokenizer"].contains(&name) {
        // The hook of libFuzzer aborts at panics that the hub turns into errors.
        // Others still end the run.
        std::panic::set_hook(Box::new(|_| {}));
    }
    target(b"{}");
    TARGET.get_or_init(|| *target);
}

/// The name in `WEIGHTLOOM_FUZZ`.
pub fn named_by_environment() -> String {
    std::env::var("WEIGHTLOOM_FUZZ").expect("WEIGHTLOOM_FUZZ names a target")
}

/// Feeds an input to the target, within the limit on memory.
pub fn run(input: &[u8]) {
    let target = TARGET.get().expect("the target is selected first");
    let ((), most) = allocation::most_held(|| target(input));
    if most > RECORD.load(Ordering::Relaxed).saturating_add(RECORD_STEP) {
        RECORD.store(most, Ordering::Relaxed);
        eprintln!("memory of an input: {most} bytes for {} bytes", input.len());
    }
    let limit = MEMORY + MEMORY_PER_BYTE * input.len();
    if most > limit {
        eprintln!("{} bytes of input took {most} bytes of memory, limit {limit}", input.len());
        std::process::abort();
    }
}

/// A training config.
pub fn run_config(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let _ = weightloom_train::config::read(text, "run.yaml", &[], &|_| None);
}
