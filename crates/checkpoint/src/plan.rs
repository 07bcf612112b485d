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
//!
//! # Your own planners
//!
//! A planner usually wraps a default one and changes some of its answers. This
//! one saves all floating-point tensors as bf16:
//!
//! ```
//! use weightloom_checkpoint::plan::{
//!     Metadata, PlanContext, PlanError, SavePlan, SavePlanner, StandardSavePlanner, WriteData, WriteItem,
//! };
//! use weightloom_checkpoint::{
//!     Bytes, LeafValue, LocalTensor, SaveOptions, Saver, Sharding, Source, State, Target, TensorSpec, cast,
//! };
//! use weightloom_gang::{GangOptions, solo};
//! use weightloom_layout::{DType, Region, Shape};
//!
//! #[derive(Default)]
//! struct SaveAsBf16(StandardSavePlanner);
//!
//! impl SavePlanner for SaveAsBf16 {
//!     fn name(&self) -> &str {
//!         "bf16"
//!     }
//!
//!     fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError> {
//!         self.0.configure(state, context)
//!     }
//!
//!     fn local_plan(&mut self) -> Result<SavePlan, PlanError> {
//!         let mut plan = self.0.local_plan()?;
//!         for item in &mut plan.items {
//!             match &mut item.data {
//!                 WriteData::Tensor { dtype, .. } if dtype.is_float() => *dtype = DType::Bf16,
//!                 _ => {}
//!             }
//!         }
//!         Ok(plan)
//!     }
//!
//!     fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
//!         self.0.global_plan(plans)
//!     }
//!
//!     fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError> {
//!         let bytes = self.0.data(state, item)?;
//!         match (&state.leaves()[&item.index.name].value, &item.data) {
//!             (LeafValue::Tensor(tensor), WriteData::Tensor { dtype, .. }) => {
//!                 let mut turned = vec![0; item.bytes() as usize];
//!                 cast(tensor.spec.dtype, &bytes.to_host()?, *dtype, &mut turned);
//!                 Ok(turned.into())
//!             }
//!             _ => Ok(bytes),
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("step_1");
//! let shape = Shape::new(&[3])?;
//! let spec = TensorSpec { dtype: DType::F32, sharding: Sharding::Region(Region::whole(&shape)), shape };
//! let bytes: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! let mut state = State::new();
//! state.model("w", LocalTensor { spec, bytes: bytes.into() });
//! let gang = solo(GangOptions::default());
//! let mut saver = Saver::with_planner(gang, Box::new(SaveAsBf16::default()))?;
//! saver.save(&state, &Target::Folder(path.clone()), &SaveOptions::default(), &())?;
//! assert_eq!(Source::open(&path)?.index.tensors()["w"].dtype, DType::Bf16);
//! # Ok(())
//! # }
//! ```
//!
//! This one fills one destination from two stored tensors: read items say what
//! is read, and where it goes.
//!
//! ```
//! use weightloom_checkpoint::plan::{
//!     Destination, LoadPlan, LoadPlanError, LoadPlanner, MetadataIndex, PlanContext, ReadItem,
//! };
//! use weightloom_checkpoint::{
//!     Index, LoadOptions, LocalTensor, SaveOptions, Saver, Sharding, Source, State, Target, TensorSpec,
//!     load_with,
//! };
//! use weightloom_gang::{GangOptions, solo};
//! use weightloom_layout::{DType, Region, Shape};
//!
//! /// Loads `q` and `k` into one tensor, `q` above `k`.
//! struct LoadFused<'a>(Option<&'a mut [u8]>);
//!
//! impl<'a> LoadPlanner<'a> for LoadFused<'a> {
//!     fn name(&self) -> &str {
//!         "fused"
//!     }
//!
//!     fn configure(&mut self, _: &Index, _: PlanContext) -> Result<(), LoadPlanError> {
//!         Ok(())
//!     }
//!
//!     fn local_plan(&mut self, _: &Index) -> Result<LoadPlan, LoadPlanError> {
//!         let rows = |stored: &str, first: usize| ReadItem {
//!             destination: MetadataIndex::whole("qk"),
//!             destination_offsets: vec![first, 0],
//!             storage: MetadataIndex::whole(stored),
//!             storage_offsets: vec![0, 0],
//!             lengths: vec![2, 3],
//!         };
//!         Ok(LoadPlan { tensors: vec![rows("q", 0), rows("k", 2)], ..LoadPlan::default() })
//!     }
//!
//!     fn acquire_tensor(&mut self, item: &ReadItem) -> Result<Destination<'a>, LoadPlanError> {
//!         let missing = || LoadPlanError::NoSuchItem { name: item.destination.name.clone() };
//!         let bytes = self.0.take().ok_or_else(missing)?;
//!         Ok(Destination { shape: Shape::new(&[4, 3]).expect("a small shape"), dtype: DType::U8, bytes })
//!     }
//!
//!     fn apply_tensor(&mut self, _: &ReadItem, _: Destination<'a>) -> Result<(), LoadPlanError> {
//!         Ok(())
//!     }
//!
//!     fn apply_bytes(&mut self, name: &str, _: Vec<u8>) -> Result<(), LoadPlanError> {
//!         Err(LoadPlanError::NoSuchItem { name: name.to_owned() })
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("step_1");
//! # let shape = Shape::new(&[2, 3])?;
//! # let spec = TensorSpec { dtype: DType::U8, sharding: Sharding::Region(Region::whole(&shape)), shape };
//! # let mut state = State::new();
//! # state.model("q", LocalTensor { spec: spec.clone(), bytes: vec![1; 6].into() });
//! # state.model("k", LocalTensor { spec, bytes: vec![2; 6].into() });
//! # let gang = solo(GangOptions::default());
//! # Saver::new(gang.clone())?.save(&state, &Target::Folder(path.clone()), &SaveOptions::default(), &())?;
//! let mut fused = [0; 12];
//! let mut planner = LoadFused(Some(&mut fused));
//! load_with(&Source::open(&path)?, &mut planner, &*gang, &LoadOptions::default(), &())?;
//! assert_eq!(fused, [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
//! # Ok(())
//! # }
//! ```
//!
//! To choose planners by name, keep [`SavePlannerFactory`]s and
//! [`LoadPlannerFactory`]s in `Arc`s: planners hold the state of one saver or one
//! load, factories hold none.

