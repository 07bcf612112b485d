//! How large a loss may be before it counts as a regression.

use serde::{Deserialize, Serialize};

use crate::probe::ItemResults;

/// The unit of probes that are compared by their scores.
pub(super) const SCORE: &str = "score";

/// The largest loss that passes, by the unit of a probe's items.
///
/// Two training runs with different seeds are never equal, and enough items
/// prove any difference. The margin says which differences matter: the larger of
/// a fixed one and a share of what training changed, as the differences between
/// seeds grow with that.
///
/// ```
/// use weightloom_sway::report::compare::Margins;
///
/// assert_eq!(Margins::default().of("nats per token", 0.0), 0.1);
/// // After a change of 3 nats per token, seeds differ by more than that.
/// assert_eq!(Margins::default().of("nats per token", 3.0), 1.0);
/// assert_eq!(Margins::all(0.3).of("nats", 2.0), 0.3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Margins {
    /// In nats per token: log-likelihoods and losses.
    pub nats_per_token: f64,
    /// In nats: leads of one answer over another.
    pub nats: f64,
    /// For shares and similarities, which lie between 0 and 1.
    pub share: f64,
    /// For the score of a probe without items.
    pub score: f64,
    /// Share of the change against the base, that of the run that changed more.
    pub share_of_change: f64,
}

impl Default for Margins {
    fn default() -> Self {
        Self { nats_per_token: 0.1, nats: 0.5, share: 0.1, score: 0.05, share_of_change: 1.0 / 3.0 }
    }
}

impl Margins {
    /// The same margin in every unit, whatever training changed.
    pub fn all(margin: f64) -> Self {
        Self { nats_per_token: margin, nats: margin, share: margin, score: margin, share_of_change: 0.0 }
    }

    /// The margin in a unit, if training changed the items by `change` against
    /// the base.
    pub fn of(&self, unit: &str, change: f64) -> f64 {
        let fixed = match unit {
            ItemResults::NATS_PER_TOKEN => self.nats_per_token,
            ItemResults::NATS => self.nats,
            SCORE => self.score,
            _ => self.share,
        };
        fixed.max(self.share_of_change * change.abs())
    }
}
