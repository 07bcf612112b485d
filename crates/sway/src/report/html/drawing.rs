//! Drawings as SVG: a curve, bars, dots on a line. Colours come from the page,
//! so that they follow its light or dark.

use std::fmt::Write;

use super::chart::short;
use super::contents::cropped;
use crate::report::junit::escaped;

const WIDTH: f64 = 640.0;

/// A curve through points.
pub(super) struct Curve<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub points: &'a [(f64, f64)],
    /// What runs to the right, and what runs up.
    pub axes: [&'a str; 2],
    /// A place on the first axis that has a name.
    pub mark: Option<(f64, String)>,
}

/// A value with a name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar {
    pub label: String,
    pub value: f64,
}

/// Dots on a line, and one value that is marked.
pub(super) struct Spread<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub samples: &'a [f64],
    pub observed: f64,
}

/// From values to places.
#[derive(Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        // One value stands in the middle.
        if high - low <= 0.0 || !(high - low).is_finite() {
            let half = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = (low - half, high + half);
        }
        Self { low, high, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }
}

fn open(id: &str, title: &str, about: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-title {id}-about\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-about\">{}</desc>",
        escaped(title),
        escaped(about)
    )
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    // Writing into a text cannot fail.
    let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(words));
}

fn line(svg: &mut String, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
    let _ =
        write!(svg, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

impl Curve<'_> {
    pub(super) fn svg(&self) -> String {
        let (left, right, top, bottom) = (70.0, WIDTH - 20.0, 20.0, 220.0);
        let marked = self.mark.iter().map(|(x, _)| *x);
        let across = Scale::new(self.points.iter().map(|(x, _)| *x).chain(marked), left, right);
        // Nothing is where the curve should begin to rise.
        let upwards = Scale::new(self.points.iter().map(|(_, y)| *y).chain([0.0]), bottom, top);
        let about: Vec<String> =
            self.points.iter().map(|(x, y)| format!("{} at {}", short(*y), short(*x))).collect();
        let about = format!("{} by {}: {}.", self.axes[1], self.axes[0], about.join(", "));
        let mut svg = open(self.id, self.title, &about, 270.0);
        line(&mut svg, "axis", [left, bottom, right, bottom]);
        line(&mut svg, "axis", [left, top, left, bottom]);
        for part in 0..=4 {
            let value = upwards.low + (upwards.high - upwards.low) * f64::from(part) / 4.0;
            let y = upwards.at(value);
            line(&mut svg, "grid", [left, y, right, y]);
            text(&mut svg, left - 8.0, y + 4.0, "end", &short(value));
        }
        if let Some((place, name)) = &self.mark {
            let x = across.at(*place);
            line(&mut svg, "mark", [x, top, x, bottom]);
            let anchor = if x > WIDTH / 2.0 { "end" } else { "start" };
            // Curves rise, so there is room at the foot on the right.
            let (side, y) = if x > WIDTH / 2.0 { (-6.0, bottom - 8.0) } else { (6.0, top + 12.0) };
            text(&mut svg, x + side, y, anchor, name);
        }
        let places: Vec<String> =
            self.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across.at(*x), upwards.at(*y))).collect();
        let _ = write!(svg, "<polyline class=\"curve\" points=\"{}\"/>", places.join(" "));
        // Names below the axis must not lie over each other.
        let mut free = f64::NEG_INFINITY;
        for (x, y) in self.points {
            let (place, height) = (across.at(*x), upwards.at(*y));
            let _ = write!(svg, "<circle class=\"dot\" cx=\"{place:.1}\" cy=\"{height:.1}\" r=\"4\"/>");
            if place >= free {
                text(&mut svg, place, bottom + 18.0, "middle", &short(*x));
                free = place + 48.0;
            }
        }
        text(&mut svg, (left + right) / 2.0, bottom + 40.0, "middle", self.axes[0]);
        text(&mut svg, left, top - 6.0, "start", self.axes[1]);
        svg + "</svg>"
    }
}

