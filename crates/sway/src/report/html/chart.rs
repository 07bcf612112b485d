//! The charts of a report.

use std::collections::BTreeMap;

use serde::Serialize;

use super::contents::{Group, Limits, cropped};
use super::drawing::{Curve, Spread};
use super::scale::Scale;
use crate::attribution::{LayerShare, LayerShares};
use crate::probe::{
    Chart, ChartBar, NullAdapter, NullAdapterEvidence, NullComparison, ProbeKind, Shape, built_in, kinds,
};
use crate::record::Record;
use crate::report::{Report, format};

/// A chart, with its numbers as a table for readers who cannot see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Figure {
    pub id: String,
    pub title: String,
    /// A drawing above the table. Bars are drawn inside the table.
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
    pub(super) fn plain(name: impl Into<String>, number: String) -> Self {
        Self { name: name.into(), numbers: vec![number], bar: None }
    }
}

/// The start and the length of a bar, in percent of its cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bar {
    pub from: String,
    pub width: String,
    pub zero: String,
    pub sign: Sign,
}

/// The side of zero that a bar is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Sign {
    More,
    Less,
}

/// Collects groups of figures within the limits of the page.
struct Collector<'a> {
    limits: Limits,
    groups: Vec<Group>,
    cut: &'a mut Vec<String>,
}

impl Collector<'_> {
    fn add(&mut self, id: &str, title: &str, about: &str, figures: Vec<Figure>) {
        let more = figures.len().saturating_sub(self.limits.charts);
        if more > 0 {
            self.cut.push(format!("{more} more charts of “{title}” are omitted"));
        }
        let charts: Vec<Figure> = figures.into_iter().take(self.limits.charts).collect();
        if !charts.is_empty() {
            let [id, title, about] = [id, title, about].map(str::to_owned);
            self.groups.push(Group { id, title, about, charts });
        }
    }
}

/// All charts of a report: those of each built-in kind, those of other kinds in
/// the order of the suite, the shares of layers, and the comparison with noise.
pub(super) fn charts(report: &Report, limits: Limits, cut: &mut Vec<String>) -> Vec<Group> {
    let mut collector = Collector { limits, groups: Vec::new(), cut };
    let shown = || report.probes.iter().take(limits.probes);
    let mut groups: Vec<(&str, String)> =
        kinds().iter().map(|kind| (kind.name(), kind.name().to_owned())).collect();
    for record in shown().filter(|record| built_in(&record.kind).is_none()) {
        if groups.iter().all(|(kind, _)| *kind != record.kind) {
            // The name of a kind in a report file may be any text, so it cannot be an id.
            let id = format!("own-{}", groups.len() - kinds().len());
            groups.push((&record.kind, id));
        }
    }
    for (kind, id) in groups {
        let (mut title, mut about) = (String::new(), String::new());
        let mut figures = Vec::new();
        for record in shown().filter(|record| record.kind == kind) {
            let Some(chart) = record.chart(report.statistics) else { continue };
            title = cropped(&record.about().title, 80);
            about = cropped(&chart.about, limits.letters);
            figures.extend(figure(format!("{id}-{}", figures.len()), record, chart.into_owned(), limits));
        }
        collector.add(&id, &title, &about, figures);
    }
    let layers = shown().enumerate().flat_map(|(index, record)| layers(record, index, limits));
    collector.add(
        "layers",
        "Layers of the change",
        "Share of the effect that is lost when a group of layers is left as in the base. Groups that do the \
         same work hide one another, so shares need not add up to 1.",
        layers.collect(),
    );
    // Under the reference statistics one entry draws noise for every kind.
    let drawn = report
        .probes
        .iter()
        .filter(|record| record.kind == NullAdapter::ABOUT.kind)
        .find_map(|record| record.evidence.read::<NullAdapterEvidence>())
        .map(|found| found.per_kind_raw_samples)
        .unwrap_or_default();
    let nulls = shown().enumerate().filter_map(|(index, record)| nulls(record, &drawn, index, limits));
    collector.add(
        "nulls",
        "Comparison with noise",
        "Each dot is the number of the probe with noise in place of the adapter. The dashed line is the \
         number with the adapter.",
        nulls.collect(),
    );
    collector.groups
}

/// Draws the chart of a record.
fn figure(id: String, record: &Record, chart: Chart, limits: Limits) -> Option<Figure> {
    let title = format!("{}: {}", cropped(&record.name, 80), cropped(&chart.caption, 160));
    match chart.shape {
        Shape::Curve { mut points, axes, mark } => {
            points.truncate(limits.marks);
            let rows = points.iter().map(|(x, y)| Row::plain(short(*x), short(*y))).collect();
            let mark = mark.map(|(x, label)| (x, format!("{} at {}", cropped(&label, 40), short(x))));
            let axes = axes.map(|axis| cropped(&axis, 80));
            let labels = [axes[0].as_str(), axes[1].as_str()];
            let svg = Curve { id: &id, title: &title, points: &points, axes: labels, mark }.svg();
            let columns = labels.map(capitalised).to_vec();
            Some(Figure { svg: Some(svg), columns, id, title, rows })
        }
        Shape::Bars { columns, bars } => {
            let columns = columns.map(|column| cropped(&column, 80));
            bar_table(id, title, [&columns[0], &columns[1]], bars, limits)
        }
    }
}

