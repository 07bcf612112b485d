//! The learning-rate schedules that configs may name.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weightloom_document::Section;
use weightloom_document::schema::Choice;

use super::decay::BuiltIn;
use super::{LearningRate, ScheduleConfig, ScheduleError, ScheduleKind};
use crate::extensions::{
    OptionProblem, RegisterError, Registry, caught, problems_of, read_options, section_of,
};

/// The learning rate after warmup. It depends only on the step, so that a resumed
/// run has the rates of an uninterrupted one.
pub trait LearningRateSchedule: fmt::Debug + Send + Sync {
    /// The fraction of the peak rate after `done` steps since the end of warmup:
    /// finite, and at least 0.
    fn ratio(&self, done: u64) -> f64;
}

/// A kind of schedule, which builds a [`LearningRateSchedule`] from its section of
/// a config. Implement it in your own crate and add it to [`Schedules`].
pub trait ScheduleFactory: fmt::Debug + Send + Sync + 'static {
    /// The keys under `train.schedule.options`;
    /// [`NoOptions`](crate::extensions::NoOptions) if there are none.
    type Options: DeserializeOwned + JsonSchema;

    /// The name in the config.
    fn name(&self) -> &'static str;

    /// What it is, in a sentence for the config reference.
    fn summary(&self) -> &'static str;

    /// Options with values that make no schedule, beyond their types.
    fn problems(&self, _options: &Self::Options) -> Vec<OptionProblem> {
        Vec::new()
    }

    /// Builds the schedule of a run of `total` steps, of which the first
    /// `config.warmup_steps` are warmup.
    fn build(
        &self,
        config: &ScheduleConfig,
        options: Self::Options,
        total: u64,
    ) -> Result<Box<dyn LearningRateSchedule>, ScheduleError>;
}

/// A [`ScheduleFactory`] whose options are JSON.
trait AnySchedule: Send + Sync {
    fn problems(&self, options: Option<&Map<String, Value>>) -> Vec<OptionProblem>;
    fn build(
        &self,
        config: &ScheduleConfig,
        total: u64,
    ) -> Result<Box<dyn LearningRateSchedule>, ScheduleError>;
}

impl<T: ScheduleFactory> AnySchedule for T {
    fn problems(&self, options: Option<&Map<String, Value>>) -> Vec<OptionProblem> {
        problems_of(options, |options| ScheduleFactory::problems(self, options))
    }

    fn build(
        &self,
        config: &ScheduleConfig,
        total: u64,
    ) -> Result<Box<dyn LearningRateSchedule>, ScheduleError> {
        let schedule = || self.name().to_owned();
        let options = read_options(config.options.as_ref())
            .map_err(|problem| ScheduleError::Options { schedule: schedule(), problem })?;
        ScheduleFactory::build(self, config, options, total)
    }
}

/// The schedules that configs may name, with those of your own crate.
#[derive(Clone, Debug)]
pub struct Schedules(Registry<dyn AnySchedule>);

impl Default for Schedules {
    fn default() -> Self {
        Self::standard()
    }
}

impl Schedules {
    /// The built-in schedules.
    pub fn standard() -> Self {
        const OURS: &str = "the names of built-in schedules differ, and they have no options";
        let all = [
            (ScheduleKind::Cosine, "cosine", "Decay along half a cosine wave."),
            (ScheduleKind::Linear, "linear", "Decay linearly."),
            (ScheduleKind::Wsd, "wsd", "Warmup, stable, decay: constant until the last `decay_steps`."),
            (ScheduleKind::Constant, "constant", "No decay."),
            (
                ScheduleKind::InverseSqrt,
                "inverse_sqrt",
                "Decay with the inverse square root of the step, without an end.",
            ),
            (ScheduleKind::Polynomial, "polynomial", "Decay with a `power` of the remaining share of steps."),
            (
                ScheduleKind::CosineWithRestarts,
                "cosine_with_restarts",
                "Decay along `cycles` half cosine waves, each from the peak.",
            ),
        ];
        let mut schedules = Self(Registry::new("schedule"));
        for (kind, name, summary) in all {
            schedules.register(BuiltIn { kind, name, summary }).expect(OURS);
        }
        schedules
    }

    /// The same schedules and another one.
    pub fn with(mut self, factory: impl ScheduleFactory) -> Result<Self, RegisterError> {
        self.register(factory)?;
        Ok(self)
    }

    /// Adds a schedule.
    pub fn register<T: ScheduleFactory>(&mut self, factory: T) -> Result<(), RegisterError> {
        self.0.add((factory.name(), factory.summary()), section_of::<T::Options>, Arc::new(factory))
    }

    /// All names, the built-in ones first.
    pub fn names(&self) -> Vec<&'static str> {
        self.0.names()
    }

    /// The learning rate of a run of `total` steps with this peak, as a config
    /// says.
    pub fn build(
        &self,
        peak: f64,
        config: &ScheduleConfig,
        total: u64,
    ) -> Result<LearningRate, ScheduleError> {
        if !(0.0..=1.0).contains(&config.min_lr_ratio) {
            return Err(ScheduleError::MinRatio { found: config.min_lr_ratio.to_string() });
        }
        check_numbers(config)?;
        let name = config.kind.name().to_owned();
        let found = self.0.find(&name)?;
        let built = caught(|| found.build(config, total)).map_err(|panic| ScheduleError::Unusable {
            schedule: name.clone(),
            problem: panic.to_string(),
        })??;
        Ok(LearningRate { peak, warmup: config.warmup_steps, name, schedule: built.into() })
    }

    /// Options of a config that its schedule rejects.
    pub(crate) fn problems(&self, config: &ScheduleConfig) -> Vec<OptionProblem> {
        self.0.problems(config.kind.name(), |found| found.problems(config.options.as_ref()))
    }

    pub(crate) fn choices(&self) -> Vec<Choice> {
        self.0.choices()
    }

    pub(crate) fn options(&self, name: &str) -> Option<&Section> {
        self.0.options(name)
    }
}

/// Checks the numbers of built-in schedules, also those that the selected one does not
/// use.
fn check_numbers(config: &ScheduleConfig) -> Result<(), ScheduleError> {
    let ScheduleConfig { power, cycles, timescale, .. } = *config;
    if !(power > 0.0 && power.is_finite()) {
        let found = power.to_string();
        return Err(ScheduleError::Number { key: "power", found, wanted: "a positive number" });
    }
    let counts = [("cycles", cycles), ("timescale", timescale.unwrap_or(1))];
    match counts.into_iter().find(|(_, count)| *count == 0) {
        Some((key, count)) => {
            Err(ScheduleError::Number { key, found: count.to_string(), wanted: "1 or more" })
        }
        None => Ok(()),
    }
}
