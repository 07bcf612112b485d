//! A forest plot of all probes: each effect with its interval, against its limit
//! or against noise.

use serde::Serialize;

use super::chart::short;
use super::contents::{Limits, cropped};
use crate::probe::{NullComparison, PassingSide, RawLimit};
use crate::record::{ProbeVerdict, Record};
use crate::report::{Report, format};

/// The place of the limit, in percent of the plot.
const MIDDLE: f64 = 50.0;
/// How far from the middle the furthest mark is.
const REACH: f64 = 46.0;

/// One probe of the forest plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ForestRow {
    pub name: String,
    pub axis: String,
    pub verdict: String,
    pub value: String,
    pub interval: Option<String>,
    pub limit: String,
    pub marks: Option<Marks>,
}

/// Places in percent. Every limit is in the middle, and what passes is right.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Marks {
    pub value: String,
    /// The start and the width of the interval.
    pub interval: Option<[String; 2]>,
    /// The place of no change, if it is not the limit.
    pub nothing: Option<String>,
}

/// What a number is compared with.
struct Reference {
    at: f64,
    passes: PassingSide,
    words: String,
}

/// A row for each probe with a number.
pub(super) fn forest(report: &Report, limits: Limits) -> Vec<ForestRow> {
    report.probes.iter().take(limits.probes).filter_map(row).collect()
}

fn row(record: &Record) -> Option<ForestRow> {
    let raw = record.raw.filter(|raw| raw.is_finite())?;
    let interval = record.ci_95.filter(|ends| ends.iter().all(|end| end.is_finite()));
    let reference = reference(record, raw);
    Some(ForestRow {
        name: cropped(&record.name, 80),
        axis: cropped(&record.about().axis, 80),
        verdict: record.verdict.to_string(),
        value: format::raw(Some(raw)),
        interval: interval.map(|ends| format::interval(Some(ends))),
        limit: reference.as_ref().map_or_else(|| format::NONE.to_owned(), |found| found.words.clone()),
        marks: reference.map(|found| marks(raw, interval, &found)),
    })
}

/// The furthest number of noise, or the limit of the probe.
fn reference(record: &Record, raw: f64) -> Option<Reference> {
    let noise = record.evidence.read::<NullComparison>().unwrap_or_default().null_samples;
    let mut noise: Vec<f64> = noise.into_iter().filter(|sample| sample.is_finite()).collect();
    noise.sort_by(f64::total_cmp);
    if let ([least, ..], [.., most]) = (&noise[..], &noise[..]) {
        // A change may be smaller than any that noise makes.
        let below = record.verdict == ProbeVerdict::Pass && raw < *least;
        let (at, passes) = if below { (*least, PassingSide::Below) } else { (*most, PassingSide::Above) };
        return Some(Reference {
            at,
            passes,
            words: format!("noise: {} to {}", short(*least), short(*most)),
        });
    }
    let limit = record.evidence.read::<RawLimit>().filter(|limit| limit.raw_limit.is_finite())?;
    let (at, passes) = (limit.raw_limit, limit.raw_passes);
    let side = match passes {
        PassingSide::Above => "above",
        PassingSide::Below => "below",
    };
    Some(Reference { at, passes, words: format!("{side} {}", short(at)) })
}

fn marks(raw: f64, interval: Option<[f64; 2]>, reference: &Reference) -> Marks {
    let distance = |value: f64| match reference.passes {
        PassingSide::Above => value - reference.at,
        PassingSide::Below => reference.at - value,
    };
    let furthest = interval
        .into_iter()
        .flatten()
        .chain([raw, 0.0])
        .map(|value| distance(value).abs())
        .fold(f64::MIN_POSITIVE, f64::max);
    let place = |value: f64| MIDDLE + REACH * distance(value) / furthest;
    let percent = |place: f64| format!("{place:.2}");
    Marks {
        value: percent(place(raw)),
        interval: interval.map(|ends| {
            let mut ends = ends.map(place);
            ends.sort_by(f64::total_cmp);
            [percent(ends[0]), percent(ends[1] - ends[0])]
        }),
        nothing: (reference.at != 0.0).then(|| percent(place(0.0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Evidence;
    use crate::report::tests::record;

    fn found(raw: f64, ends: [f64; 2], evidence: Evidence) -> ForestRow {
        let record = Record {
            raw: Some(raw),
            ci_95: Some(ends),
            evidence,
            ..record("a", "calibration_drift", ProbeVerdict::Fail, None)
        };
        row(&record).expect("it has a number")
    }

    fn number(text: &str) -> f64 {
        text.parse().expect("it is a number")
    }

    #[test]
    fn what_passes_is_right_of_the_middle() {
        let lost = |raw: f64| found(raw, [raw - 0.1, raw + 0.1], Evidence::of(&RawLimit::below(0.15)));
        let place = |raw: f64| number(&lost(raw).marks.expect("it has a limit").value);
        assert!(place(0.75) < MIDDLE && place(0.05) > MIDDLE);
        assert_eq!(lost(0.75).limit, "below 0.15");
        let marks = lost(0.75).marks.expect("it has a limit");
        let [from, width] = marks.interval.expect("it has an interval");
        assert!(
            number(&from) < number(&marks.value) && number(&from) + number(&width) > number(&marks.value)
        );
        // Nothing lost passes.
        assert!(number(&marks.nothing.expect("0 is not the limit")) > MIDDLE);
    }

    #[test]
    fn noise_comes_before_limits() {
        let evidence = Evidence::of(&RawLimit::above(0.02))
            .with(&NullComparison { null_samples: vec![0.3, 0.1, 0.2], ..NullComparison::default() });
        let row = found(0.2, [0.1, 0.3], evidence);
        assert_eq!(row.limit, "noise: 0.1 to 0.3");
        assert!(number(&row.marks.expect("it has noise").value) < MIDDLE);
        let none = found(0.2, [f64::NAN, 0.3], Evidence::default());
        assert_eq!((none.marks, none.interval, none.limit.as_str()), (None, None, "—"));
        let same = found(0.0, [0.0, 0.0], Evidence::of(&RawLimit::above(0.0)));
        assert_eq!(same.marks.expect("it has a limit").value, "50.00");
    }
}
