//! An example of a crate with its own model, loss, optimizer, probe, dataset and save
//! planner, and every command of Weightloom.
//!
//! [`registry`] is all that connects them; `main.rs` makes a program of it.

#![forbid(unsafe_code)]

pub mod dataset;
pub mod family;
pub mod loss;
pub mod model;
pub mod optimizer;
pub mod planner;
pub mod probe;
pub mod scan;

use weightloom::Registry;

/// What is built in, and everything of this crate.
pub fn registry() -> Registry {
    Registry::standard()
        .family(family::RecurrenceFamily)
        .operation(scan::ScanRule)
        .loss(loss::ZLoss)
        .optimizer(optimizer::Adagrad)
        .record_format(dataset::Facts)
        .save_planner(planner::Noting)
        .probe::<probe::FactRecall>()
}
