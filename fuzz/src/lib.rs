//! The parsers that fuzz targets feed, shared with the tests.

#[path = "../../crates/checkpoint/tests/it/model.rs"]
pub mod model;
#[path = "../../crates/checkpoint/tests/memory/probe.rs"]
pub mod probe;
