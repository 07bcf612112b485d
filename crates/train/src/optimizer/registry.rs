//! The optimizers that configs may name.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weightloom_document::Section;
use weightloom_document::schema::Choice;

use super::adafactor::AdafactorFactory;
use super::adamw_8bit::AdamW8bitFactory;
use super::checked::Checked;
use super::lion::LionFactory;
use super::muon::MuonFactory;
use super::schedule_free::ScheduleFreeAdamWFactory;
use super::{AdamW, Optimizer, OptimizerConfig, OptimizerError, Sgd, error};
use crate::extensions::{
    NoOptions, OptionProblem, RegisterError, Registry, UnknownName, caught, problems_of, read_options,
    section_of,
};

/// A kind of optimizer, which builds an [`Optimizer`] from its section of a config.
///
/// Implement it in your own crate and add it to [`Optimizers`]; configs can then
/// name it as `train.optimizer.kind`. The built-in ones do the same.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use weightloom_tensor::{Tensor, TensorError};
/// use weightloom_train::config::ConfigReader;
/// use weightloom_train::optimizer::{
///     Optimizer, OptimizerConfig, OptimizerError, OptimizerFactory, Optimizers, StepInfo,
/// };
/// use weightloom_train::Extensions;
///
/// /// Gradient descent along a running mean of gradients.
/// #[derive(Debug)]
/// struct MeanDescent;
///
/// /// Keys under `train.optimizer.options`.
/// #[derive(Debug, Deserialize, JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct Options {
///     /// How slowly the mean forgets.
///     decay: f64,
/// }
///
/// impl Default for Options {
///     fn default() -> Self {
///         Self { decay: 0.9 }
///     }
/// }
///
/// struct Rule {
///     decay: f64,
/// }
///
/// impl Optimizer for Rule {
///     fn name(&self) -> &'static str {
///         "mean_descent"
///     }
///
///     // Saved with each checkpoint, and restored, by this name.
///     fn states(&self) -> &'static [&'static str] {
///         &["mean"]
///     }
///
///     // Called for each parameter, with this rank's shard.
///     fn step(
///         &self,
///         step: &StepInfo,
///         parameter: &mut Tensor,
///         gradient: &Tensor,
///         states: &mut [Tensor],
///     ) -> Result<(), TensorError> {
///         let gradient = gradient.scale(step.gradient_scale * (1.0 - self.decay))?;
///         states[0] = states[0].scale(self.decay)?.add(&gradient)?;
///         *parameter = parameter.sub(&states[0].scale(step.learning_rate)?)?;
///         Ok(())
///     }
/// }
///
/// impl OptimizerFactory for MeanDescent {
///     type Options = Options;
///
///     fn name(&self) -> &'static str {
///         "mean_descent"
///     }
///
///     fn summary(&self) -> &'static str {
///         "Descent along a running mean of gradients."
///     }
///
///     fn build(
///         &self,
///         _: &OptimizerConfig,
///         options: Options,
///     ) -> Result<Box<dyn Optimizer>, OptimizerError> {
///         Ok(Box::new(Rule { decay: options.decay }))
///     }
/// }
///
/// let optimizers = Optimizers::standard().with(MeanDescent)?;
/// let extensions = Extensions { optimizers, ..Extensions::standard() };
/// let text = "
/// model: {name: llama}
/// data: {type: dummy}
/// train: {max_steps: 10, optimizer: {kind: mean_descent, lr: 0.1, options: {decay: 0.5}}}
/// ";
/// let config = ConfigReader::new(&extensions, &|_| None).read(text, "run.yaml")?;
/// let optimizer = extensions.optimizers.build(&config.train.optimizer)?;
/// assert_eq!(optimizer.states(), ["mean"]);
/// // The run: `train(TrainRequest { extensions, ..TrainRequest::new(&config, &hub, gang) })`.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait OptimizerFactory: fmt::Debug + Send + Sync + 'static {
    /// The keys under `train.optimizer.options`; [`NoOptions`] if there are none.
    type Options: DeserializeOwned + JsonSchema;

    /// The name in the config, also that of the optimizers it builds.
    fn name(&self) -> &'static str;

    /// What it is, in a sentence for the config reference.
    fn summary(&self) -> &'static str;

    /// Options with values that make no optimizer, beyond their types.
    fn problems(&self, _options: &Self::Options) -> Vec<OptionProblem> {
        Vec::new()
    }

    /// Builds the optimizer.
    fn build(
        &self,
        config: &OptimizerConfig,
        options: Self::Options,
    ) -> Result<Box<dyn Optimizer>, OptimizerError>;
}

/// An [`OptimizerFactory`] whose options are JSON.
trait AnyOptimizer: Send + Sync {
    fn problems(&self, options: Option<&Map<String, Value>>) -> Vec<OptionProblem>;
    fn build(&self, config: &OptimizerConfig) -> Result<Box<dyn Optimizer>, OptimizerError>;
}

