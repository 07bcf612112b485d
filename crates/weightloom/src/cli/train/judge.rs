//! `train.eval.sway`: every checkpoint of a run, judged by a suite.

use std::path::Path;

use serde_json::{Value, json};
use weightloom::sway::suite::{SuiteOverrides, TunedSide};
use weightloom::sway::{JudgeOptions, PreparedSuite, Report, Suite, Verdict, judge};
use weightloom::train::TrainError;
use weightloom::train::callback::{Callback, Judgement, View};
use weightloom::train::config::Config;

use super::super::failure::Failure;
use super::super::hub::{ArgumentError, HubArgs};
use super::super::output::Output;
use super::super::sway::{build, failure, prepare};

/// What the suite is called in messages.
const NAME: &str = "train.eval.sway";

/// Judges checkpoints against what the run began with.
pub(super) struct Judge {
    suite: String,
    base: String,
    trained: Trained,
    hub: HubArgs,
    output: Output,
}

/// What a checkpoint of the run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trained {
    Adapter,
    Model,
}

impl Judge {
    /// The judge of a run, if it has a suite. What is wrong with the suite is
    /// told before anything is trained.
    pub(super) fn of(config: &Config, hub: &HubArgs, output: Output) -> Result<Option<Self>, Failure> {
        let Some(suite) = &config.train.eval.sway else { return Ok(None) };
        let Some(base) = config.model.weights_path.clone() else {
            let fact = format!("`{NAME}` is set, but the run begins with nothing to compare with");
            let fix = Some("set `model.weights_path`, or leave the suite out".to_owned());
            return Err(Failure::user(&ArgumentError { fact, fix }));
        };
        let mut suite = Value::Object(suite.clone());
        // Both are replaced: a run knows what it trains.
        suite["models"] = json!({"base": {"base": "base"}, "ft": {"base": "base", "adapter": "adapter"}});
        let trained = if config.model.lora.is_some() { Trained::Adapter } else { Trained::Model };
        let made = Self { suite: suite.to_string(), base, trained, hub: hub.clone(), output };
        made.prepared(Path::new("checkpoint"))?;
        Ok(Some(made))
    }

    fn prepared(&self, checkpoint: &Path) -> Result<PreparedSuite, Failure> {
        let place = checkpoint.display().to_string();
        let tuned = match self.trained {
            Trained::Adapter => TunedSide::Adapter(place),
            Trained::Model => TunedSide::Model(place),
        };
        let overrides =
            SuiteOverrides { base: Some(self.base.clone()), tuned: Some(tuned), ..SuiteOverrides::default() };
        let variable = |name: &str| std::env::var(name).ok();
        let suite = Suite::read_with(&self.suite, Path::new(NAME), &overrides, &variable)
            .map_err(|error| Failure::user(&error))?;
        prepare(suite, None)
    }

    fn report(&self, checkpoint: &Path) -> Result<Report, Failure> {
        let prepared = self.prepared(checkpoint)?;
        let mut backend = build(&prepared.suite, &self.hub, Output::Json)?;
        judge(&prepared, &mut *backend, &JudgeOptions::default(), &mut ()).map_err(failure)
    }

    fn say(&self, line: &str) {
        if self.output == Output::Text {
            // Whoever has seen enough is no reason to end a run.
            let _ = self.output.line(&line, |line| (*line).to_owned());
        }
    }
}

impl Callback for Judge {
    fn judges(&self) -> bool {
        true
    }

    /// A suite that fails is told; it is no reason to lose a run.
    fn judge(&mut self, view: &View<'_>, checkpoint: &Path) -> Result<Option<Judgement>, TrainError> {
        let report = match self.report(checkpoint) {
            Ok(report) => report,
            Err(failure) => {
                self.say(&format!("{} could not be judged: {failure}", checkpoint.display()));
                return Ok(None);
            }
        };
        let left = left(&report, view, checkpoint);
        let score = &report.score;
        self.say(&format!(
            "judged {}: score {:.2} ({}){left}",
            checkpoint.display(),
            score.overall,
            score.band
        ));
        Ok(Some(judgement(&report, checkpoint)))
    }
}

/// Leaves the report beside the run's checkpoints, and says where.
fn left(report: &Report, view: &View<'_>, checkpoint: &Path) -> String {
    let folder = Path::new(&view.config.train.checkpoint.output_dir).join("sway");
    let name = checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (json, html) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.html")));
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&json, report.to_json()))
        .and_then(|()| std::fs::write(&html, report.to_html()));
    match written {
        Ok(()) => format!(", {}", html.display()),
        Err(error) => format!(", but the report cannot be written: {error}"),
    }
}

fn judgement(report: &Report, checkpoint: &Path) -> Judgement {
    let mut judgement = Judgement::default();
    judgement.scalars.insert("sway/overall".to_owned(), report.score.overall);
    for (category, score) in &report.score.components {
        judgement.scalars.insert(format!("sway/{category}"), *score);
    }
    let number =
        |verdict: Verdict| report.probes.iter().filter(|record| record.verdict == verdict).count() as f64;
    judgement.scalars.insert("sway/failed".to_owned(), number(Verdict::Fail));
    judgement.scalars.insert("sway/errors".to_owned(), number(Verdict::Error));
    for record in &report.probes {
        if let Some(raw) = record.raw {
            judgement.scalars.insert(format!("sway/probe/{}", record.name), raw);
        }
    }
    judgement.texts.insert("sway/band".to_owned(), report.score.band.to_string());
    judgement.texts.insert("sway/checkpoint".to_owned(), checkpoint.display().to_string());
    judgement
}
