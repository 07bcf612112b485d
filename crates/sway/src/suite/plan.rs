//! Which models are compared, and how.

use std::path::{Path, PathBuf};

use super::error::{SuiteRule, SuiteWarning};
use super::file::{Defaults, ModelKind, ModelSpec, Precision};
use crate::statistics::Statistics;

/// Which models are compared, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// One loaded model, with and without its adapter.
    Adapter {
        /// The model, with an adapter.
        model: LocalModel,
    },
    /// Two separate models: a full fine-tune, two servers, two files.
    Two {
        /// The base.
        base: PlannedModel,
        /// The fine-tuned model.
        tuned: PlannedModel,
    },
    /// A registered backend that answers for both models.
    Registered {
        /// The backend.
        model: RegisteredModel,
    },
    /// A program of the user that answers for both models.
    Custom {
        /// The backend.
        model: CustomModel,
    },
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedModel {
    /// Loaded by this program.
    Local(LocalModel),
    /// Served by an API.
    Server(ServedModel),
    /// Served by a program of the user.
    Custom(CustomModel),
    /// Served by a registered backend.
    Registered(RegisteredModel),
}

impl PlannedModel {
    /// The kind of its backend.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Local(model) => model.kind.clone(),
            Self::Server(_) => ModelKind::Api,
            Self::Custom(_) => ModelKind::Custom,
            Self::Registered(model) => ModelKind::Registered(model.kind.clone()),
        }
    }
}

/// A model of a kind that the program has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredModel {
    /// The kind, as the file says.
    pub kind: String,
    /// Folder of the suite.
    pub folder: PathBuf,
    /// The description of the model in the suite.
    pub spec: Box<ModelSpec>,
}

/// A model that this program loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// `hf` or `mlx`, which are loaded alike.
    pub kind: ModelKind,
    /// Folder, file or name of the model.
    pub base: String,
    /// Folder of the adapter.
    pub adapter: Option<PathBuf>,
    /// Precision of the weights.
    pub dtype: Precision,
    /// Device to compute on.
    pub device: String,
}

/// A model that an API serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// URL of the server, without a trailing slash.
    pub endpoint: String,
    /// Name of the model on the server.
    pub model: String,
    /// Seconds before an answer times out, if the file says so.
    pub timeout_s: Option<u64>,
}

/// A backend of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomModel {
    /// The entry point.
    pub entry: EntryPoint,
    /// Folder of the suite, which is on the Python path.
    pub folder: PathBuf,
    /// The description of the model that the backend receives.
    pub spec: Box<ModelSpec>,
}

/// The entry point of a backend of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    /// A Python class.
    Python {
        /// The module, with dots.
        module: String,
        /// The name of the class.
        class: String,
    },
    /// A program.
    Program {
        /// The file.
        path: PathBuf,
    },
}

impl EntryPoint {
    /// Parses an entry point. A text with a slash is a program, relative to
    /// `folder`.
    pub fn read(text: &str, folder: &Path) -> Option<Self> {
        if text.contains('/') {
            return (!text.ends_with('/')).then(|| Self::Program { path: folder.join(text) });
        }
        let (module, class) = text.split_once(':')?;
        let is_name = |name: &str| {
            let mut letters = name.chars();
            letters.next().is_some_and(|first| first.is_alphabetic() || first == '_')
                && letters.all(|letter| letter.is_alphanumeric() || letter == '_')
        };
        let fits = module.split('.').all(is_name) && class.split('.').all(is_name);
        fits.then(|| Self::Python { module: module.to_owned(), class: class.to_owned() })
    }
}

/// The plan, or the keys that prevent one.
pub(super) struct Decision {
    pub plan: Result<Plan, Vec<(String, SuiteRule)>>,
    pub warnings: Vec<SuiteWarning>,
}

