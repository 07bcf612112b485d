//! What a program knows by name: built-in things and its own.

mod error;

use std::any::type_name;
use std::path::PathBuf;

use serde_json::Value;
use weightloom_checkpoint::formats::{CheckpointFormat, Formats};
use weightloom_checkpoint::plan::{LoadPlannerFactory, SavePlannerFactory};
use weightloom_dtensor::DistributedOp;
use weightloom_errors::caught;
use weightloom_hub::cards::{CardSource, CardStore, StoreSettings};
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{AnyFamily, Families, Hub};
use weightloom_sway::backend::BackendKind;
use weightloom_sway::probe::ProbeKind;
use weightloom_train::callback::CallbackFactory;
use weightloom_train::data::RecordFormat;
use weightloom_train::loss::LossFactory;
use weightloom_train::metrics::SinkFactory;
use weightloom_train::optimizer::OptimizerFactory;
use weightloom_train::schedule::ScheduleFactory;
use weightloom_train::spec::{ModelSpec, SpecError};

pub use error::{RegistryError, RegistryErrors};

/// The variable with folders of described models, separated as in `PATH`.
pub const MODEL_PATH: &str = "WEIGHTLOOM_MODEL_PATH";

/// Folders besides those of environment variables.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// Folders of cards.
    pub assets: Vec<PathBuf>,
    /// Folders of described models.
    pub models: Vec<PathBuf>,
}

/// What a program knows by name: families, model specs, archs, cards, distributed
/// operations, losses, optimizers, schedules, record formats, metric sinks,
/// callbacks, probes, backends, planners and checkpoint formats.
///
/// A value, not global state: [`app`](crate::app) makes a program of it, with every
/// command, and two programs in one process may have different ones. Registration
/// never fails in between: [`check`](Self::check) returns all mistakes, and
/// [`App::main`](crate::App::main) prints them.
///
/// ```
/// use weightloom::train::optimizer::{
///     Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, Sgd,
/// };
/// use weightloom::train::extensions::NoOptions;
/// use weightloom::Registry;
///
/// #[derive(Debug)]
/// struct Plain;
///
/// impl OptimizerFactory for Plain {
///     type Options = NoOptions;
///
///     fn name(&self) -> &'static str {
///         "sgd"
///     }
///
///     fn summary(&self) -> &'static str {
///         "Gradient descent without momentum."
///     }
///
///     fn build(&self, _: &OptimizerConfig, _: NoOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
///         Ok(Box::new(Sgd { momentum: 0.0 }))
///     }
/// }
///
/// let registry = Registry::standard().optimizer(Plain);
/// let errors = registry.check().unwrap_err();
/// assert_eq!(errors.to_string(), "cannot register the optimizer `sgd`: the name is taken");
/// ```
#[derive(Clone)]
pub struct Registry {
    families: Families,
    /// Names and contents of card files, after the built-in ones.
    cards: Vec<(String, String)>,
    train: weightloom_train::Extensions,
    sway: weightloom_sway::Extensions,
    formats: Formats,
    errors: Vec<RegistryError>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::standard()
    }
}

impl Registry {
    /// Everything that is built in: the registry of the `weightloom` program.
    pub fn standard() -> Self {
        let mut families = Families::new();
        let registered = weightloom_models::register(&mut families);
        Self {
            families,
            cards: Vec::new(),
            train: weightloom_train::Extensions::standard(),
            sway: weightloom_sway::Extensions::standard(),
            formats: Formats::standard(),
            errors: registered.err().map(RegistryError::from).into_iter().collect(),
        }
    }

    /// Adds a model family, which every command reads.
    #[must_use]
    pub fn family(self, family: impl AnyFamily + 'static) -> Self {
        self.add("family", family, |registry, family| registry.families.register(family))
    }

    /// Adds a model spec, a value of `model.name` in training configs.
    #[must_use]
    pub fn model(self, spec: impl ModelSpec + 'static) -> Self {
        self.add("model spec", spec, |registry, spec| {
            let name = spec.name().to_owned();
            if registry.families.maybe_get(&name).is_some() {
                return Err(SpecError::Twice { name });
            }
            registry.train.specs.register(&name, spec)
        })
    }

    /// Adds an arch, a named size of a family, with its configuration as in
    /// `config.json`.
    #[must_use]
    pub fn arch(self, family: &str, arch: &str, config: Value) -> Self {
        self.add("arch", config, |registry, config| match config {
            Value::Object(config) => Ok(registry.families.register_arch(family, arch, &config)?),
            other => Err(RegistryError::ArchConfig {
                family: family.to_owned(),
                arch: arch.to_owned(),
                found: other.to_string(),
            }),
        })
    }

    /// Adds the cards of a YAML file: its name and contents. They override built-in
    /// cards, and those in folders override them.
    #[must_use]
    pub fn cards(self, file: &str, contents: &str) -> Self {
        self.add("card file", contents, |registry, contents| {
            let store = CardStore::new([CardSource::built_in(&[(file, contents)])]);
            match store.problems().first() {
                Some(problem) => Err(RegistryError::Cards { problem: problem.to_string() }),
                None => {
                    registry.cards.push((file.to_owned(), contents.to_owned()));
                    Ok(())
                }
            }
        })
    }

