//! Items of a probe, before and after: drawn for a probe that fails, and as a
//! table for any.

use serde::Serialize;

use super::chart::{Figure, Row, short};
use super::contents::{Limits, cropped};
use super::item_drawing::{BeforeAndAfter, Waterfall};
use crate::probe::{Better, ExternalPerplexity, ItemResult, ItemResults, ProbeKind};
use crate::record::{ProbeVerdict, Record};
use crate::report::Report;

/// The most items of which both values are drawn; of more, only the changes.
const MOST_DUMBBELLS: usize = 40;

/// The items of a probe that does not fail.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ItemTable {
    pub summary: String,
    pub table: Figure,
}

/// A drawing for each probe that fails and has items.
pub(super) fn failing(report: &Report, limits: Limits) -> Vec<Figure> {
    let records = report.probes.iter().take(limits.probes).enumerate();
    records
        .filter(|(_, record)| fails(record))
        .filter_map(|(index, record)| figure(record, index, limits))
        .collect()
}

/// A table for each other probe with items.
pub(super) fn others(report: &Report, limits: Limits) -> Vec<ItemTable> {
    let records = report.probes.iter().take(limits.probes).enumerate();
    let table = |(index, record): (usize, &Record)| {
        let found = figure(record, index, limits)?;
        let summary = format!("{}: {}", cropped(&record.name, 80), count(found.rows.len()));
        Some(ItemTable { summary, table: Figure { svg: None, ..found } })
    };
    records.filter(|(_, record)| !fails(record)).filter_map(table).collect()
}

fn fails(record: &Record) -> bool {
    matches!(record.verdict, ProbeVerdict::Fail | ProbeVerdict::Warn)
}

fn count(items: usize) -> String {
    if items == 1 { "1 item".to_owned() } else { format!("{items} items") }
}

fn figure(record: &Record, index: usize, limits: Limits) -> Option<Figure> {
    let mut results = record.evidence.read::<ItemResults>().filter(|results| !results.items.is_empty())?;
    results.item_unit = cropped(&results.item_unit, 40);
    // The worst first.
    let mut items: Vec<&ItemResult> = results.items.iter().collect();
    items.sort_by(|one, other| results.gain(one).total_cmp(&results.gain(other)));
    let id = format!("items-{index}");
    let title = title(record, &results);
    let draws_both = items.len() <= MOST_DUMBBELLS.min(limits.marks) && results.better != Better::Neither;
    let svg = if draws_both {
        BeforeAndAfter { id: &id, title: &title, items: &items, unit: &results.item_unit }.svg()
    } else {
        // Of very many items, every second or third shows the same shape.
        let every = items.len().div_ceil(2 * limits.marks);
        let changes: Vec<f64> = items.iter().step_by(every).map(|item| results.gain(item)).collect();
        Waterfall {
            id: &id,
            title: &title,
            changes: &changes,
            order: if results.better == Better::Neither {
                "items, the smallest change first"
            } else {
                "items, the worst first"
            },
            unit: &results.item_unit,
            lost_from: results.item_lost_from,
        }
        .svg()
    };
    let shown = items.len().min(limits.items);
    let title = if shown < items.len() {
        format!("{title} ({shown} of {} in the table)", items.len())
    } else {
        title
    };
    let is_perplexity = record.kind == ExternalPerplexity::ABOUT.kind;
    let mut columns: Vec<String> = ["Item", "Base", "Fine-tuned", "Change"].map(str::to_owned).to_vec();
    if is_perplexity {
        columns.extend(["Perplexity, base", "Perplexity, fine-tuned"].map(str::to_owned));
    }
    if results.item_lost_from.is_some() {
        columns.push("Lost".to_owned());
    }
    let row = |item: &&ItemResult| {
        let mut numbers = vec![short(item.base), short(item.tuned), signed(item.tuned - item.base)];
        if is_perplexity {
            numbers.extend([item.base, item.tuned].map(|logprob| short(rounded((-logprob).exp()))));
        }
        if results.item_lost_from.is_some() {
            numbers.push(if results.is_lost(item) { "lost" } else { "kept" }.to_owned());
        }
        Row { name: cropped(&item.item, limits.letters.min(200)), numbers, bar: None }
    };
    let rows = items.iter().take(shown).map(row).collect();
    Some(Figure { id, title, svg: Some(svg), columns, rows })
}

fn title(record: &Record, results: &ItemResults) -> String {
    let name = cropped(&record.name, 80);
    let (number, unit) = (results.items.len(), &results.item_unit);
    match results.item_lost_from {
        Some(loss) => {
            format!("{name}: {} of {} lost more than {} {unit}", results.lost(), count(number), short(loss))
        }
        None => {
            let worse = results.items.iter().filter(|item| results.gain(item) < 0.0).count();
            match results.better {
                Better::Neither => format!("{name}: change of {}, in {unit}", count(number)),
                _ => format!("{name}: {worse} of {} became worse, in {unit}", count(number)),
            }
        }
    }
}

fn signed(value: f64) -> String {
    let text = short(value);
    if value > 0.0 { format!("+{text}") } else { text }
}

/// A perplexity needs few digits.
fn rounded(value: f64) -> f64 {
    if value.is_finite() { (value * 100.0).round() / 100.0 } else { value }
}
