//! The native half of the Python module `weightloom`.
//!
//! Python code in `python/weightloom` wraps it: what needs types of torch and NumPy is
//! there, and what moves bytes is here. Nothing here names torch. All work runs without
//! the GIL, and Ctrl-C ends it.

mod checkpoint;
mod command;
mod errors;
mod interruption;
mod memory;

use pyo3::pymodule;

/// The native half of `weightloom`.
#[pymodule(gil_used = false)]
mod _weightloom {
    #[pymodule_export]
    use crate::checkpoint::{Checkpoint, open_checkpoint};
    #[pymodule_export]
    use crate::command::{call, run};
    #[pymodule_export]
    use crate::memory::Buffer;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
