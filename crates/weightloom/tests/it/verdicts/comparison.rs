//! Runs of one recipe, compared with each other.

use weightloom::sway::Report;
use weightloom::sway::report::compare::{Comparison, Margins, Outcome as EffectOutcome};

use super::pupil::Pupil;
use super::tally::{Outcome, all_runs, few, most, runs};

/// Compares two adapters of one document.
fn compared(before: Pupil, after: Pupil) -> Comparison {
    let runs = [("before", before), ("after", after)]
        .map(|(name, pupil)| (name.to_owned(), Report { probes: pupil.measured().0, ..Report::default() }));
    Comparison::of(&runs, Margins::default())
}

fn labelled(comparison: Comparison) -> Outcome<Comparison> {
    let label = if comparison.is_worse() { "a regression" } else { "no regression" };
    let sentences = comparison.latest_regressions.iter().map(|one| one.sentence.as_str());
    Outcome { label, detail: sentences.collect::<Vec<_>>().join("; "), result: comparison }
}

/// Training is long enough that seeds end near each other.
#[test]
fn two_seeds_of_one_recipe_are_rarely_a_regression() {
    let compared = all_runs("seeds", |pupil| {
        let other = pupil.with_another_seed();
        pupil.study_to_the_end();
        other.study_to_the_end();
        labelled(compared(pupil, other))
    });
    let worse = compared.values().filter(|one| one.is_worse()).count() as u64;
    assert!(worse <= few(), "{worse} of {}", runs());
}

#[test]
fn an_over_trained_checkpoint_is_a_loss_with_its_interval() {
    let compared = all_runs("checkpoints", |pupil| {
        let early = pupil.study_too_long();
        labelled(compared(early, pupil))
    });
    let lost = |comparison: &&Comparison| {
        let neutral = comparison.latest().iter().find(|effect| effect.name == "neutral").unwrap();
        let [low, high] = neutral.ci_95.unwrap();
        let is_clear = low < high && high < -neutral.margin;
        assert!(neutral.outcome != EffectOutcome::Regression || is_clear, "{low} {high}");
        neutral.outcome == EffectOutcome::Regression
    };
    let found = compared.values().filter(lost).count() as u64;
    assert!(found >= most(), "{found} of {}", runs());
}
