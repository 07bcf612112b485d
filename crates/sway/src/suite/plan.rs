//! What is compared with what.

use std::path::{Path, PathBuf};

use super::error::{SuiteRule, SuiteWarning};
use super::file::{Defaults, ModelKind, ModelSpec, Precision};
use crate::statistics::Statistics;

/// What is compared with what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// One loaded model, with and without its adapter.
    Adapter {
        /// The model. Its adapter is there.
        model: LocalModel,
    },
    /// Two models, each for itself: a full fine-tune, two servers, two files.
    Two {
        /// The one before.
        base: PlannedModel,
        /// The one after.
        tuned: PlannedModel,
    },
    /// Something of the user's own that knows both sides.
    Custom {
        /// What it is.
        model: CustomModel,
    },
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedModel {
    /// This program loads it.
    Local(LocalModel),
    /// A server has it.
    Server(ServedModel),
    /// Something of the user's own knows it.
    Custom(CustomModel),
}

/// A model that this program loads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// What the file calls it. Both kinds are loaded alike.
    pub kind: ModelKind,
    /// A folder or file, or a model's name.
    pub base: String,
    /// A folder with an adapter.
    pub adapter: Option<PathBuf>,
    /// The precision of the weights.
    pub dtype: Precision,
    /// Where it computes.
    pub device: String,
}

/// A model that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedModel {
    /// The root of the server, without a slash at its end.
    pub endpoint: String,
    /// The name that the server knows.
    pub model: String,
    /// How many seconds an answer may take, if the file says so.
    pub timeout_s: Option<u64>,
}

/// Something of the user's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomModel {
    /// What is started.
    pub entry: EntryPoint,
    /// The folder of the suite, where Python looks for modules too.
    pub folder: PathBuf,
    /// What it is told of the model.
    pub spec: Box<ModelSpec>,
}

/// What is started for a backend of the user's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    /// A Python class.
    Python {
        /// Its module, with dots.
        module: String,
        /// Its name.
        class: String,
    },
    /// A program.
    Program {
        /// The file.
        path: PathBuf,
    },
}

impl EntryPoint {
    /// Reads an entry point. What has a slash in it is a program, whose place
    /// is told from `folder` if it is relative.
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

/// What was decided, or what stands in the way: keys, and why.
pub(super) struct Decision {
    pub plan: Result<Plan, Vec<(String, SuiteRule)>>,
    pub warnings: Vec<SuiteWarning>,
}

/// Decides what is compared.
///
/// dlm-sway makes both sides from `models.ft` unless `differential` is off, and
/// never uses an adapter of the base. So do we in reference mode. In paired
/// mode both sides are what the file says, and one model is loaded where that
/// comes to the same.
pub(super) fn decide(base: &ModelSpec, tuned: &ModelSpec, defaults: &Defaults, folder: &Path) -> Decision {
    let mut warnings = Vec::new();
    let plan = match tuned.kind {
        ModelKind::Dummy => Err(vec![("models.ft.kind".to_owned(), SuiteRule::Dummy)]),
        ModelKind::Hf | ModelKind::Mlx => local(base, tuned, defaults, folder, &mut warnings),
        ModelKind::Custom if defaults.differential => custom(base, tuned, folder, &mut warnings),
        ModelKind::Custom => two(base, tuned, folder),
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
    let same_base = base.kind.is_local() && same_place(&base.base, &tuned.base);
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
    if !same_place(&base.base, &tuned.base) {
        warnings.push(ignored(base, tuned));
    }
    planned("models.ft", tuned, folder).map(|model| match model {
        PlannedModel::Custom(model) => Plan::Custom { model },
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

/// One side, if the file says all that it needs.
fn planned(path: &str, spec: &ModelSpec, folder: &Path) -> Planned<PlannedModel> {
    let fault = |key: &str, rule| Err(vec![(format!("{path}.{key}"), rule)]);
    if spec.timeout_s == Some(0) {
        return fault("timeout_s", SuiteRule::Outside { found: "0".to_owned(), wanted: "1 or more" });
    }
    match spec.kind {
        ModelKind::Hf | ModelKind::Mlx => Ok(PlannedModel::Local(LocalModel {
            kind: spec.kind,
            base: spec.base.clone(),
            adapter: spec.adapter.as_ref().map(PathBuf::from),
            dtype: spec.dtype,
            device: spec.device.clone(),
        })),
        ModelKind::Dummy => fault("kind", SuiteRule::Dummy),
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
    let mut tell = |key: &str, why: String| {
        warnings.push(SuiteWarning::NoEffect { key: format!("{path}.{key}"), why });
    };
    let kind = spec.kind;
    if spec.endpoint.is_some() && kind != ModelKind::Api {
        tell("endpoint", format!("kind `{kind}` asks no server"));
    }
    if spec.entry_point.is_some() && kind != ModelKind::Custom {
        tell("entry_point", format!("kind `{kind}` starts nothing"));
    }
    if spec.timeout_s.is_some() && kind.is_local() {
        tell("timeout_s", format!("kind `{kind}` waits for nobody"));
    }
    if spec.adapter.is_some() && kind == ModelKind::Api {
        tell("adapter", "a server has its own".to_owned());
    }
    if spec.trust_remote_code {
        tell("trust_remote_code", "nothing that comes with a model is run".to_owned());
    }
}

/// Whether two models are the same one. Paths compare by their parts.
fn same_place(one: &str, other: &str) -> bool {
    Path::new(one) == Path::new(other)
}
