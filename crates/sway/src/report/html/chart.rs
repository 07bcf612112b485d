//! Which drawings a report has, from the evidence of its records.

use serde::Serialize;
use serde_json::Value;

use super::contents::{Group, Limits, cropped};
use super::drawing::{Curve, Spread};
use super::scale::Scale;
use crate::record::Record;
use crate::report::{Report, format};
use crate::statistics::Statistics;

/// A drawing, and its numbers for those who cannot see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Chart {
    pub id: String,
    pub title: String,
    /// A drawing that stands above its table. Bars have none: they stand in it.
    pub svg: Option<String>,
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub name: String,
    pub numbers: Vec<String>,
    pub bar: Option<Bar>,
}

impl Row {
    fn plain(name: impl Into<String>, number: String) -> Self {
        Self { name: name.into(), numbers: vec![number], bar: None }
    }
}

/// Where a bar begins and how long it is, in parts of 100 of its cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    pub from: String,
    pub width: String,
    pub zero: String,
    pub sign: Sign,
}

/// On which side of nothing a bar stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Sign {
    More,
    Less,
}

/// A value with a name.
#[derive(Clone, Debug, PartialEq)]
struct Amount {
    label: String,
    value: f64,
    /// Where it lies with 95 % confidence.
    interval: Option<[f64; 2]>,
}

/// All drawings of a report.
pub(super) fn charts(report: &Report, limits: Limits, cut: &mut Vec<String>) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut add = |id, title, about, make: &dyn Fn(&Record, &str) -> Vec<Option<Chart>>| {
        let mut charts = Vec::new();
        let mut more = 0;
        for record in report.probes.iter().take(limits.probes) {
            for chart in make(record, &format!("{id}-{}", charts.len())).into_iter().flatten() {
                if charts.len() < limits.charts {
                    charts.push(chart);
                } else {
                    more += 1;
                }
            }
        }
        if more > 0 {
            cut.push(format!("{more} more drawings of “{title}” are left out"));
        }
        if !charts.is_empty() {
            groups.push(Group { id, title, about, charts });
        }
    };
    add(
        "ablation",
        "Less and more of the change",
        "How far the model is from the base when only a part of the adapter is applied, or more than all of it. \
         A steady rise is healthy.",
        &|record, id| vec![ablation(record, id, limits)],
    );
    add(
        "sections",
        "Sections of the document",
        match report.statistics {
            Statistics::Paired => {
                "The part of each section's surprise that the tuning took away, less what it took from neutral text. \
                 Above 0, the section was learned."
            }
            Statistics::Reference => {
                "The part of each section's surprise that the tuning took away, less the mean of the other sections. \
                 Above 0, the section was learned better than the others."
            }
        },
        &|record, id| vec![sections(record, id, limits)],
    );
    add(
        "layers",
        "Where the change is",
        "The part of the effect that is gone when a group of layers is left as it was. Groups that do the same work \
         hide one another, so shares need not add up to 1.",
        &|record, id| {
            let all = ["layers", "parts"];
            all.map(|key| layers(record, key, &format!("{id}-{key}"), limits)).into()
        },
    );
    add(
        "nulls",
        "Against noise",
        "Each dot is what the probe measured with noise in the place of the adapter. The dashed line is what it \
         measured with the adapter.",
        &|record, id| vec![nulls(report, record, id, limits)],
    );
    add(
        "context",
        "Staying power in long contexts",
        "How far the models are apart when tokens that say nothing stand before the prompt.",
        &|record, id| vec![context(record, id, limits)],
    );
    groups
}

fn numbers(value: Option<&Value>, limits: Limits) -> Vec<f64> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    // Noise may be plentiful; each dot costs little, but not nothing.
    list.iter().filter_map(Value::as_f64).filter(|value| value.is_finite()).take(limits.marks * 8).collect()
}

