//! What fuzzing shares with the tests: the doors that hostile bytes come
//! through.

#[path = "../../crates/checkpoint/tests/model/mod.rs"]
pub mod model;
#[path = "../../crates/checkpoint/tests/probe/mod.rs"]
pub mod probe;
