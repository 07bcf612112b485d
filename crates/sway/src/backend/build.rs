//! Building a backend from the plan of a suite.
//!
//! Everything is checked before anything is downloaded, loaded or started. An
//! error names the key of the suite file.

mod embedding;
mod error;

use std::path::{Path, PathBuf};

use serde_json::Map;
use weightloom_checkpoint::{CheckpointError, Format, Observer, Source};
use weightloom_hub::fetch::FetchObserver;
use weightloom_hub::{Hub, Model};
use weightloom_layout::DType;
use weightloom_tensor::DeviceChoice;

pub use embedding::embedding_folder;
pub use error::BuildError;

use super::api::{ApiBackend, ApiError, ApiKeys, ApiOptions};
use super::custom::{CustomBackend, CustomOptions};
use super::local::{LocalBackend, LocalOptions, Tuned};
use super::model_pair::{BackendView, ModelPair};
use super::sentence_encoder::WithSentenceEncoder;
use super::tokenizer_match::first_difference;
use super::{Backend, BackendRequest, Backends, UnknownBackend};
use crate::convert_adapter::WEIGHTS;
use crate::suite::{CustomModel, EntryPoint, LocalModel, Plan, PlannedModel, Precision, ServedModel, Suite};

/// The Python for custom backends.
const PYTHON: &str = "WEIGHTLOOM_PYTHON";

/// Whether the programs that a suite names with `kind: custom` may be started. A
/// suite is a file from someone, and a program can do whatever its user can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Programs {
    /// They are refused.
    #[default]
    Deny,
    /// They are started.
    Allow,
}