fn pairs(record: &Record, x: &str, y: &str, limits: Limits) -> Option<Vec<(f64, f64)>> {
    let (xs, ys) = (numbers(record.evidence.get(x), limits), numbers(record.evidence.get(y), limits));
    let pairs: Vec<(f64, f64)> = xs.iter().copied().zip(ys.iter().copied()).take(limits.marks).collect();
    // Places of numbers that are none would not match.
    (xs.len() == ys.len() && pairs.len() > 1).then_some(pairs)
}

fn curve(
    record: &Record,
    id: &str,
    about: &str,
    points: &[(f64, f64)],
    axes: [&str; 2],
    mark: Option<(f64, String)>,
) -> Chart {
    let title = format!("{}: {about}", cropped(&record.name, 80));
    let rows = points.iter().map(|(x, y)| Row::plain(short(*x), short(*y))).collect();
    let svg = Curve { id, title: &title, points, axes, mark }.svg();
    Chart { id: id.to_owned(), svg: Some(svg), title, columns: axes.map(capitalised).to_vec(), rows }
}

const DIVERGENCE: &str = "mean divergence from the base (nats)";

fn ablation(record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let points = pairs(record, "lambdas", "mean_divergence_per_lambda", limits)?;
    let mark = record.evidence.get("saturation_lambda").and_then(Value::as_f64);
    let mark = mark.map(|strength| (strength, format!("90 % at {}", short(strength))));
    let axes = ["strength of the adapter (1 is as trained)", DIVERGENCE];
    Some(curve(record, id, "how the change grows", &points, axes, mark))
}

fn context(record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let points = pairs(record, "context_lengths", "mean_divergence_per_length", limits)?;
    let axes = ["tokens before the prompt", DIVERGENCE];
    Some(curve(record, id, "how the change lasts", &points, axes, None))
}

/// A table with bars: one for each amount.
fn bars(id: &str, title: String, columns: [&str; 2], amounts: &[Amount]) -> Option<Chart> {
    if amounts.is_empty() {
        return None;
    }
    let scale = Scale::new(amounts.iter().map(|one| one.value).chain([0.0]), 0.0, 100.0);
    let has_intervals = amounts.iter().any(|one| one.interval.is_some());
    let row = |one: &Amount| {
        let (zero, end) = (scale.at(0.0), scale.at(one.value));
        let mut numbers = vec![short(one.value)];
        numbers.extend(has_intervals.then(|| format::interval(one.interval)));
        let bar = Bar {
            from: format!("{:.2}", zero.min(end)),
            width: format!("{:.2}", (end - zero).abs()),
            zero: format!("{zero:.2}"),
            sign: if one.value < 0.0 { Sign::Less } else { Sign::More },
        };
        Row { name: one.label.clone(), numbers, bar: Some(bar) }
    };
    let mut heads = columns.map(capitalised).to_vec();
    heads.extend(has_intervals.then(|| "95 % interval".to_owned()));
    heads.push(format!("{} to {}", short(scale.low), short(scale.high)));
    let rows = amounts.iter().map(row).collect();
    Some(Chart { id: id.to_owned(), svg: None, title, columns: heads, rows })
}

/// The amounts in a list, and how many of it they are if not all.
fn amounts(
    list: &[Value],
    limits: Limits,
    label: impl Fn(&Value) -> Option<&str>,
    value: impl Fn(&Value) -> Option<f64>,
) -> (Vec<Amount>, String) {
    let ends = |item: &Value| -> Option<[f64; 2]> {
        let ends = item.get("ci_95")?.as_array()?;
        Some([ends.first()?.as_f64()?, ends.get(1)?.as_f64()?])
    };
    let all: Vec<Amount> = list
        .iter()
        .filter_map(|item| {
            Some(Amount { label: cropped(label(item)?, 60), value: value(item)?, interval: ends(item) })
        })
        .filter(|one| one.value.is_finite())
        .take(limits.marks)
        .collect();
    let told =
        if all.len() < list.len() { format!(" ({} of {})", all.len(), list.len()) } else { String::new() };
    (all, told)
}