    /// Adds a distributed operation: the sharding rule of a user's function.
    #[must_use]
    pub fn operation(self, rule: impl DistributedOp) -> Self {
        self.add("operation", rule, |registry, rule| {
            registry.train.operations = registry.train.operations.with(rule)?;
            Ok::<(), RegistryError>(())
        })
    }

    /// Adds a loss, a value of `train.loss.kind`.
    #[must_use]
    pub fn loss(self, factory: impl LossFactory) -> Self {
        self.add("loss", factory, |registry, factory| registry.train.losses.register(factory))
    }

    /// Adds an optimizer, a value of `train.optimizer.kind`.
    #[must_use]
    pub fn optimizer(self, factory: impl OptimizerFactory) -> Self {
        self.add("optimizer", factory, |registry, factory| registry.train.optimizers.register(factory))
    }

    /// Adds a learning-rate schedule, a value of `train.schedule.kind`.
    #[must_use]
    pub fn schedule(self, factory: impl ScheduleFactory) -> Self {
        self.add("schedule", factory, |registry, factory| registry.train.schedules.register(factory))
    }

    /// Adds a format of training data, a value of `data.format`.
    #[must_use]
    pub fn record_format(self, format: impl RecordFormat) -> Self {
        self.add("data format", format, |registry, format| registry.train.formats.register(format))
    }

    /// Adds a metric sink, a value of `train.logging.report_to`.
    #[must_use]
    pub fn sink(self, factory: impl SinkFactory) -> Self {
        self.add("metric sink", factory, |registry, factory| registry.train.sinks.register(factory))
    }

    /// Adds a callback, a key of `train.callbacks`.
    #[must_use]
    pub fn callback(self, factory: impl CallbackFactory) -> Self {
        self.add("callback", factory, |registry, factory| registry.train.callbacks.register(factory))
    }

    /// Adds a planner of saves, a value of `train.checkpoint.save_planner`.
    #[must_use]
    pub fn save_planner(self, factory: impl SavePlannerFactory + 'static) -> Self {
        self.add("save planner", factory, |registry, factory| registry.train.save_planners.register(factory))
    }

    /// Adds a planner of loads, a value of `train.checkpoint.load_planner`.
    #[must_use]
    pub fn load_planner(self, factory: impl LoadPlannerFactory + 'static) -> Self {
        self.add("load planner", factory, |registry, factory| registry.train.load_planners.register(factory))
    }

    /// Adds a format of checkpoints, which every command reads.
    #[must_use]
    pub fn checkpoint_format(self, format: impl CheckpointFormat) -> Self {
        self.add("checkpoint format", format, |registry, format| registry.formats.register(format))
    }

    /// Adds a kind of probe for suites.
    #[must_use]
    pub fn probe<T: ProbeKind>(self) -> Self {
        self.add("probe kind", std::marker::PhantomData::<T>, |registry, _| {
            registry.sway.probes.register::<T>()
        })
    }

    /// Adds a kind of backend for suites.
    #[must_use]
    pub fn backend(self, kind: impl BackendKind) -> Self {
        self.add("kind of backend", kind, |registry, kind| registry.sway.backends.register(kind))
    }

    /// Registers one extension. What is wrong with it, or its panic, is kept for
    /// [`check`](Self::check).
    fn add<T, E: Into<RegistryError>>(
        mut self,
        what: &'static str,
        extension: T,
        register: impl FnOnce(&mut Self, T) -> Result<(), E>,
    ) -> Self {
        let registered = caught(|| register(&mut self, extension));
        let error = match registered {
            Ok(done) => done.err().map(Into::into),
            Err(panic) => {
                Some(RegistryError::Panicked { what, extension: type_name::<T>(), message: panic.message })
            }
        };
        self.errors.extend(error);
        self
    }

    /// Fails with everything that could not be registered.
    pub fn check(&self) -> Result<(), RegistryErrors> {
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(RegistryErrors { errors: self.errors.clone() }),
        }
    }

    /// What training configs may name, and what models use.
    pub fn training(&self) -> &weightloom_train::Extensions {
        &self.train
    }

    /// What suites may name.
    pub fn judging(&self) -> &weightloom_sway::Extensions {
        &self.sway
    }

    /// The model families that are not described in files.
    pub fn families(&self) -> &Families {
        &self.families
    }

    /// The hub with all families and cards. `variable` looks up settings, usually in
    /// the environment.
    pub fn hub(&self, variable: &dyn Fn(&str) -> Option<String>, folders: &Folders) -> Hub {
        let mut model_path = folders.models.clone();
        if let Some(more) = variable(MODEL_PATH) {
            model_path.extend(std::env::split_paths(&more).filter(|path| !path.as_os_str().is_empty()));
        }
        let settings = StoreSettings::from_variables(variable, &folders.assets);
        let own: Vec<(&str, &str)> =
            self.cards.iter().map(|(file, contents)| (file.as_str(), contents.as_str())).collect();
        let built_in = [CardSource::built_in(weightloom_models::CARDS), CardSource::built_in(&own)];
        let cards = CardStore::new(built_in.into_iter().chain(settings.sources()))
            .with_environments(settings.environments.iter().cloned());
        let mut hub = Hub::new(cards, self.families.clone(), FetchSettings::from_lookup(variable))
            .with_model_path(model_path);
        hub.operations = self.train.operations.clone();
        hub.formats = self.formats.clone();
        hub
    }
}