mod balance;
mod cache;
mod calls;
mod check;
mod data;
mod derive;
mod factory;
mod gather;
mod items;
mod load;
mod planner_error;
mod procedure;
mod save;
mod standard_load;
mod standard_save;

pub use balance::WriteLoad;
pub(crate) use cache::PlanCache;
pub use cache::PlanCaching;
pub(crate) use calls::PlannerCalls;
pub(crate) use data::storage_data_pairs;
pub use data::{PlanData, PlanDataError, StorageData};
pub use factory::{LoadPlannerFactory, SavePlannerFactory, StandardPlanners};
pub use items::{
    LoadPlan, Metadata, MetadataIndex, ReadItem, Redistribution, SavePlan, TensorMetadata, WriteData,
    WriteItem,
};
pub use load::{
    Destination, LoadPlanError, LoadPlanner, LoadState, MissingKeys, ShapeMismatch, Slot, StateMismatch,
    UnexpectedKeys, UnmatchedKey,
};
pub use planner_error::{PlannerError, PlannerProblem};
pub(crate) use procedure::plan_cached_save;
pub use procedure::plan_save;
pub use save::{PlanContext, PlanError, SavePlanner, Version};
pub use standard_load::StandardLoadPlanner;
pub use standard_save::StandardSavePlanner;

/// The name of the default planners.
pub const STANDARD: &str = "standard";