/// Decides which models are compared.
///
/// dlm-sway makes both sides from `models.ft` unless `differential` is off, and
/// never uses an adapter of the base. The reference statistics do the same. With
/// paired statistics both sides are what the file says, and one model is loaded
/// if that is equivalent.
pub(super) fn decide(base: &ModelSpec, tuned: &ModelSpec, defaults: &Defaults, folder: &Path) -> Decision {
    let mut warnings = Vec::new();
    let plan = match &tuned.kind {
        ModelKind::Dummy => Err(vec![("models.ft.kind".to_owned(), SuiteRule::Dummy)]),
        ModelKind::Hf | ModelKind::Mlx => local(base, tuned, defaults, folder, &mut warnings),
        ModelKind::Custom | ModelKind::Registered(_) if defaults.differential => {
            custom(base, tuned, folder, &mut warnings)
        }
        ModelKind::Custom | ModelKind::Registered(_) => two(base, tuned, folder),
        ModelKind::Api => servers(base, tuned, defaults, folder),
    };
    unused("models.base", base, &mut warnings);
    unused("models.ft", tuned, &mut warnings);
    Decision { plan, warnings }
}

type Planned<T> = Result<T, Vec<(String, SuiteRule)>>;

fn local(
    base: &ModelSpec,
    tuned: &ModelSpec,
    defaults: &Defaults,
    folder: &Path,
    warnings: &mut Vec<SuiteWarning>,
) -> Planned<Plan> {
    let reference = defaults.statistics == Statistics::Reference;
    let same_base = base.kind.is_local() && same_model(&base.base, &tuned.base);
    let same_adapter = base.adapter.is_none() || same_base && base.adapter == tuned.adapter;
    let one = defaults.differential && (reference || same_base && same_adapter);
    if one && tuned.adapter.is_some() {
        if !same_base {
            warnings.push(ignored(base, tuned));
        }
        if let Some(adapter) = &base.adapter {
            warnings.push(SuiteWarning::BaseAdapterIgnored { adapter: adapter.clone() });
        }
        return planned("models.ft", tuned, folder).map(|model| match model {
            PlannedModel::Local(model) => Plan::Adapter { model },
            other => Plan::Two { base: other.clone(), tuned: other },
        });
    }
    let mut before = base.clone();
    if (reference || same_adapter)
        && let Some(adapter) = before.adapter.take()
    {
        warnings.push(SuiteWarning::BaseAdapterIgnored { adapter });
    }
    if same_base && before.adapter == tuned.adapter && before.dtype == tuned.dtype {
        let rule = SuiteRule::NoAdapter { base: tuned.base.clone() };
        return Err(vec![("models.ft.adapter".to_owned(), rule)]);
    }
    if defaults.differential {
        let names = (base.base.clone(), tuned.base.clone());
        warnings.push(SuiteWarning::TwoModels { base: names.0, tuned: names.1 });
    }
    two(&before, tuned, folder)
}

fn custom(
    base: &ModelSpec,
    tuned: &ModelSpec,
    folder: &Path,
    warnings: &mut Vec<SuiteWarning>,
) -> Planned<Plan> {
    if !same_model(&base.base, &tuned.base) {
        warnings.push(ignored(base, tuned));
    }
    planned("models.ft", tuned, folder).map(|model| match model {
        PlannedModel::Custom(model) => Plan::Custom { model },
        PlannedModel::Registered(model) => Plan::Registered { model },
        other => Plan::Two { base: other.clone(), tuned: other },
    })
}

fn servers(base: &ModelSpec, tuned: &ModelSpec, defaults: &Defaults, folder: &Path) -> Planned<Plan> {
    let mut before = base.clone();
    if before.kind == ModelKind::Api && before.endpoint.is_none() {
        before.endpoint = tuned.endpoint.clone();
    }
    let plan = two(&before, tuned, folder)?;
    match &plan {
        Plan::Two { base: PlannedModel::Server(one), tuned: PlannedModel::Server(other) }
            if one.endpoint == other.endpoint && one.model == other.model && defaults.differential =>
        {
            let rule = SuiteRule::SameServer { endpoint: one.endpoint.clone(), model: one.model.clone() };
            Err(vec![("models.base.base".to_owned(), rule)])
        }
        _ => Ok(plan),
    }
}

