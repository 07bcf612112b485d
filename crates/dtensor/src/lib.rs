//! Distributed tensors: sharding propagated through operations and gradients.
//!
//! A [`DTensor`] is one tensor distributed over ranks. Its operations are those of
//! a local tensor; the sharding [`Rule`] of each says which dims may be sharded
//! and how pending sums pass through. Operands in other layouts are redistributed
//! first, by the cheapest plan, or are an error: see [`RedistributeMode`].
//! Gradients are redistributed back, and have the layouts of their tensors.
//!
//! Users add an operation with a [`DFunction`] on local tensors and a
//! [`DistributedOp`] with its sharding rule.

#![forbid(unsafe_code)]

pub mod check;

mod background;
mod comm_log;
mod dispatch;
mod dist_context;
mod dtensor;
mod error;
mod function;
mod gradients;
mod local_map;
mod meta;
mod nan_check;
mod ops;
mod parameter;
mod pass_context;
mod plan_cache;
mod process_groups;
mod recompute;
mod redistribute;
mod registry;
mod rule;
mod sharding_plan;
mod spec;
mod strategy;

pub use comm_log::{Cause, CommRecord, Pass};
pub use dist_context::{DistContext, DistOptions, RedistributeMode};
pub use dtensor::DTensor;
pub use error::{DTensorError, Result};
pub use function::{DFunction, Value, apply};
pub use gradients::{DGradients, backward, backward_with};
pub use local_map::local_map;
pub use meta::Meta;
pub use nan_check::{NanCheck, NonFinite};
pub use ops::global_norm;
pub use parameter::{Release, Role};
pub use pass_context::{GradientReduction, PassContext};
pub use recompute::recompute;
pub use registry::{Call, DistributedOp, LocalCall, Registry, RegistryBuilder};
pub use rule::{Dim, DimList, Rule};
pub use sharding_plan::{ShardingPlan, name_matches};
pub use spec::DTensorSpec;
