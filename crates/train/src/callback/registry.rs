//! The callbacks that configs may name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weightloom_document::Section;
use weightloom_document::schema::{Key, Kind, Nullable};
use weightloom_errors::{Hint, caught};

use super::Callback;
use crate::extensions::{
    OptionProblem, RegisterError, Registry, UnknownName, problems_of, read_options, section_of,
};

/// A kind of callback, which builds a [`Callback`] from its options.
///
/// Implement it in your own crate and add it to [`Callbacks`]; configs can then
/// name it in `train.callbacks`, with its options. Every rank builds its own.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use weightloom_train::callback::{
///     Callback, CallbackError, CallbackFactory, CallbackResult, Callbacks, Control, TrainerState,
/// };
/// use weightloom_train::config::ConfigReader;
/// use weightloom_train::engine::StepResult;
/// use weightloom_train::Extensions;
///
/// /// Ends the run once the loss is low enough.
/// #[derive(Debug)]
/// struct StopAt;
///
/// /// Keys under `train.callbacks.stop_at`.
/// #[derive(Debug, Deserialize, JsonSchema)]
/// #[serde(deny_unknown_fields)]
/// struct Options {
///     /// The loss to stop at.
///     loss: f64,
/// }
///
/// struct StopAtLoss(f64);
///
/// impl Callback for StopAtLoss {
///     fn on_step_end(&mut self, _: &TrainerState<'_>, result: &StepResult) -> CallbackResult {
///         Ok(if result.loss <= self.0 { Control::Stop } else { Control::Continue })
///     }
/// }
///
/// impl CallbackFactory for StopAt {
///     type Options = Options;
///
///     fn name(&self) -> &'static str {
///         "stop_at"
///     }
///
///     fn summary(&self) -> &'static str {
///         "End the run once the loss is low enough."
///     }
///
///     fn build(&self, options: Options) -> Result<Box<dyn Callback>, CallbackError> {
///         Ok(Box::new(StopAtLoss(options.loss)))
///     }
/// }
///
/// let extensions = Extensions { callbacks: Callbacks::standard().with(StopAt)?, ..Extensions::standard() };
/// let text = "
/// model: {name: llama}
/// data: {type: dummy}
/// train: {max_steps: 10, callbacks: {stop_at: {loss: 2.5}}}
/// ";
/// let config = ConfigReader::new(&extensions, &|_| None).read(text, "run.yaml")?;
/// assert_eq!(extensions.callbacks.build(&config.train.callbacks)?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait CallbackFactory: fmt::Debug + Send + Sync + 'static {
    /// The keys under the name in `train.callbacks`;
    /// [`NoOptions`](crate::extensions::NoOptions) if there are none.
    type Options: DeserializeOwned + JsonSchema;

    /// The name in the config.
    fn name(&self) -> &'static str;

    /// What it does, in a sentence for the config reference.
    fn summary(&self) -> &'static str;

    /// Options with values that make no callback, beyond their types.
    fn problems(&self, _options: &Self::Options) -> Vec<OptionProblem> {
        Vec::new()
    }

    /// Builds the callback of one rank.
    fn build(&self, options: Self::Options) -> Result<Box<dyn Callback>, CallbackError>;
}

/// A [`CallbackFactory`] whose options are JSON.
trait AnyCallback: Send + Sync {
    fn problems(&self, options: &Map<String, Value>) -> Vec<OptionProblem>;
    fn build(&self, options: &Map<String, Value>) -> Result<Box<dyn Callback>, CallbackError>;
}

impl<T: CallbackFactory> AnyCallback for T {
    fn problems(&self, options: &Map<String, Value>) -> Vec<OptionProblem> {
        problems_of(Some(options), |options| CallbackFactory::problems(self, options))
    }

    fn build(&self, options: &Map<String, Value>) -> Result<Box<dyn Callback>, CallbackError> {
        let callback = || self.name().to_owned();
        let options = read_options(Some(options))
            .map_err(|problem| CallbackError::Options { callback: callback(), problem })?;
        CallbackFactory::build(self, options)
    }
}

/// The callbacks that configs may name. None is built in.
#[derive(Clone, Debug)]
pub struct Callbacks(Registry<dyn AnyCallback>);

impl Default for Callbacks {
    fn default() -> Self {
        Self::standard()
    }
}

/// The callbacks of a config, with their options.
type Named = BTreeMap<String, Map<String, Value>>;

impl Callbacks {
    /// The built-in callbacks: none.
    pub fn standard() -> Self {
        Self(Registry::new("callback"))
    }

    /// The same callbacks and another one.
    pub fn with(mut self, factory: impl CallbackFactory) -> Result<Self, RegisterError> {
        self.register(factory)?;
        Ok(self)
    }

    /// Adds a callback.
    pub fn register<T: CallbackFactory>(&mut self, factory: T) -> Result<(), RegisterError> {
        self.0.add((factory.name(), factory.summary()), section_of::<T::Options>, Arc::new(factory))
    }

    /// All names.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    /// Builds the callbacks that a config names, in the order of registration.
    pub fn build(&self, config: &Named) -> Result<Vec<Box<dyn Callback>>, CallbackError> {
        for name in config.keys() {
            self.0.find(name)?;
        }
        let named = self.names().into_iter().filter_map(|name| Some((name, config.get(name)?)));
        let build = |(name, options): (&'static str, &Map<String, Value>)| {
            let found = self.0.find(name)?;
            caught(|| found.build(options)).unwrap_or_else(|panic| {
                Err(CallbackError::Unusable { callback: name.to_owned(), problem: panic.to_string() })
            })
        };
        named.map(build).collect()
    }

    /// Names of a config that are not registered.
    pub(crate) fn unknown(&self, config: &Named) -> Vec<UnknownName> {
        config.keys().filter_map(|name| self.0.find(name).err()).collect()
    }

    /// Options of a config that its callbacks reject, with the names of these.
    pub(crate) fn problems(&self, config: &Named) -> Vec<(String, Vec<OptionProblem>)> {
        let of = |(name, options): (&String, &Map<String, Value>)| {
            (name.clone(), self.0.problems(name, |found| found.problems(options)))
        };
        config.iter().map(of).collect()
    }

    /// The keys of `train.callbacks`; `None` if there are none.
    pub(crate) fn section(&self) -> Option<Section> {
        let keys: Vec<Key> =
            self.0.choices().into_iter().map(|choice| self.key(choice.name, choice.description)).collect();
        (!keys.is_empty()).then_some(Section { keys })
    }

    fn key(&self, name: String, description: String) -> Key {
        let options = self.0.options(&name).cloned().unwrap_or(Section { keys: Vec::new() });
        // A callback that is not named is not used.
        Key {
            name,
            kind: Kind::Section(options),
            nullable: Nullable::No,
            default: Some(Value::Null),
            description,
        }
    }
}

/// Why a callback cannot be built, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CallbackError {
    #[error("`train.callbacks`: {0}")]
    Unknown(#[from] UnknownName),
    #[error("invalid `train.callbacks.{callback}`: {problem}")]
    Options { callback: String, problem: String },
    #[error("cannot use the callback `{callback}`: {problem}")]
    Unusable { callback: String, problem: String },
}

impl Hint for CallbackError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown(error) => error.hint(),
            Self::Options { .. } | Self::Unusable { .. } => None,
        }
    }
}