/// A table with a bar in each row.
fn bar_table(
    id: String,
    mut title: String,
    columns: [&str; 2],
    mut bars: Vec<ChartBar>,
    limits: Limits,
) -> Option<Figure> {
    let all = bars.len();
    bars.retain(|bar| bar.value.is_finite());
    bars.truncate(limits.marks);
    if bars.is_empty() {
        return None;
    }
    if bars.len() < all {
        title = format!("{title} ({} of {all})", bars.len());
    }
    let scale = Scale::new(bars.iter().map(|bar| bar.value).chain([0.0]), 0.0, 100.0);
    let has_intervals = bars.iter().any(|bar| bar.interval.is_some());
    let decimals = decimals(&bars);
    let row = |one: &ChartBar| {
        let (zero, end) = (scale.at(0.0), scale.at(one.value));
        let mut numbers = vec![match decimals {
            Some(decimals) => format::grouped(one.value, decimals),
            None => short(one.value),
        }];
        numbers.extend(has_intervals.then(|| format::interval(one.interval)));
        let bar = Bar {
            from: format!("{:.2}", zero.min(end)),
            width: format!("{:.2}", (end - zero).abs()),
            zero: format!("{zero:.2}"),
            sign: if one.value < 0.0 { Sign::Less } else { Sign::More },
        };
        Row { name: cropped(&one.label, 60), numbers, bar: Some(bar) }
    };
    let mut heads = columns.map(capitalised).to_vec();
    heads.extend(has_intervals.then(|| "95 % interval".to_owned()));
    heads.push(format!("{} to {}", short(scale.low), short(scale.high)));
    Some(Figure { id, title, svg: None, columns: heads, rows: bars.iter().map(row).collect() })
}

/// Decimals that all numbers of a column share, unless they are very small or large.
fn decimals(bars: &[ChartBar]) -> Option<usize> {
    let largest = bars.iter().map(|bar| bar.value.abs()).fold(0.0, f64::max);
    match largest {
        _ if bars.iter().all(|bar| bar.value.fract() == 0.0) && largest > 1.0 => Some(0),
        _ if !(0.01..1e6).contains(&largest) => None,
        _ if largest >= 10.0 => Some(1),
        _ => Some(3),
    }
}

fn layers(record: &Record, index: usize, limits: Limits) -> Vec<Figure> {
    let shares = record.evidence.read::<LayerShares>().unwrap_or_default();
    let bar = |share: LayerShare| ChartBar { label: share.name, value: share.share, interval: share.ci_95 };
    [
        ("layers", "layers from first to last", shares.layers),
        ("part", "attention and feed-forward", shares.parts),
    ]
    .into_iter()
    .filter_map(|(column, caption, shares)| {
        let bars = shares.into_iter().filter(|share| !share.name.is_empty()).map(bar).collect();
        let title = format!("{}: {caption}", cropped(&record.name, 80));
        bar_table(format!("layers-{index}-{column}"), title, [column, "share"], bars, limits)
    })
    .collect()
}

fn nulls(
    record: &Record,
    drawn: &BTreeMap<String, Vec<f64>>,
    index: usize,
    limits: Limits,
) -> Option<Figure> {
    let observed = record.raw.filter(|raw| raw.is_finite())?;
    let mut samples = record.evidence.read::<NullComparison>().unwrap_or_default().null_samples;
    if samples.is_empty() {
        samples = drawn.get(&record.kind)?.clone();
    }
    samples.retain(|sample| sample.is_finite());
    samples.truncate(limits.marks * 8);
    if samples.is_empty() {
        return None;
    }
    let id = format!("nulls-{index}");
    let axis = record.about().axis.clone();
    let name = cropped(&record.name, 80);
    let title = format!("{name}: the adapter and {} draws of noise", samples.len());
    let svg = Spread { id: &id, title: &title, samples: &samples, observed, axis: &axis }.svg();
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for sample in &samples {
        (least, most) = (least.min(*sample), most.max(*sample));
    }
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    let beyond = samples.iter().filter(|sample| **sample >= observed).count();
    let rows = vec![
        Row::plain("Adapter", short(observed)),
        Row::plain("Noise, minimum", short(least)),
        Row::plain("Noise, mean", short(mean)),
        Row::plain("Noise, maximum", short(most)),
        Row::plain("Noise at or above the adapter", format!("{beyond} of {}", samples.len())),
        Row::plain("z-score of the adapter", format::z(record.z_score)),
    ];
    let columns = vec!["Statistic".to_owned(), capitalised(&axis)];
    Some(Figure { id, title, svg: Some(svg), columns, rows })
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase);
    first.into_iter().flatten().chain(letters).collect()
}

/// A number in few characters.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_column_have_as_many_decimals() {
        let bars = |values: &[f64]| -> Vec<ChartBar> {
            let bar = |&value: &f64| ChartBar { label: "a".to_owned(), value, interval: None };
            values.iter().map(bar).collect()
        };
        let numbers = |values: &[f64]| -> Vec<String> {
            let limits = Limits { probes: 9, charts: 9, marks: 9, items: 9, generations: 9, letters: 99 };
            let figure = bar_table("a".to_owned(), "a".to_owned(), ["a", "b"], bars(values), limits);
            figure.expect("it has bars").rows.into_iter().flat_map(|row| row.numbers).collect()
        };
        assert_eq!(numbers(&[0.21, -0.0263, 0.1046]), ["0.210", "-0.026", "0.105"]);
        assert_eq!(numbers(&[75.0, 91.54]), ["75.0", "91.5"]);
        assert_eq!(numbers(&[3.0, 12.0]), ["3", "12"]);
        assert_eq!(numbers(&[0.000_2, 0.000_1]), ["0.0002", "0.0001"]);
    }
}
