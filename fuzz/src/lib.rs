//! The parsers that fuzz targets feed, shared with the tests.

#[path = "../../crates/checkpoint/tests/it/model.rs"]
pub mod model;
#[path = "../../crates/checkpoint/tests/memory/probe.rs"]
pub mod probe;
#[path = "../../crates/hub/tests/it/probe.rs"]
pub mod hub_probe;
#[path = "../../crates/models/tests/it/probe.rs"]
pub mod models_probe;

pub mod judging;
pub mod requests;
#[path = "../../crates/serve/tests/it/fixture.rs"]
#[allow(dead_code, reason = "only the model is used here, not the server")]
pub mod fixture;