impl<T: OptimizerFactory> AnyOptimizer for T {
    fn problems(&self, options: Option<&Map<String, Value>>) -> Vec<OptionProblem> {
        problems_of(options, |options| OptimizerFactory::problems(self, options))
    }

    fn build(&self, config: &OptimizerConfig) -> Result<Box<dyn Optimizer>, OptimizerError> {
        let optimizer = || OptimizerFactory::name(self).to_owned();
        let options = read_options(config.options.as_ref())
            .map_err(|problem| OptimizerError::Options { optimizer: optimizer(), problem })?;
        OptimizerFactory::build(self, config, options)
    }
}

/// The optimizers that configs may name, with those of your own crate.
#[derive(Clone, Debug)]
pub struct Optimizers(Registry<dyn AnyOptimizer>);

impl Default for Optimizers {
    fn default() -> Self {
        Self::standard()
    }
}

impl Optimizers {
    /// The built-in optimizers.
    pub fn standard() -> Self {
        const OURS: &str = "the names of built-in optimizers differ, and tests read their options";
        Self(Registry::new("optimizer"))
            .with(AdamWFactory)
            .and_then(|optimizers| optimizers.with(SgdFactory))
            .and_then(|optimizers| optimizers.with(LionFactory))
            .and_then(|optimizers| optimizers.with(AdafactorFactory))
            .and_then(|optimizers| optimizers.with(ScheduleFreeAdamWFactory))
            .and_then(|optimizers| optimizers.with(MuonFactory))
            .and_then(|optimizers| optimizers.with(AdamW8bitFactory))
            .expect(OURS)
    }

    /// The same optimizers and another one.
    pub fn with(mut self, factory: impl OptimizerFactory) -> Result<Self, RegisterError> {
        self.register(factory)?;
        Ok(self)
    }

    /// Adds an optimizer.
    pub fn register<T: OptimizerFactory>(&mut self, factory: T) -> Result<(), RegisterError> {
        self.0.add((factory.name(), factory.summary()), section_of::<T::Options>, Arc::new(factory))
    }

    /// All names, the built-in ones first.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    /// Builds the optimizer that a config selects. One that is not built in is
    /// checked at every step.
    pub fn build(&self, config: &OptimizerConfig) -> Result<Box<dyn Optimizer>, OptimizerError> {
        error::check(config)?;
        let name = config.kind.name();
        let found = self.0.find(name)?;
        let unusable = |problem: String| OptimizerError::Unusable { optimizer: name.to_owned(), problem };
        let built = caught(|| found.build(config)).map_err(|panic| unusable(panic.to_string()))??;
        if built.name() != name {
            return Err(unusable(format!("it builds an optimizer with the name `{}`", built.name())));
        }
        let states = built.states();
        let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_name = |state: &str| !state.is_empty() && state.chars().all(fits);
        if let Some(state) = states.iter().find(|state| !is_name(state)) {
            return Err(unusable(format!("`{state}` cannot be the name of a state")));
        }
        if let Some(state) = states.iter().enumerate().find(|(at, state)| states[..*at].contains(state)) {
            return Err(unusable(format!("it has two states `{}`", state.1)));
        }
        Ok(if config.kind.is_built_in() { built } else { Box::new(Checked(built)) })
    }

    /// Whether an optimizer has this name.
    pub fn find(&self, name: &str) -> Result<(), UnknownName> {
        self.0.find(name).map(|_| ())
    }

    /// Options of a config that its optimizer rejects.
    pub(crate) fn problems(&self, config: &OptimizerConfig) -> Vec<OptionProblem> {
        self.0.problems(config.kind.name(), |found| found.problems(config.options.as_ref()))
    }

    pub(crate) fn choices(&self) -> Vec<Choice> {
        self.0.choices()
    }

    pub(crate) fn options(&self, name: &str) -> Option<&Section> {
        self.0.options(name)
    }
}

#[derive(Debug)]
struct AdamWFactory;

impl OptimizerFactory for AdamWFactory {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        "adamw"
    }

    fn summary(&self) -> &'static str {
        "Adam with decoupled weight decay."
    }

    fn build(&self, config: &OptimizerConfig, _: NoOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(AdamW { betas: config.betas, eps: config.eps }))
    }
}

#[derive(Debug)]
struct SgdFactory;

impl OptimizerFactory for SgdFactory {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        "sgd"
    }

    fn summary(&self) -> &'static str {
        "Stochastic gradient descent with momentum."
    }

    fn build(&self, config: &OptimizerConfig, _: NoOptions) -> Result<Box<dyn Optimizer>, OptimizerError> {
        Ok(Box::new(Sgd { momentum: config.momentum }))
    }
}
