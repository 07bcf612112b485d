//! Planners: which rank writes and reads what.
//!
//! # Saving
//!
//! 1. [`SavePlanner::configure`]: every rank, with its state.
//! 2. [`SavePlanner::derived_plan`]: every rank, if every rank can derive the
//!    whole plan alone. The ranks then only compare a digest of it.
//! 3. Otherwise [`SavePlanner::local_plan`]: every rank lists what it holds;
//!    the plans are gathered, and
//! 4. [`SavePlanner::global_plan`]: every rank computes the same plans for all
//!    ranks, so that none need be sent back.
//! 5. [`SavePlanner::finalize`]: every rank, with its own plan.
//! 6. [`SavePlanner::data`]: every rank, once for each of its items, while
//!    they are written.
//!
//! # Loading
//!
//! 1. [`LoadPlanner::configure`]: every rank, with the checkpoint's metadata.
//! 2. [`LoadPlanner::local_plan`]: every rank, for what it wants.
//! 3. [`LoadPlanner::global_plan`]: every rank, with the plans of all, if the
//!    planner [asks](LoadPlanner::needs_global_plan) for them.
//! 4. [`LoadPlanner::finalize`]: every rank.
//! 5. [`LoadPlanner::acquire_tensor`]: once for each destination, before
//!    anything is read; then the bytes are read; then
//!    [`LoadPlanner::apply_tensor`] with the same destination, filled.
//! 6. [`LoadPlanner::apply_bytes`]: once for each item of bytes.

mod balance;
mod derive;
mod gather;
mod items;
mod load;
mod save;

pub use balance::WriteLoad;
pub use items::{
    LoadPlan, Metadata, MetadataIndex, ReadItem, Redistribution, SavePlan, TensorMetadata, WriteData,
    WriteItem,
};
pub use load::{
    Destination, LoadPlanError, LoadPlanner, LoadState, MissingKeys, ShapeMismatch, Slot,
    StandardLoadPlanner, StateMismatch, UnexpectedKeys, UnmatchedKey,
};
pub use save::{PlanContext, PlanError, SavePlanner, StandardSavePlanner, plan_save};
