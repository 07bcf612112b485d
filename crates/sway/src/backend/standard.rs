//! The built-in kinds of backends.

use std::sync::Arc;

use super::Backend;
use super::build::{BackendBuilder, BuildError};
use super::kind::{AnyBackendKind, BackendKind, BackendRequest, NoOptions};
use crate::suite::PlannedModel;

/// The built-in kinds, in the order of the documentation.
pub(super) fn standard() -> Vec<Arc<dyn AnyBackendKind>> {
    vec![
        Arc::new(BuiltIn { name: "hf", summary: "a Hugging Face folder or a GGUF file" }),
        Arc::new(BuiltIn { name: "mlx", summary: "an MLX folder" }),
        Arc::new(BuiltIn { name: "api", summary: "a server with an OpenAI-compatible API" }),
        Arc::new(BuiltIn { name: "dummy", summary: "canned answers, for tests; not available in files" }),
        Arc::new(BuiltIn { name: "custom", summary: "a program or Python class of the user" }),
    ]
}

/// A built-in kind. The plan of a suite holds what it needs.
#[derive(Debug)]
struct BuiltIn {
    name: &'static str,
    summary: &'static str,
}

impl BackendKind for BuiltIn {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn build(&self, _: NoOptions, request: &BackendRequest<'_>) -> Result<Box<dyn Backend>, BuildError> {
        let BackendRequest { key, model, builder } = *request;
        let builder: &BackendBuilder<'_> = builder;
        match model {
            PlannedModel::Local(model) => builder.local(key, model),
            PlannedModel::Server(model) => builder.server(key, model),
            PlannedModel::Custom(model) => builder.custom(key, model),
            // A plan keeps built-in kinds apart from registered ones.
            PlannedModel::Registered(model) => Err(builder.unknown(key, &model.kind)),
        }
    }
}