/// Builds backends.
pub struct BackendBuilder<'a> {
    /// Finds models.
    pub hub: &'a Hub,
    /// Receives the progress of downloads.
    pub observer: &'a dyn FetchObserver,
    /// Options of local backends; the suite sets the dtype.
    pub local: LocalOptions,
    /// Device of local backends; by default the suite's.
    pub device: Option<DeviceChoice>,
    /// The rank, by which ranks share out the GPUs.
    pub rank: usize,
    /// Options of API backends; keys default to those in environment variables.
    pub api: ApiOptions,
    /// Options of custom backends.
    pub custom: CustomOptions,
    /// Whether a suite may start programs; by default it may not.
    pub programs: Programs,
    /// The kinds of backends; by default the built-in ones.
    pub backends: Backends,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> BackendBuilder<'a> {
    /// A builder with default options. `variable` looks up `SWAY_API_KEY`,
    /// `OPENAI_API_KEY` and `WEIGHTLOOM_PYTHON`.
    pub fn new(
        hub: &'a Hub,
        observer: &'a dyn FetchObserver,
        variable: &'a dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let mut custom = CustomOptions::default();
        if let Some(python) = variable(PYTHON).filter(|python| !python.trim().is_empty()) {
            custom.python = python;
        }
        let mut api = ApiOptions::default();
        if let Ok(fetch) = hub.fetch_settings() {
            api.proxies = fetch.proxies.clone();
        }
        let programs = Programs::default();
        let backends = Backends::standard();
        Self {
            hub,
            observer,
            local: LocalOptions::default(),
            device: None,
            rank: 0,
            api,
            custom,
            programs,
            backends,
            variable,
        }
    }

    /// Checks a plan without downloading, loading or starting anything.
    pub fn check(&self, plan: &Plan) -> Result<(), BuildError> {
        check(plan)?;
        self.check_programs(plan)?;
        for (key, model) in local_models(plan) {
            let found = self.hub.resolve(&model.base);
            let key = format!("{key}.base");
            found.map_err(|source| BuildError::Model { key, source: Box::new(source) })?;
        }
        Ok(())
    }

    /// The devices of the models of a plan that this program loads, each once.
    pub fn devices(&self, plan: &Plan) -> Result<Vec<DeviceChoice>, BuildError> {
        let mut all = Vec::new();
        for (key, model) in local_models(plan) {
            let device = self.device.map_or_else(|| chosen(key, model), Ok)?;
            if !all.contains(&device) {
                all.push(device);
            }
        }
        Ok(all)
    }

    /// Checks that the programs of a plan may be started.
    pub fn check_programs(&self, plan: &Plan) -> Result<(), BuildError> {
        let sides = match plan {
            Plan::Adapter { .. } | Plan::Registered { .. } => Vec::new(),
            Plan::Custom { model } => vec![(TUNED, model)],
            Plan::Two { base, tuned } => [(BASE, base), (TUNED, tuned)]
                .into_iter()
                .filter_map(|(key, side)| match side {
                    PlannedModel::Custom(model) => Some((key, model)),
                    _ => None,
                })
                .collect(),
        };
        match sides.first() {
            Some((key, model)) if self.programs == Programs::Deny => {
                let program = match &model.entry {
                    EntryPoint::Program { path } => path.display().to_string(),
                    EntryPoint::Python { module, class } => format!("{module}:{class}"),
                };
                Err(BuildError::ProgramDenied { key: format!("{key}.entry_point"), program })
            }
            _ => Ok(()),
        }
    }

    /// Builds the backend of a suite, with the embedding model that it names.
    /// `reading` receives the progress of reading that model.
    pub fn build_suite(&self, suite: &Suite, reading: &dyn Observer) -> Result<Box<dyn Backend>, BuildError> {
        let embedding = embedding_folder(suite)?;
        let backend = self.build(&suite.plan)?;
        Ok(match embedding {
            None => backend,
            Some(folder) => Box::new(WithSentenceEncoder::open(backend, &folder, reading)?),
        })
    }

    /// Builds the backend of a plan.
    pub fn build(&self, plan: &Plan) -> Result<Box<dyn Backend>, BuildError> {
        check(plan)?;
        self.check_programs(plan)?;
        self.check_tokenizers(plan)?;
        match plan {
            Plan::Adapter { model } => self.side(TUNED, &PlannedModel::Local(model.clone())),
            Plan::Custom { model } => self.side(TUNED, &PlannedModel::Custom(model.clone())),
            Plan::Registered { model } => self.side(TUNED, &PlannedModel::Registered(model.clone())),
            Plan::Two { base: PlannedModel::Local(base), tuned: PlannedModel::Local(tuned) }
                if is_plain(base) && is_plain(tuned) && dtype(base.dtype) == dtype(tuned.dtype) =>
            {
                let other = Tuned::Model(Box::new(self.open(TUNED, tuned)?));
                self.engine(base, self.open(BASE, base)?, other)
            }
            Plan::Two { base: PlannedModel::Server(base), tuned: PlannedModel::Server(tuned) } => {
                let options = self.api_options()?;
                let made = ApiBackend::new(base, Some(tuned), &options);
                Ok(Box::new(made.map_err(|source| of_server("models", source))?))
            }
            Plan::Two { base, tuned } => {
                let before = self.side(BASE, base)?;
                // A local base may have its own adapter; other backends know their
                // base.
                let before = match base {
                    PlannedModel::Local(_) => BackendView::tuned(before),
                    _ => BackendView { backend: before, view: crate::View::Base },
                };
                Ok(Box::new(ModelPair::of(before, BackendView::tuned(self.side(TUNED, tuned)?))))
            }
        }
    }

    /// Checks that two local models tokenize alike. A model without a tokenizer
    /// uses the other's.
    fn check_tokenizers(&self, plan: &Plan) -> Result<(), BuildError> {
        let Plan::Two { base: PlannedModel::Local(base), tuned: PlannedModel::Local(tuned) } = plan else {
            return Ok(());
        };
        if base.base == tuned.base {
            return Ok(());
        }
        let (one, other) = (self.open(BASE, base)?, self.open(TUNED, tuned)?);
        let (Ok(one), Ok(other)) = (one.tokenizer(), other.tokenizer()) else { return Ok(()) };
        match first_difference(&one, &other) {
            None => Ok(()),
            Some(text) => {
                Err(BuildError::TokenizersDiffer { base: base.base.clone(), tuned: tuned.base.clone(), text })
            }
        }
    }

    fn side(&self, key: &str, model: &PlannedModel) -> Result<Box<dyn Backend>, BuildError> {
        let kind = model.kind();
        let found = self.backends.find(&kind.to_string());
        let found = found.map_err(|source| BuildError::Kind { key: format!("{key}.kind"), source })?;
        let none = Map::new();
        let options = match model {
            PlannedModel::Registered(model) => model.spec.options.as_ref().unwrap_or(&none),
            _ => &none,
        };
        found.build(options, &BackendRequest { key, model, builder: self })
    }

    pub(super) fn server(&self, key: &str, model: &ServedModel) -> Result<Box<dyn Backend>, BuildError> {
        let made = ApiBackend::new(model, None, &self.api_options()?);
        Ok(Box::new(made.map_err(|source| of_server(key, source))?))
    }

    /// The error of a kind that is not registered.
    pub(super) fn unknown(&self, key: &str, kind: &str) -> BuildError {
        let known: Vec<String> = self.backends.kinds().iter().map(|kind| kind.name().to_owned()).collect();
        let source = UnknownBackend { kind: kind.to_owned(), near: None, known };
        BuildError::Kind { key: format!("{key}.kind"), source }
    }

    pub(super) fn local(&self, key: &str, model: &LocalModel) -> Result<Box<dyn Backend>, BuildError> {
        let tuned = model.adapter.as_deref().map_or(Tuned::None, |path| Tuned::Adapter(adapter_folder(path)));
        self.engine(model, self.open(key, model)?, tuned)
    }

    fn engine(&self, model: &LocalModel, base: Model, tuned: Tuned) -> Result<Box<dyn Backend>, BuildError> {
        let device = self.device.map_or_else(|| chosen(TUNED, model), Ok)?.resolve(self.rank)?.device;
        let options = LocalOptions { dtype: dtype(model.dtype), device, ..self.local };
        Ok(Box::new(LocalBackend::new(&model.kind.to_string(), base, tuned, options)?))
    }

    fn open(&self, key: &str, model: &LocalModel) -> Result<Model, BuildError> {
        let opened = self.hub.open(&model.base, self.observer);
        opened.map_err(|source| BuildError::Model { key: format!("{key}.base"), source: Box::new(source) })
    }

    pub(super) fn custom(&self, key: &str, model: &CustomModel) -> Result<Box<dyn Backend>, BuildError> {
        let started = CustomBackend::start(model, &self.custom);
        let failed = |source| BuildError::Custom { key: format!("{key}.entry_point"), source };
        Ok(Box::new(started.map_err(failed)?))
    }

    fn api_options(&self) -> Result<ApiOptions, BuildError> {
        let mut options = self.api.clone();
        if options.keys == ApiKeys::default() {
            let keys = ApiKeys::from_variables(self.variable);
            options.keys = keys.map_err(|source| of_server("models", source))?;
        }
        Ok(options)
    }
}

