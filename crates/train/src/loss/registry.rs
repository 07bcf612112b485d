//! The losses that configs may name.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weightloom_document::Section;
use weightloom_document::schema::Choice;
use weightloom_dtensor::DTensor;
use weightloom_errors::caught;
use weightloom_layout::DType;
use weightloom_nn::NnError;

use super::cross_entropy::RegularizedCrossEntropy;
use super::distillation::DistillationFactory;
use super::preference::{DpoFactory, KtoFactory, OrpoFactory, SimpoFactory};
use super::{BatchTotals, Loss, LossArgs, LossConfig, LossError, LossKind, LossNeeds, ModelLoss, Reference};
use crate::extensions::{
    NoOptions, OptionProblem, RegisterError, Registry, problems_of, read_options, section_of,
};

/// A kind of loss, which builds a [`Loss`] from its section of a config.
///
/// Implement it in your own crate and add it to [`Losses`]; configs can then name
/// it as `train.loss.kind`. The built-in one does the same.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use weightloom_dtensor::DTensor;
/// use weightloom_nn::{IGNORED, NnError};
/// use weightloom_tensor::CrossEntropy;
/// use weightloom_train::loss::{Loss, LossArgs, LossError, LossFactory, Losses};
///
/// /// Cross-entropy with smoothed targets.
/// #[derive(Debug)]
/// struct Smoothed;
///
/// /// Keys under `train.loss.options`.
/// #[derive(Debug, Deserialize, JsonSchema)]
/// #[serde(default, deny_unknown_fields)]
/// struct Options {
///     /// Share of the probability that other tokens get.
///     smoothing: f64,
/// }
///
/// impl Default for Options {
///     fn default() -> Self {
///         Self { smoothing: 0.1 }
///     }
/// }
///
/// struct SmoothedLoss {
///     smoothing: f64,
/// }
///
/// impl Loss for SmoothedLoss {
///     fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
///         let options = CrossEntropy {
///             ignore_index: Some(IGNORED),
///             label_smoothing: self.smoothing,
///             divisor: Some(args.divisor),
///         };
///         Ok(args.logits()?.cross_entropy(&args.row_targets()?, options)?)
///     }
/// }
///
/// impl LossFactory for Smoothed {
///     type Options = Options;
///
///     fn name(&self) -> &'static str {
///         "smoothed"
///     }
///
///     fn summary(&self) -> &'static str {
///         "Cross-entropy with smoothed targets."
///     }
///
///     fn build(&self, options: Options) -> Result<Box<dyn Loss>, LossError> {
///         Ok(Box::new(SmoothedLoss { smoothing: options.smoothing }))
///     }
/// }
///
/// let losses = Losses::standard().with(Smoothed)?;
/// assert_eq!(losses.names().first(), Some(&"cross_entropy"));
/// assert_eq!(losses.names().last(), Some(&"smoothed"));
/// # Ok::<(), weightloom_train::extensions::RegisterError>(())
/// ```
pub trait LossFactory: fmt::Debug + Send + Sync + 'static {
    /// The keys under `train.loss.options`; [`NoOptions`] if there are none.
    type Options: DeserializeOwned + JsonSchema;

    /// The name in the config.
    fn name(&self) -> &'static str;

    /// What it is, in a sentence for the config reference.
    fn summary(&self) -> &'static str;

    /// Options with values that make no loss, beyond their types.
    fn problems(&self, _options: &Self::Options) -> Vec<OptionProblem> {
        Vec::new()
    }

    /// Builds the loss.
    fn build(&self, options: Self::Options) -> Result<Box<dyn Loss>, LossError>;
}

/// A [`LossFactory`] whose options are JSON.
trait AnyLoss: Send + Sync {
    fn problems(&self, options: Option<&Map<String, Value>>) -> Vec<OptionProblem>;
    fn build(&self, options: Option<&Map<String, Value>>) -> Result<Box<dyn Loss>, LossError>;
}

impl<T: LossFactory> AnyLoss for T {
    fn problems(&self, options: Option<&Map<String, Value>>) -> Vec<OptionProblem> {
        problems_of(options, |options| LossFactory::problems(self, options))
    }

    fn build(&self, options: Option<&Map<String, Value>>) -> Result<Box<dyn Loss>, LossError> {
        let loss = || self.name().to_owned();
        let options =
            read_options(options).map_err(|problem| LossError::Options { loss: loss(), problem })?;
        LossFactory::build(self, options)
    }
}

/// The losses that configs may name, with those of your own crate.
#[derive(Clone, Debug)]
pub struct Losses(Registry<dyn AnyLoss>);

impl Default for Losses {
    fn default() -> Self {
        Self::standard()
    }
}

