//! Which drawings a report has, from the evidence of its records.

use serde::Serialize;
use serde_json::Value;

use super::contents::{Group, Limits, cropped};
use super::drawing::{Bar, Curve, Spread};
use crate::record::Record;
use crate::report::{Report, format};

/// A drawing, and its numbers for those who cannot see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Chart {
    pub id: String,
    pub title: String,
    pub svg: String,
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// All drawings of a report.
pub(super) fn charts(report: &Report, limits: Limits, cut: &mut Vec<String>) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut add = |id, title, about, make: &dyn Fn(&Record, &str) -> Option<Chart>| {
        let mut charts = Vec::new();
        let mut more = 0;
        for record in report.probes.iter().take(limits.probes) {
            let name = format!("{id}-{}", charts.len());
            match make(record, &name) {
                Some(chart) if charts.len() < limits.charts => charts.push(chart),
                Some(_) => more += 1,
                None => {}
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
        "How far the model is from the base when the adapter counts for so much. A steady rise is healthy.",
        &|record, id| ablation(record, id, limits),
    );
    add(
        "sections",
        "Sections of the document",
        "How much better each section is known than the others. Bars to the right are sections that were learned.",
        &|record, id| sections(record, id, limits),
    );
    add(
        "layers",
        "Where the change is",
        "The share of the effect that each group of layers carries.",
        &|record, id| layers(record, id, limits),
    );
    add(
        "nulls",
        "Against noise",
        "Each dot is what noise in the place of the adapter gave. The line is what the adapter gave.",
        &|record, id| nulls(report, record, id, limits),
    );
    add(
        "context",
        "Staying power in long contexts",
        "How far the models are apart when so many tokens of filler stand before the prompt.",
        &|record, id| context(record, id, limits),
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
    points: Vec<(f64, f64)>,
    axes: [&str; 2],
    mark: Option<(f64, String)>,
) -> Chart {
    let title = format!("{}: {} by {}", cropped(&record.name, 80), axes[1], axes[0]);
    let rows = points.iter().map(|(x, y)| vec![short(*x), short(*y)]).collect();
    let drawing = Curve { id, title: &title, points: &points, axes, mark };
    Chart {
        id: id.to_owned(),
        svg: drawing.svg(),
        title: title.clone(),
        columns: axes.map(str::to_owned).to_vec(),
        rows,
    }
}

fn ablation(record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let points = pairs(record, "lambdas", "mean_divergence_per_lambda", limits)?;
    let mark = record.evidence.get("saturation_lambda").and_then(Value::as_f64);
    let mark = mark.map(|strength| (strength, format!("90 % at {}", short(strength))));
    Some(curve(record, id, points, ["strength", "divergence"], mark))
}

fn context(record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let points = pairs(record, "context_lengths", "mean_divergence_per_length", limits)?;
    Some(curve(record, id, points, ["tokens of filler", "divergence"], None))
}

fn bars(id: &str, title: String, columns: [&str; 2], bars: Vec<Bar>) -> Option<Chart> {
    if bars.is_empty() {
        return None;
    }
    let rows = bars.iter().map(|bar| vec![bar.label.clone(), short(bar.value)]).collect();
    let svg = super::drawing::bars(id, &title, &bars);
    Some(Chart { id: id.to_owned(), svg, title, columns: columns.map(str::to_owned).to_vec(), rows })
}

fn sections(record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let list = record.evidence.get("per_section")?.as_array()?;
    let all: Vec<Bar> = list
        .iter()
        .filter_map(|item| {
            let text = |key: &str| item.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
            let value = item.get("effective_sis").or_else(|| item.get("own_lift"))?.as_f64()?;
            let label = cropped(text("tag").or_else(|| text("section_id"))?, 60);
            Some(Bar { label, value })
        })
        .filter(|bar| bar.value.is_finite())
        .take(limits.marks)
        .collect();
    let shown =
        if all.len() < list.len() { format!(" ({} of {})", all.len(), list.len()) } else { String::new() };
    bars(
        id,
        format!("{}: sections{shown}", cropped(&record.name, 80)),
        ["section", "gain over the others"],
        all,
    )
}

fn layers(record: &Record, id: &str, limits: Limits) -> Option<Chart> {
    let list = record.evidence.get("layers")?.as_array()?;
    let all: Vec<Bar> = list
        .iter()
        .filter_map(|item| {
            let label = cropped(item.get("name")?.as_str()?, 60);
            Some(Bar { label, value: item.get("share")?.as_f64()? })
        })
        .filter(|bar| bar.value.is_finite())
        .take(limits.marks)
        .collect();
    bars(id, format!("{}: layers", cropped(&record.name, 80)), ["layers", "share of the effect"], all)
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
    let title =
        format!("{}: {} among {} of noise", cropped(&record.name, 80), short(observed), samples.len());
    let svg = Spread { id, title: &title, samples: &samples, observed }.svg();
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for sample in &samples {
        (least, most) = (least.min(*sample), most.max(*sample));
    }
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let beyond = samples.iter().filter(|sample| **sample >= observed).count();
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = vec![
        row("the adapter", short(observed)),
        row("noise, least", short(least)),
        row("noise, mean", short(mean)),
        row("noise, most", short(most)),
        row("noise at or above the adapter", format!("{beyond} of {}", samples.len())),
        row("z", format::z(record.z_score)),
    ];
    Some(Chart { id: id.to_owned(), title, svg, columns: vec!["what".to_owned(), "value".to_owned()], rows })
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
