//! Integration tests of checkpoints.
//!
//! - Formats: [`consolidated`], [`dcp`], [`gguf`], [`mlx`], [`npz`], [`peft`],
//!   [`torch`], compared with fixtures that the original programs wrote.
//! - Loading and converting: [`reading`], [`views`], [`mismatches`], [`nested`].
//! - Saving: [`plans`], [`save_and_load`], [`save_dcp`], [`background`], [`device_bytes`],
//!   [`coverage`], [`plain_folders`].
//! - Planners of users: [`bad_save_planners`], [`kept_plans`], [`load_plans`],
//!   [`own_planners`], [`split_saves`], [`steered_loads`].
//! - Failures: [`damage`], [`failing_storage`], [`killed`], [`signatures`],
//!   [`writers`].
//! - Object stores: [`bucket`], [`object_store`].
//!
//! Support: [`model`] is a model to save, [`elementwise`] and [`bytewise`] are
//! simple readers to compare with, [`loopback`] has servers on this machine.
//! Tests that count allocations are in `tests/memory`, a separate binary,
//! because its allocator counts all threads.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod background;
mod bad_save_planners;
#[cfg(feature = "object-store")]
mod bucket;
mod bytewise;
mod consolidated;
mod coverage;
mod damage;
mod dcp;
mod device_bytes;
mod elementwise;
mod failing_storage;
mod gguf;
mod kept_plans;
#[cfg(unix)]
mod killed;
mod load_plans;
#[cfg(feature = "object-store")]
mod loopback;
mod mismatches;
mod mlx;
mod model;
mod nested;
mod npz;
#[cfg(feature = "object-store")]
mod object_store;
mod own_planners;
mod peft;
mod plain_folders;
mod plans;
mod reading;
mod save_and_load;
mod save_dcp;
mod signatures;
mod split_saves;
mod steered_loads;
mod torch;
mod views;
mod writers;
