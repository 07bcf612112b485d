//! The native half of the Python module `weightloom`.
//!
//! Python code in `python/weightloom` wraps it: what needs types of torch and NumPy is
//! there, and what moves bytes is here. Nothing here names torch. All work runs without
//! the GIL, and Ctrl-C ends it.

mod callbacks;
mod checkpoint;
mod command;
mod errors;
mod forked;
mod gang;
mod generation;
mod interruption;
mod judge;
mod live_model;
mod loader;
mod memory;
mod model;
mod progress;
mod replicas;
mod report;
mod saver;
mod state;
mod tracker;
mod train;

use pyo3::pymodule;

/// The native half of `weightloom`.
#[pymodule(gil_used = false)]
mod _weightloom {
    #[pymodule_export]
    use crate::checkpoint::{Checkpoint, open_checkpoint};
    #[pymodule_export]
    use crate::command::{call, run};
    #[pymodule_export]
    use crate::gang::{Gang, Inbox};
    #[pymodule_export]
    use crate::generation::TextStream;
    #[pymodule_export]
    use crate::judge::judge_live;
    #[pymodule_export]
    use crate::live_model::{AdapterNoise, DecoderInfo, decoder_info};
    #[pymodule_export]
    use crate::loader::{load_state, unread_tensors};
    #[pymodule_export]
    use crate::memory::Buffer;
    #[pymodule_export]
    use crate::model::{Model, load_model};
    #[pymodule_export]
    use crate::report::{ReportComparison, compare_reports, report_facts, report_refusals, report_text};
    #[pymodule_export]
    use crate::saver::Saver;
    #[pymodule_export]
    use crate::state::compact_json;
    #[pymodule_export]
    use crate::train::{newest_checkpoint, train};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
