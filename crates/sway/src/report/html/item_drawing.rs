//! SVG drawings of items: both values of each, or the changes in order.

use std::fmt::Write;

use super::chart::short;
use super::drawing::{Anchor, WIDTH, line, open, text};
use super::scale::Scale;
use crate::probe::ItemResult;

const LEFT: f64 = 72.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 230.0;
const HEIGHT: f64 = 272.0;

/// Both values of each item, joined by a line.
pub(super) struct BeforeAndAfter<'a> {
    pub id: &'a str,
    pub title: &'a str,
    /// The worst first.
    pub items: &'a [&'a ItemResult],
    pub unit: &'a str,
}

/// The change of each item as a bar.
pub(super) struct Waterfall<'a> {
    pub id: &'a str,
    pub title: &'a str,
    /// From the worst to the best, or the smallest to the largest.
    pub changes: &'a [f64],
    /// Their order in words.
    pub order: &'a str,
    pub unit: &'a str,
    /// The loss from which an item counts as lost.
    pub lost_from: Option<f64>,
}

/// The vertical axis, with numbers and grid lines.
fn axis(svg: &mut String, scale: &Scale, unit: &str) {
    for tick in scale.ticks() {
        let y = scale.at(tick);
        line(svg, "grid", [LEFT, y, RIGHT, y]);
        text(svg, LEFT - 8.0, y + 5.0, &Anchor::End, &short(tick));
    }
    line(svg, "axis", [LEFT, TOP, LEFT, BOTTOM]);
    text(svg, 8.0, 16.0, &Anchor::Start, unit);
}

/// The middle of one of several columns.
fn column(index: usize, count: usize) -> f64 {
    LEFT + (RIGHT - LEFT) * (index as f64 + 0.5) / count as f64
}

impl BeforeAndAfter<'_> {
    pub(super) fn svg(&self) -> String {
        let values = self.items.iter().flat_map(|item| [item.base, item.tuned]);
        let scale = Scale::new(values, BOTTOM, TOP).rounded();
        let count = self.items.len();
        let about = format!(
            "For each of {count} items, a ring for the base and a dot for the fine-tuned model, in {}.",
            self.unit
        );
        let mut svg = open(self.id, self.title, &about, HEIGHT);
        axis(&mut svg, &scale, self.unit);
        for (index, item) in self.items.iter().enumerate() {
            let (x, from, to) = (column(index, count), scale.at(item.base), scale.at(item.tuned));
            line(&mut svg, "change", [x, from, x, to]);
            // Writing to a string cannot fail.
            let _ = write!(svg, "<circle class=\"before\" cx=\"{x:.1}\" cy=\"{from:.1}\" r=\"4\"/>");
            let _ = write!(svg, "<circle class=\"after\" cx=\"{x:.1}\" cy=\"{to:.1}\" r=\"4\"/>");
        }
        text(&mut svg, RIGHT, 16.0, &Anchor::End, "○ base  ● fine-tuned");
        text(&mut svg, (LEFT + RIGHT) / 2.0, BOTTOM + 30.0, &Anchor::Middle, "items, the worst first");
        svg + "</svg>"
    }
}

impl Waterfall<'_> {
    pub(super) fn svg(&self) -> String {
        let limit = self.lost_from.map(|loss| -loss);
        let values = self.changes.iter().copied().chain([0.0]).chain(limit);
        let scale = Scale::new(values, BOTTOM, TOP).rounded();
        let count = self.changes.len();
        let is_lost = |change: f64| limit.is_some_and(|limit| change < limit);
        let lost = self.changes.iter().filter(|change| is_lost(**change)).count();
        let about = match limit {
            Some(_) => format!("The change of each of {count} items in {}, {lost} of them lost.", self.unit),
            None => format!("The change of each of {count} items in {}.", self.unit),
        };
        let mut svg = open(self.id, self.title, &about, HEIGHT);
        axis(&mut svg, &scale, &format!("change in {}", self.unit));
        let width = ((RIGHT - LEFT) / count as f64 * 0.8).min(18.0);
        let zero = scale.at(0.0);
        for (index, change) in self.changes.iter().enumerate() {
            let end = scale.at(*change);
            let class = if is_lost(*change) { "lost" } else { "kept" };
            let _ = write!(
                svg,
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\"/>",
                column(index, count) - width / 2.0,
                zero.min(end),
                (end - zero).abs().max(0.5)
            );
        }
        line(&mut svg, "axis", [LEFT, zero, RIGHT, zero]);
        if let Some(limit) = limit {
            let y = scale.at(limit);
            line(&mut svg, "mark", [LEFT, y, RIGHT, y]);
            // Lost items are on the left, so there is room on the right.
            text(&mut svg, RIGHT, y + 16.0, &Anchor::End, &format!("lost below {}", short(limit)));
        }
        text(&mut svg, (LEFT + RIGHT) / 2.0, BOTTOM + 30.0, &Anchor::Middle, self.order);
        svg + "</svg>"
    }
}