/// Bars to the right of nothing, or to the left of it.
pub(super) fn bars(id: &str, title: &str, bars: &[Bar]) -> String {
    const ROW: f64 = 26.0;
    let (left, right) = (220.0, WIDTH - 80.0);
    let height = ROW * bars.len() as f64 + 16.0;
    let has_less = bars.iter().any(|bar| bar.value < 0.0);
    // What is less than nothing needs room for its number.
    let scale = Scale::new(
        bars.iter().map(|bar| bar.value).chain([0.0]),
        if has_less { left + 60.0 } else { left },
        right,
    );
    let about: Vec<String> = bars.iter().map(|bar| format!("{}: {}", bar.label, short(bar.value))).collect();
    let mut svg = open(id, title, &format!("{}.", about.join(", ")), height);
    let zero = scale.at(0.0);
    for (index, bar) in bars.iter().enumerate() {
        let top = 8.0 + ROW * index as f64;
        let end = scale.at(bar.value);
        let (from, width) = if end < zero { (end, zero - end) } else { (zero, end - zero) };
        let class = if bar.value < 0.0 { "bar less" } else { "bar" };
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
            top + 4.0,
            width.max(1.0),
            ROW - 8.0
        );
        text(&mut svg, left - 8.0, top + 17.0, "end", &cropped(&bar.label, 30));
        let (place, anchor) = if bar.value < 0.0 { (end - 6.0, "end") } else { (end + 6.0, "start") };
        text(&mut svg, place, top + 17.0, anchor, &short(bar.value));
    }
    line(&mut svg, "axis", [zero, 4.0, zero, height - 4.0]);
    svg + "</svg>"
}

impl Spread<'_> {
    pub(super) fn svg(&self) -> String {
        const BINS: usize = 60;
        let (left, right, ground) = (40.0, WIDTH - 40.0, 110.0);
        let scale = Scale::new(self.samples.iter().copied().chain([self.observed]), left, right);
        let mut heights = [0usize; BINS + 1];
        let bin_of = |sample: f64| {
            let share = (scale.at(sample) - left) / (right - left);
            ((share * BINS as f64).round() as usize).min(BINS)
        };
        for sample in self.samples {
            heights[bin_of(*sample)] += 1;
        }
        // The highest pile takes all the room there is.
        let most = heights.iter().copied().max().unwrap_or(1).max(1);
        let step = (76.0 / most as f64).min(9.0);
        let about = format!(
            "{} values of noise as dots, and a line at {}, the adapter's value.",
            self.samples.len(),
            short(self.observed)
        );
        let mut svg = open(self.id, self.title, &about, 150.0);
        line(&mut svg, "axis", [left, ground, right, ground]);
        for (bin, height) in heights.iter().enumerate().filter(|(_, height)| **height > 0) {
            let x = left + (right - left) * bin as f64 / BINS as f64;
            // A pile that is too high for dots is a post.
            if step < 4.0 {
                let tall = step * *height as f64;
                let _ = write!(
                    svg,
                    "<rect class=\"noise\" x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"{tall:.1}\"/>",
                    x - 3.5,
                    ground - tall
                );
            } else {
                for index in 0..*height {
                    let y = ground - step * (index as f64 + 0.5);
                    let _ = write!(svg, "<circle class=\"noise\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>");
                }
            }
        }
        let x = scale.at(self.observed);
        line(&mut svg, "mark", [x, 14.0, x, ground]);
        let (place, anchor) = if x > WIDTH / 2.0 { (x - 6.0, "end") } else { (x + 6.0, "start") };
        text(&mut svg, place, 22.0, anchor, &format!("adapter {}", short(self.observed)));
        text(&mut svg, left, ground + 20.0, "start", &short(scale.low));
        text(&mut svg, right, ground + 20.0, "end", &short(scale.high));
        svg + "</svg>"
    }
}