/// Keys of the two models in a suite file.
const BASE: &str = "models.base";
const TUNED: &str = "models.ft";

/// The models of a plan that this program loads, with their keys.
fn local_models(plan: &Plan) -> Vec<(&'static str, &LocalModel)> {
    match plan {
        Plan::Adapter { model } => vec![(TUNED, model)],
        Plan::Custom { .. } | Plan::Registered { .. } => Vec::new(),
        Plan::Two { base, tuned } => [(BASE, base), (TUNED, tuned)]
            .into_iter()
            .filter_map(|(key, side)| match side {
                PlannedModel::Local(model) => Some((key, model)),
                _ => None,
            })
            .collect(),
    }
}

fn of_server(key: &str, source: ApiError) -> BuildError {
    let key = match &source {
        ApiError::Endpoint { .. } | ApiError::InsecureKey { .. } => format!("{key}.endpoint"),
        _ => key.to_owned(),
    };
    BuildError::Api { key, source }
}

fn is_plain(model: &LocalModel) -> bool {
    model.adapter.is_none()
}

/// The dtype of a precision. On a CPU, f32 is both fastest and most exact.
fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::Auto | Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        Precision::Bf16 => DType::Bf16,
    }
}

/// Checks files and devices.
fn check(plan: &Plan) -> Result<(), BuildError> {
    match plan {
        Plan::Adapter { model } => check_local(TUNED, model),
        Plan::Custom { model } => check_custom(TUNED, model),
        Plan::Registered { .. } => Ok(()),
        Plan::Two { base, tuned } => {
            [(BASE, base), (TUNED, tuned)].into_iter().try_for_each(|(key, model)| match model {
                PlannedModel::Local(model) => check_local(key, model),
                PlannedModel::Custom(model) => check_custom(key, model),
                PlannedModel::Server(_) | PlannedModel::Registered(_) => Ok(()),
            })
        }
    }
}

/// The device that a suite asks for.
fn chosen(key: &str, model: &LocalModel) -> Result<DeviceChoice, BuildError> {
    model.device.parse().map_err(|source| BuildError::Device { key: format!("{key}.device"), source })
}

fn check_local(key: &str, model: &LocalModel) -> Result<(), BuildError> {
    chosen(key, model)?;
    match &model.adapter {
        Some(path) => check_adapter(&format!("{key}.adapter"), path),
        None => Ok(()),
    }
}

/// Checks that a path is an adapter, without reading its weights. `key` is the
/// key or argument that names it.
pub fn check_adapter(key: &str, path: &Path) -> Result<(), BuildError> {
    let key = key.to_owned();
    if !path.exists() {
        return Err(BuildError::NoAdapter { key, path: path.display().to_string() });
    }
    let folder = adapter_folder(path);
    // Without its config, the tensors of an adapter cannot be interpreted.
    let config = weightloom_checkpoint::formats::peft::CONFIG;
    let exists = |name: &&&str| folder.join(name).is_file();
    if folder.is_dir() && !folder.join(config).is_file() && !folder.join("config.json").is_file() {
        let found = WEIGHTS.iter().find(exists).map(|name| (*name).to_owned());
        return Err(BuildError::NoAdapterConfig { key, path: folder.display().to_string(), found });
    }
    let failed = |source: CheckpointError| BuildError::Adapter { key: key.clone(), source };
    let source = Source::open(&folder).map_err(failed)?;
    let alone = source.as_adapter().map_err(failed)?;
    let format = alone.as_ref().unwrap_or(&source).index.format();
    // An MLX folder is an adapter's if it has an adapter config.
    let is_adapter = match format {
        Format::Peft => true,
        Format::Mlx => source.index.metadata().contains_key(config),
        _ => false,
    };
    if is_adapter {
        return Ok(());
    }
    Err(BuildError::NotAdapter { key, path: folder.display().to_string(), format })
}

/// The folder of an adapter, given the folder or one of its files.
fn adapter_folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if path.is_file() && parent.join("adapter_config.json").is_file() => parent.to_owned(),
        _ => path.to_owned(),
    }
}

fn check_custom(key: &str, model: &CustomModel) -> Result<(), BuildError> {
    match &model.entry {
        EntryPoint::Program { path } if !path.is_file() => {
            Err(BuildError::NoProgram { key: format!("{key}.entry_point"), path: path.display().to_string() })
        }
        _ => Ok(()),
    }
}
