//! SVG drawings of curves and of dots on a line. Colours come from the style
//! sheet, so that they follow light and dark mode.
//!
//! A narrow window shrinks drawings, and the style sheet then enlarges their
//! text. The layout leaves room for text of [`FONT_SIZE`] everywhere.

use std::fmt::Write;

use super::chart::short;
use super::scale::Scale;
use crate::report::junit::escaped;

pub(super) const WIDTH: f64 = 480.0;
/// The font size in a narrow window, set by `style.css`.
const FONT_SIZE: f64 = 16.0;

/// A line through points.
pub(super) struct Curve<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub points: &'a [(f64, f64)],
    /// Labels of the horizontal and the vertical axis.
    pub axes: [&'a str; 2],
    /// A vertical line with a label.
    pub mark: Option<(f64, String)>,
}

/// Dots on a line, and one marked value.
pub(super) struct Spread<'a> {
    pub id: &'a str,
    pub title: &'a str,
    pub samples: &'a [f64],
    pub observed: f64,
    /// Label of the axis.
    pub axis: &'a str,
}

/// Alignment of a text.
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    /// The side of a mark with more room for its label.
    fn beside(x: f64) -> (Self, f64) {
        if x > WIDTH / 2.0 { (Self::End, x - 6.0) } else { (Self::Start, x + 6.0) }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

pub(super) fn open(id: &str, title: &str, about: &str, height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-title {id}-about\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-about\">{}</desc>",
        escaped(title),
        escaped(about)
    )
}

pub(super) fn text(svg: &mut String, x: f64, y: f64, anchor: &Anchor, words: &str) {
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{}\">{}</text>",
        anchor.name(),
        escaped(words)
    );
}

pub(super) fn line(svg: &mut String, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
    let _ =
        write!(svg, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

/// The approximate width of a text.
pub(super) fn width_of(words: &str) -> f64 {
    words.chars().count() as f64 * FONT_SIZE * 0.6
}

/// Numbers below an axis, as many as fit without overlap.
pub(super) fn numbers_below(svg: &mut String, scale: &Scale, values: impl Iterator<Item = f64>, y: f64) {
    let mut free = f64::NEG_INFINITY;
    for value in values {
        let (place, number) = (scale.at(value), short(value));
        let half = width_of(&number) / 2.0;
        if place - half >= free {
            text(svg, place, y, &Anchor::Middle, &number);
            free = place + half + 6.0;
        }
    }
}

impl Curve<'_> {
    pub(super) fn svg(&self) -> String {
        let (left, right, top, bottom) = (72.0, WIDTH - 34.0, 34.0, 210.0);
        let marked = self.mark.iter().map(|(x, _)| *x);
        let across = Scale::new(self.points.iter().map(|(x, _)| *x).chain(marked), left, right);
        // The vertical axis includes 0.
        let upwards = Scale::new(self.points.iter().map(|(_, y)| *y).chain([0.0]), bottom, top).rounded();
        let about: Vec<String> =
            self.points.iter().map(|(x, y)| format!("{} at {}", short(*y), short(*x))).collect();
        let about = format!("{} by {}: {}.", self.axes[1], self.axes[0], about.join(", "));
        let mut svg = open(self.id, self.title, &about, 270.0);
        for tick in upwards.ticks() {
            let y = upwards.at(tick);
            line(&mut svg, "grid", [left, y, right, y]);
            text(&mut svg, left - 8.0, y + 5.0, &Anchor::End, &short(tick));
        }
        line(&mut svg, "axis", [left, bottom, right, bottom]);
        line(&mut svg, "axis", [left, top, left, bottom]);
        let places: Vec<String> =
            self.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across.at(*x), upwards.at(*y))).collect();
        let _ = write!(svg, "<polyline class=\"curve\" points=\"{}\"/>", places.join(" "));
        for (x, y) in self.points {
            let _ = write!(
                svg,
                "<circle class=\"dot\" cx=\"{:.2}\" cy=\"{:.2}\" r=\"4\"/>",
                across.at(*x),
                upwards.at(*y)
            );
        }
        if let Some((place, name)) = &self.mark {
            let x = across.at(*place);
            line(&mut svg, "mark", [x, top, x, bottom]);
            // Curves rise, so there is room at the bottom right.
            let (anchor, place) = Anchor::beside(x);
            let y = if x > WIDTH / 2.0 { bottom - 8.0 } else { top + 14.0 };
            text(&mut svg, place, y, &anchor, name);
        }
        let mut below: Vec<f64> = self.points.iter().map(|(x, _)| *x).collect();
        below.sort_by(f64::total_cmp);
        numbers_below(&mut svg, &across, below.into_iter(), bottom + 20.0);
        text(&mut svg, (left + right) / 2.0, bottom + 46.0, &Anchor::Middle, self.axes[0]);
        text(&mut svg, 8.0, 16.0, &Anchor::Start, self.axes[1]);
        svg + "</svg>"
    }
}

impl Spread<'_> {
    pub(super) fn svg(&self) -> String {
        const BINS: usize = 45;
        let (left, right, ground) = (40.0, WIDTH - 40.0, 120.0);
        let scale = Scale::new(self.samples.iter().copied().chain([self.observed]), left, right).rounded();
        let mut heights = [0usize; BINS + 1];
        let bin_of = |sample: f64| {
            let share = (scale.at(sample) - left) / (right - left);
            ((share * BINS as f64).round() as usize).min(BINS)
        };
        for sample in self.samples {
            heights[bin_of(*sample)] += 1;
        }
        // The highest stack takes all the room.
        let most = heights.iter().copied().max().unwrap_or(1).max(1);
        let step = (84.0 / most as f64).min(9.0);
        let about = format!(
            "{} values of noise as dots, and a line at {}, the value of the adapter.",
            self.samples.len(),
            short(self.observed)
        );
        let mut svg = open(self.id, self.title, &about, 180.0);
        line(&mut svg, "axis", [left, ground, right, ground]);
        for (bin, height) in heights.iter().enumerate().filter(|(_, height)| **height > 0) {
            let x = left + (right - left) * bin as f64 / BINS as f64;
            // A stack that is too high for dots becomes a rectangle.
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
        line(&mut svg, "mark", [x, 8.0, x, ground]);
        let (anchor, place) = Anchor::beside(x);
        text(&mut svg, place, 20.0, &anchor, &format!("adapter {}", short(self.observed)));
        for tick in scale.ticks() {
            line(&mut svg, "axis", [scale.at(tick), ground, scale.at(tick), ground + 5.0]);
        }
        numbers_below(&mut svg, &scale, scale.ticks().into_iter(), ground + 22.0);
        text(&mut svg, WIDTH / 2.0, ground + 48.0, &Anchor::Middle, self.axis);
        svg + "</svg>"
    }
}
