//! Controlled cases: adapters with a known effect on a trained transformer,
//! judged by all probes, and runs of one recipe compared with each other.
//!
//! Each case runs with fresh seeds: another document, another adapter.
//! `WEIGHTLOOM_VERDICT_RUNS` sets how often; the limits below are meant for 200,
//! which take a while, and a few runs show that nothing is broken.
//! `WEIGHTLOOM_VERDICT_BASE` names a folder that keeps the trained model, so that
//! several processes need not train it again.

mod comparison;
mod language;
mod lesson;
mod pupil;
mod suite;
mod tally;

use tally::{Tally, few, most, runs};

#[test]
fn an_adapter_of_zeros_is_not_claimed() {
    let tally = Tally::of("zeros", |pupil| {
        pupil.unlearn();
        pupil.rewrite(|name, _, old| if name.contains("lora_B") { vec![0.0; old.len()] } else { old });
    });
    assert_eq!(tally.claims, 0);
    tally.rarely_fails(&["recited", "neutral", "knowledge"]);
}

/// Noise of the size of a trained adapter.
#[test]
fn noise_is_rarely_claimed() {
    let tally = Tally::of("noise", |pupil| {
        pupil.study();
        pupil.rewrite(|_, generator, old| {
            let squares: f64 = old.iter().map(|number| f64::from(number * number)).sum();
            let size = (squares / old.len() as f64).sqrt();
            old.iter().map(|_| (size * generator.normal()) as f32).collect()
        });
    });
    assert!(tally.claims <= few(), "{} of {}", tally.claims, runs());
    tally.reads(&["no effect beyond noise"]);
    tally.never_reads("healthy");
}

#[test]
fn good_fine_tuning_is_found_and_passes() {
    let tally = Tally::of("study", |pupil| pupil.study_to_the_end());
    tally.taught();
    assert!(tally.claims >= most(), "{} of {}", tally.claims, runs());
    tally.rarely_fails(&["recited", "faded", "neutral", "knowledge"]);
    // Weak probes of a tiny model may fail; the answers are the same.
    tally.reads(&["healthy", "learned without damage, but a probe failed"]);
}

/// Memorized words are at the beginning of texts, so they may fade as well.
#[test]
fn reciting_fails() {
    let tally = Tally::of("recite", |pupil| pupil.recite());
    tally.fails("recited");
    tally.rarely_fails(&["neutral"]);
    tally.reads(&["memorized by heart", "memorized, and damaged"]);
    tally.never_reads("healthy");
}

#[test]
fn a_change_that_fades_fails() {
    let tally = Tally::of("fade", |pupil| pupil.study_at_the_beginning());
    tally.fails("faded");
    tally.rarely_fails(&["recited", "neutral"]);
}

#[test]
fn harm_to_neutral_text_fails() {
    let tally = Tally::of("harm", |pupil| pupil.unlearn());
    tally.fails("neutral");
    tally.rarely_fails(&["recited"]);
    tally.reads(&["damaged, and nothing learned"]);
    tally.never_reads("healthy");
}

#[test]
fn learning_at_the_cost_of_knowledge_is_damage() {
    let tally = Tally::of("learned and damaged", |pupil| pupil.study_and_unlearn());
    tally.taught();
    tally.fails("neutral");
    tally.reads(&["learned, and damaged"]);
    tally.never_reads("healthy");
}