fn two(base: &ModelSpec, tuned: &ModelSpec, folder: &Path) -> Planned<Plan> {
    match (planned("models.base", base, folder), planned("models.ft", tuned, folder)) {
        (Ok(base), Ok(tuned)) => Ok(Plan::Two { base, tuned }),
        (base, tuned) => Err([base.err(), tuned.err()].into_iter().flatten().flatten().collect()),
    }
}

/// One side, if the file has all required keys.
fn planned(path: &str, spec: &ModelSpec, folder: &Path) -> Planned<PlannedModel> {
    let fault = |key: &str, rule| Err(vec![(format!("{path}.{key}"), rule)]);
    if spec.timeout_s == Some(0) {
        return fault("timeout_s", SuiteRule::Outside { found: "0".to_owned(), wanted: "1 or more" });
    }
    match &spec.kind {
        ModelKind::Hf | ModelKind::Mlx => Ok(PlannedModel::Local(LocalModel {
            kind: spec.kind.clone(),
            base: spec.base.clone(),
            adapter: spec.adapter.as_ref().map(PathBuf::from),
            dtype: spec.dtype,
            device: spec.device.clone(),
        })),
        ModelKind::Dummy => fault("kind", SuiteRule::Dummy),
        ModelKind::Registered(kind) => {
            let (kind, folder, spec) = (kind.clone(), folder.to_owned(), Box::new(spec.clone()));
            Ok(PlannedModel::Registered(RegisteredModel { kind, folder, spec }))
        }
        ModelKind::Api => {
            let Some(endpoint) = &spec.endpoint else { return fault("endpoint", SuiteRule::NoEndpoint) };
            let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            if rest.is_none_or(|host| host.trim_matches('/').is_empty() || host.contains(char::is_whitespace))
            {
                return fault("endpoint", SuiteRule::Endpoint { found: endpoint.clone() });
            }
            let endpoint = endpoint.trim_end_matches('/').to_owned();
            let (model, timeout_s) = (spec.base.clone(), spec.timeout_s);
            Ok(PlannedModel::Server(ServedModel { endpoint, model, timeout_s }))
        }
        ModelKind::Custom => {
            let Some(text) = &spec.entry_point else {
                return fault("entry_point", SuiteRule::NoEntryPoint);
            };
            match EntryPoint::read(text, folder) {
                Some(entry) => {
                    let (folder, spec) = (folder.to_owned(), Box::new(spec.clone()));
                    Ok(PlannedModel::Custom(CustomModel { entry, folder, spec }))
                }
                None => fault("entry_point", SuiteRule::EntryPoint { found: text.clone() }),
            }
        }
    }
}

fn ignored(base: &ModelSpec, tuned: &ModelSpec) -> SuiteWarning {
    SuiteWarning::BaseIgnored { base: base.base.clone(), used: tuned.base.clone() }
}

fn unused(path: &str, spec: &ModelSpec, warnings: &mut Vec<SuiteWarning>) {
    let mut warn = |key: &str, why: String| {
        warnings.push(SuiteWarning::NoEffect { key: format!("{path}.{key}"), why });
    };
    let kind = &spec.kind;
    if spec.endpoint.is_some() && *kind != ModelKind::Api {
        warn("endpoint", format!("kind `{kind}` uses no server"));
    }
    if spec.entry_point.is_some() && *kind != ModelKind::Custom {
        warn("entry_point", format!("kind `{kind}` starts no program"));
    }
    if spec.timeout_s.is_some() && kind.is_local() {
        warn("timeout_s", format!("kind `{kind}` has no time-out"));
    }
    if spec.adapter.is_some() && *kind == ModelKind::Api {
        warn("adapter", "the server applies adapters".to_owned());
    }
    if spec.trust_remote_code {
        warn("trust_remote_code", "code of a model is never run".to_owned());
    }
}

/// Whether two names are the same model. Paths compare by their components.
fn same_model(one: &str, other: &str) -> bool {
    Path::new(one) == Path::new(other)
}