fn sections(record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let list = record.evidence.get("per_section")?.as_array()?;
    fn text<'a>(item: &'a Value, key: &str) -> Option<&'a str> {
        item.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty())
    }
    let (all, told) = amounts(
        list,
        limits,
        |item| text(item, "tag").or_else(|| text(item, "section_id")),
        |item| item.get("effective_sis").or_else(|| item.get("own_lift"))?.as_f64(),
    );
    let title = format!("{}: what each section gained{told}", cropped(&record.name, 80));
    bars(id, title, ["section", "gain"], &all)
}

fn layers(record: &Record, key: &str, id: &str, limits: Limits) -> Option<Chart> {
    let list = record.evidence.get(key)?.as_array()?;
    let (all, told) = amounts(
        list,
        limits,
        |item| item.get("name").and_then(Value::as_str),
        |item| item.get("share").and_then(Value::as_f64),
    );
    let (what, column) = match key {
        "parts" => ("attention and feed-forward", "part"),
        _ => ("layers from first to last", "layers"),
    };
    bars(id, format!("{}: {what}{told}", cropped(&record.name, 80)), [column, "share"], &all)
}

fn nulls(report: &Report, record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let observed = record.raw.filter(|raw| raw.is_finite())?;
    let mut samples = numbers(record.evidence.get("null_samples"), limits);
    if samples.is_empty() {
        // In reference mode noise is drawn once for each kind, by another entry.
        let drawn = |other: &Record| {
            let by_kind = other.evidence.get("per_kind_raw_samples")?;
            Some(numbers(by_kind.get(&record.kind), limits))
        };
        samples = report.probes.iter().filter_map(drawn).next()?;
    }
    if samples.is_empty() {
        return None;
    }
    let name = cropped(&record.name, 80);
    let title = format!("{name}: the adapter beside {} draws of noise", samples.len());
    let svg = Spread { id, title: &title, samples: &samples, observed, axis: measured(&record.kind) }.svg();
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for sample in &samples {
        (least, most) = (least.min(*sample), most.max(*sample));
    }
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let beyond = samples.iter().filter(|sample| **sample >= observed).count();
    let rows = vec![
        Row::plain("Adapter", short(observed)),
        Row::plain("Noise, least", short(least)),
        Row::plain("Noise, mean", short(mean)),
        Row::plain("Noise, most", short(most)),
        Row::plain("Noise at or above the adapter", format!("{beyond} of {}", samples.len())),
        Row::plain("Adapter against noise, in deviations", format::z(record.z_score)),
    ];
    let columns = vec!["What".to_owned(), capitalised(measured(&record.kind))];
    Some(Chart { id: id.to_owned(), title, svg: Some(svg), columns, rows })
}

/// What the number of a kind of probe is, with its unit.
fn measured(kind: &str) -> &'static str {
    match kind {
        "delta_kl" => DIVERGENCE,
        "cluster_kl" => "part of the variance between subjects",
        "section_internalization" => "mean gain of the sections",
        "paraphrase_invariance" => "gain of the wanted answers (nats per token)",
        "preference_flip" => "gain of the better answers",
        "style_fingerprint" => "part of the way to the document's style",
        "calibration_drift" => "part of the facts that were lost",
        "leakage" => "part of the document that is recited",
        "external_perplexity" => "change of other texts (nats per token)",
        "adapter_revert" => "part of the answers that fell back",
        "prompt_collapse" => "half-life of the change (tokens)",
        "adapter_ablation" => "straightness of the curve",
        _ => "value",
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).collect()
}

/// A number in few letters.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if value == 0.0 => "0".to_owned(),
        _ if !(1e-4..1e6).contains(&size) => format!("{value:.2e}"),
        _ if size >= 100.0 => format::grouped(value, usize::from(size < 1000.0 && value.fract() != 0.0)),
        _ => {
            let text = format!("{value:.4}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}
