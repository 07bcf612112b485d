//! Kinds of backends, as `models.base.kind` and `models.ft.kind` name them.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Backend;
use super::build::{BackendBuilder, BuildError};
use crate::probe::FieldProblem;
use crate::suite::PlannedModel;

/// A kind of backend.
///
/// Implement it in your own crate and add it to [`Backends`](super::Backends):
/// suites can then name it as `kind`. The built-in kinds do the same. A value of
/// the type may hold what its backends share.
///
/// ```
/// use std::path::Path;
///
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use weightloom_hub::cards::StoreSettings;
/// use weightloom_hub::fetch::FetchSettings;
/// use weightloom_hub::{Families, Hub};
/// use weightloom_sway::backend::build::{BackendBuilder, BuildError};
/// use weightloom_sway::backend::dummy::Dummy;
/// use weightloom_sway::backend::{BackendKind, BackendRequest, Backends};
/// use weightloom_sway::suite::SuiteReader;
/// use weightloom_sway::{Backend, Extensions};
///
/// /// Keys under `options`.
/// #[derive(Debug, Default, Deserialize, JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct Options {
///     /// Questions after which it fails.
///     fail_after: Option<usize>,
/// }
///
/// #[derive(Debug)]
/// struct Canned;
///
/// impl BackendKind for Canned {
///     type Options = Options;
///
///     fn name(&self) -> &'static str {
///         "canned"
///     }
///
///     fn summary(&self) -> &'static str {
///         "canned answers"
///     }
///
///     fn build(
///         &self,
///         options: Options,
///         _: &BackendRequest<'_>,
///     ) -> Result<Box<dyn Backend>, BuildError> {
///         let mut backend = Dummy::default();
///         backend.fail_after = options.fail_after;
///         Ok(Box::new(backend))
///     }
/// }
///
/// let extensions = Extensions { backends: Backends::standard().with(Canned)?, ..Extensions::standard() };
/// let text = "
/// models:
///   base: {base: tiny}
///   ft: {kind: canned, base: tiny, options: {fail_after: 3}}
/// ";
/// let suite = SuiteReader::new(&extensions, &|_| None).read(text, Path::new("sway.yaml"))?;
/// let fetch = FetchSettings::in_folders("hub", "urls");
/// let hub = Hub::new(StoreSettings::default().store(&[]), Families::new(), Ok(fetch));
/// let mut builder = BackendBuilder::new(&hub, &(), &|_| None);
/// builder.backends = extensions.backends;
/// assert_eq!(builder.build(&suite.plan)?.description().kind, "dummy");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait BackendKind: fmt::Debug + Send + Sync + 'static {
    /// The keys under `options` of a model in a suite; [`NoOptions`] if there are
    /// none.
    type Options: DeserializeOwned + JsonSchema;

    /// The name of the kind in suite files.
    fn name(&self) -> &'static str;

    /// What it is, in a few words.
    fn summary(&self) -> &'static str;

    /// Options whose values make no backend, beyond their types.
    fn problems(&self, _options: &Self::Options) -> Vec<FieldProblem> {
        Vec::new()
    }

    /// Builds the backend of a model. For a suite that compares two separate
    /// models it is called for each; else its backend answers for both views.
    fn build(
        &self,
        options: Self::Options,
        request: &BackendRequest<'_>,
    ) -> Result<Box<dyn Backend>, BuildError>;
}

/// A kind of backend without options.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NoOptions {}

/// The model that a backend is built for.
#[derive(Clone, Copy)]
pub struct BackendRequest<'a> {
    /// The key of the model in the suite, for errors: `models.ft`.
    pub key: &'a str,
    /// The model.
    pub model: &'a PlannedModel,
    /// The builder, with the hub that finds models.
    pub builder: &'a BackendBuilder<'a>,
}

impl BackendRequest<'_> {
    /// Folder or name of the model.
    pub fn base(&self) -> &str {
        match self.model {
            PlannedModel::Local(model) => &model.base,
            PlannedModel::Server(model) => &model.model,
            PlannedModel::Custom(model) => &model.spec.base,
            PlannedModel::Registered(model) => &model.spec.base,
        }
    }

    /// Folder of the adapter.
    pub fn adapter(&self) -> Option<&Path> {
        match self.model {
            PlannedModel::Local(model) => model.adapter.as_deref(),
            PlannedModel::Server(_) => None,
            PlannedModel::Custom(model) => model.spec.adapter.as_deref().map(Path::new),
            PlannedModel::Registered(model) => model.spec.adapter.as_deref().map(Path::new),
        }
    }
}

/// A [`BackendKind`] whose options are JSON.
pub(super) trait AnyBackendKind: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn summary(&self) -> &'static str;
    fn schema(&self) -> Value;
    fn problems(&self, options: &Map<String, Value>) -> Vec<FieldProblem>;
    fn build(
        &self,
        options: &Map<String, Value>,
        request: &BackendRequest<'_>,
    ) -> Result<Box<dyn Backend>, BuildError>;
}

impl<T: BackendKind> AnyBackendKind for T {
    fn name(&self) -> &'static str {
        BackendKind::name(self)
    }

    fn summary(&self) -> &'static str {
        BackendKind::summary(self)
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(T::Options).to_value()
    }

    fn problems(&self, options: &Map<String, Value>) -> Vec<FieldProblem> {
        match read::<T>(options) {
            Ok(options) => BackendKind::problems(self, &options),
            Err(problem) => vec![FieldProblem { field: String::new(), problem }],
        }
    }

    fn build(
        &self,
        options: &Map<String, Value>,
        request: &BackendRequest<'_>,
    ) -> Result<Box<dyn Backend>, BuildError> {
        let options = read::<T>(options)
            .map_err(|message| BuildError::Options { key: format!("{}.options", request.key), message })?;
        BackendKind::build(self, options, request)
    }
}

fn read<T: BackendKind>(options: &Map<String, Value>) -> Result<T::Options, String> {
    serde_json::from_value(Value::Object(options.clone())).map_err(|error| error.to_string())
}
