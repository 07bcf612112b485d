//! Integration tests of layouts.
//!
//! - `plans`: redistribution plans against the true tensor and the optimum.
//! - `regions`: regions, layouts and tilings, element by element.
//! - `simulation`: simulated ranks and random cases for the other modules.
//! - `torch_regions`: regions recorded from torch DTensor.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod plans;
mod regions;
mod simulation;
mod torch_regions;
