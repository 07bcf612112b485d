//! The shape of a loss curve.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::numbers::{mean, population_variance};

/// The fewest logged steps whose shape is described.
const LEAST_STEPS: usize = 10;

/// Steps around a step that its change is compared with, on each side.
const WINDOW: usize = 5;

/// How many times the usual change a rise is a spike.
const SPIKE: f64 = 3.0;

/// The smallest rise that is a spike, as a share of the loss: below it the curve
/// is merely flat.
const LEAST_RISE: f64 = 0.05;

/// Last loss over first loss, above which hardly anything was learned.
const FLAT: f64 = 0.95;

/// The most spikes that are named.
const NAMED: usize = 5;

/// The longest line that is read.
const MAX_LINE: usize = 1 << 20;

/// The loss of one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossPoint {
    /// The step.
    pub step: u64,
    /// The training loss; not finite if the run diverged.
    pub loss: f64,
}

/// The training loss over a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LossCurve {
    /// The logged steps, in order.
    pub points: Vec<LossPoint>,
    /// 1 − variance of the changes / variance of the losses, at least 0; 1 is a
    /// smooth curve, 0 is noise.
    pub smoothness: f64,
    /// Mean of the last losses over the mean of the first.
    pub convergence: f64,
    /// Steps at which the loss rose far more than it usually changes, or was not
    /// finite.
    pub spikes: Vec<u64>,
}

/// The part of a line of `metrics.jsonl` that is read.
#[derive(Deserialize)]
struct Line {
    step: u64,
    /// `null` if it is not finite.
    #[serde(default, with = "serde_nullable")]
    loss: Loss,
}

/// The loss of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Loss {
    /// A line about something else, such as an evaluation.
    #[default]
    Absent,
    NotFinite,
    Finite(f64),
}

mod serde_nullable {
    use serde::{Deserialize, Deserializer};

    use super::Loss;

    /// A key that is there, with `null` for a number that JSON cannot express.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Loss, D::Error> {
        Ok(Option::<f64>::deserialize(from)?.map_or(Loss::NotFinite, Loss::Finite))
    }
}

impl LossCurve {
    /// Reads the losses up to a step. `None` without a file or with too few
    /// steps. Lines that are not metrics, such as a torn last one, are ignored.
    pub(super) fn read_file(file: &Path, last: u64) -> Option<Self> {
        let mut points: Vec<LossPoint> = Vec::new();
        for line in BufReader::new(std::fs::File::open(file).ok()?).split(b'\n') {
            let line = line.ok()?;
            if line.len() > MAX_LINE {
                continue;
            }
            let Ok(Line { step, loss }) = serde_json::from_slice(&line) else { continue };
            let loss = match loss {
                Loss::Absent => continue,
                Loss::NotFinite => f64::INFINITY,
                Loss::Finite(loss) => loss,
            };
            if step <= last {
                // The last value of a step counts.
                points.retain(|point| point.step < step);
                points.push(LossPoint { step, loss });
            }
        }
        Self::of(points)
    }

    /// The shape of a curve. `None` if it has too few points.
    pub fn of(points: Vec<LossPoint>) -> Option<Self> {
        if points.len() < LEAST_STEPS {
            return None;
        }
        let mut spikes: Vec<u64> =
            points.iter().filter(|point| !point.loss.is_finite()).map(|point| point.step).collect();
        let losses = filled(&points)?;
        let changes: Vec<f64> = losses.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (index, change) in changes.iter().enumerate() {
            let usual = usual_change(&changes, index);
            if *change > SPIKE * usual && *change > LEAST_RISE * losses[index].abs() {
                spikes.push(points[index + 1].step);
            }
        }
        spikes.sort_unstable();
        spikes.dedup();
        let (variance, of_changes) = (population_variance(&losses)?, population_variance(&changes)?);
        let smoothness = if variance > 0.0 { (1.0 - of_changes / variance).max(0.0) } else { 0.0 };
        // Single losses are noisy, above all with small batches.
        let some = (losses.len() / 10).max(1);
        let (first, end) = (mean(&losses[..some])?, mean(&losses[losses.len() - some..])?);
        let convergence = if first == 0.0 { 1.0 } else { end / first };
        Some(Self { points, smoothness, convergence, spikes })
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let (Some(first), Some(last)) = (self.points.first(), self.points.last()) else { return Vec::new() };
        let mut notes = vec![format!(
            "the loss went from {:.3} at step {} to {:.3} at step {}, smoothness {:.2}",
            first.loss, first.step, last.loss, last.step, self.smoothness
        )];
        if self.convergence > FLAT {
            notes.push(format!(
                "the loss hardly fell: its end is {:.0} % of its beginning",
                100.0 * self.convergence
            ));
        }
        if !self.spikes.is_empty() {
            let named: Vec<String> = self.spikes.iter().take(NAMED).map(ToString::to_string).collect();
            let more = if self.spikes.len() > NAMED { ", …" } else { "" };
            let count = self.spikes.len();
            let spikes = if count == 1 { "spike" } else { "spikes" };
            let steps = if count == 1 { "step" } else { "steps" };
            notes.push(format!("{count} loss {spikes}, at {steps} {}{more}", named.join(", ")));
        }
        notes
    }
}

/// The losses with the last finite one in place of those that are not finite.
fn filled(points: &[LossPoint]) -> Option<Vec<f64>> {
    let mut last = points.iter().map(|point| point.loss).find(|loss| loss.is_finite())?;
    Some(
        points
            .iter()
            .map(|point| {
                if point.loss.is_finite() {
                    last = point.loss;
                }
                last
            })
            .collect(),
    )
}

/// The median size of the changes around one, without it.
fn usual_change(changes: &[f64], index: usize) -> f64 {
    let around = index.saturating_sub(WINDOW)..(index + WINDOW + 1).min(changes.len());
    let mut sizes: Vec<f64> =
        around.filter(|other| *other != index).map(|other| changes[other].abs()).collect();
    sizes.sort_by(f64::total_cmp);
    match sizes.len() {
        0 => 0.0,
        count if count % 2 == 1 => sizes[count / 2],
        count => (sizes[count / 2 - 1] + sizes[count / 2]) / 2.0,
    }
}
