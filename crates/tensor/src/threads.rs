//! The threads that kernels run on.
//!
//! There is one pool for the whole process, made when it is first needed. Ranks
//! that are threads share it: each waits for its own work, and whichever of the
//! pool's threads is free does it, so ranks together use no more cores than one
//! would. Results do not depend on how many threads there are.

use crate::error::TensorError;

/// What the environment variable is called.
pub const VARIABLE: &str = "RAYON_NUM_THREADS";

/// How many threads the pool has: what [`set_count`] said, else the environment
/// variable `RAYON_NUM_THREADS`, else one for each core.
pub fn count() -> usize {
    rayon::current_num_threads()
}

/// Makes the pool with this many threads. It can be made once, before anything
/// is computed; later this is an error unless the count is the same.
pub fn set_count(threads: usize) -> Result<(), TensorError> {
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    if built.is_ok() || count() == threads {
        return Ok(());
    }
    Err(TensorError::ThreadsStarted { asked: threads, running: count() })
}