impl Losses {
    /// The built-in losses.
    pub fn standard() -> Self {
        let all = || {
            let losses = Self(Registry::new("loss")).with(CrossEntropyFactory)?;
            let losses = losses.with(DpoFactory)?.with(OrpoFactory)?.with(SimpoFactory)?.with(KtoFactory)?;
            losses.with(DistillationFactory)
        };
        let all: Result<Self, RegisterError> = all();
        all.expect("the names of built-in losses differ, and their options have a schema")
    }

    /// The same losses and another one.
    pub fn with(mut self, factory: impl LossFactory) -> Result<Self, RegisterError> {
        self.register(factory)?;
        Ok(self)
    }

    /// Adds a loss.
    pub fn register<T: LossFactory>(&mut self, factory: T) -> Result<(), RegisterError> {
        self.0.add((factory.name(), factory.summary()), section_of::<T::Options>, Arc::new(factory))
    }

    /// All names, the built-in ones first.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    /// Builds the loss that a config selects.
    pub fn build(&self, config: &LossConfig) -> Result<SelectedLoss, LossError> {
        let name = config.kind.name();
        let found = self.0.find(name)?;
        let LossConfig { label_smoothing, z_loss, .. } = *config;
        if config.kind == LossKind::CrossEntropy && (label_smoothing != 0.0 || z_loss != 0.0) {
            let loss = Box::new(RegularizedCrossEntropy { label_smoothing, z_loss });
            return Ok(SelectedLoss { kind: LossKind::CrossEntropy, loss });
        }
        let loss = caught(|| found.build(config.options.as_ref()))
            .map_err(|panic| LossError::Unusable { loss: name.to_owned(), problem: panic.to_string() })??;
        Ok(SelectedLoss { kind: config.kind.clone(), loss })
    }

    /// Options of a config that its loss rejects.
    pub(crate) fn problems(&self, config: &LossConfig) -> Vec<OptionProblem> {
        self.0.problems(config.kind.name(), |found| found.problems(config.options.as_ref()))
    }

    pub(crate) fn choices(&self) -> Vec<Choice> {
        self.0.choices()
    }

    pub(crate) fn options(&self, name: &str) -> Option<&Section> {
        self.0.options(name)
    }
}

/// The loss that a config selects. One that is not built in is checked.
pub struct SelectedLoss {
    kind: LossKind,
    loss: Box<dyn Loss>,
}

impl Default for SelectedLoss {
    /// The model's own.
    fn default() -> Self {
        Self { kind: LossKind::CrossEntropy, loss: Box::new(ModelLoss) }
    }
}

impl SelectedLoss {
    /// The name in the config.
    pub fn name(&self) -> &str {
        self.kind.name()
    }

    /// What it needs beside the result of the model.
    pub fn needs(&self) -> LossNeeds {
        caught(|| self.loss.needs()).unwrap_or_default()
    }

    /// What sums over a batch are divided by.
    pub fn divisor(&self, totals: &BatchTotals) -> f64 {
        caught(|| self.loss.divisor(totals)).unwrap_or(f64::NAN)
    }

    /// Fails if the loss cannot be computed for a model in this many pipeline stages.
    pub fn check_stages(&self, stages: usize) -> Result<(), LossError> {
        let LossNeeds { reference, teacher, .. } = self.needs();
        let needs = match (reference, teacher) {
            (Reference::Initial, _) => "the initial model",
            (Reference::None, Some(_)) => "a teacher",
            (Reference::None, None) => return Ok(()),
        };
        match stages {
            0 | 1 => Ok(()),
            _ => Err(LossError::Stages { loss: self.name().to_owned(), needs, stages }),
        }
    }

    /// Computes the loss: a scalar in `f32`.
    pub fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, LossError> {
        self.checked(|loss| loss.compute(args))
    }

    /// Computes the loss that evaluations report.
    pub fn evaluate(&self, args: &LossArgs<'_>) -> Result<DTensor, LossError> {
        self.checked(|loss| loss.evaluate(args))
    }

    fn checked(&self, compute: impl Fn(&dyn Loss) -> Result<DTensor, NnError>) -> Result<DTensor, LossError> {
        let LossKind::Registered(name) = &self.kind else { return Ok(compute(&*self.loss)?) };
        let unusable = |problem: String| LossError::Unusable { loss: name.clone(), problem };
        let computed = caught(|| compute(&*self.loss)).map_err(|panic| unusable(panic.to_string()))??;
        if computed.shape().ndim() != 0 || computed.dtype() != DType::F32 {
            let found = format!("{} {}", computed.dtype(), computed.shape());
            return Err(unusable(format!("it returned {found} instead of a scalar in f32")));
        }
        Ok(computed)
    }
}

#[derive(Debug)]
struct CrossEntropyFactory;

impl LossFactory for CrossEntropyFactory {
    type Options = NoOptions;

    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn summary(&self) -> &'static str {
        "Cross-entropy of the next token, or the loss of a model with its own."
    }

    fn build(&self, _: NoOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(ModelLoss))
    }
}
