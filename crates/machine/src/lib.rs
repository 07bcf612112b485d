//! Memory and disk space that a process may use.
//!
//! [`memory`] is the smaller of what the machine has and what control groups
//! allow: containers and schedulers set limits that `/proc/meminfo` does not show.
//! [`free_space`] is what can be written to a folder, which need not exist yet.
//!
//! ```
//! if let Some(memory) = weightloom_machine::memory() {
//!     assert!(memory.available <= memory.total);
//! }
//! assert!(weightloom_machine::free_space("runs/new".as_ref()).is_some());
//! ```

#![forbid(unsafe_code)]

mod cgroup;
mod disk;
mod memory;

pub use disk::free_space;
pub use memory::{Memory, memory};
