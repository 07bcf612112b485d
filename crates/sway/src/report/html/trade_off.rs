//! The plot of learning against forgetting, as SVG or as a page.

use std::fmt::Write;

use minijinja::context;
use minijinja::value::Serde;
use serde::Serialize;

use super::chart::short;
use super::contents::cropped;
use super::drawing::{Anchor, WIDTH, line, numbers_below, open, text, width_of};
use super::scale::Scale;
use super::{STYLE, environment};
use crate::report::compare::{Comparison, Estimate, TradeOff};
use crate::report::format;

const LEFT: f64 = 66.0;
const RIGHT: f64 = WIDTH - 24.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 300.0;
const HEIGHT: f64 = 360.0;
/// The most characters of a label in the drawing.
const LABEL_CHARS: usize = 18;
/// Height of a label.
const LABEL_HEIGHT: f64 = 17.0;

/// Colours of a drawing without a page around it.
const COLOURS: &str = "svg { color-scheme: light dark; background: #ffffff; \
--ink: #1b1f24; --quiet: #55606e; --grid: #e3e7ec; --accent: #0b5cad; --warm: #a8480a; } \
@media (prefers-color-scheme: dark) { svg { background: #14171c; --ink: #e8ebf0; --quiet: #a3aebd; \
--grid: #2a313b; --accent: #74b3f5; --warm: #f0a468; } } \
text { fill: var(--ink); font: 13px system-ui, sans-serif; } \
.axis { stroke: var(--quiet); } .grid { stroke: var(--grid); } .dot { fill: var(--accent); } \
.curve { fill: none; stroke: var(--accent); stroke-width: 2.5; } .range { stroke: var(--quiet); }";

impl TradeOff {
    /// The plot as an SVG file with its own colours, light and dark.
    pub fn to_svg(&self) -> String {
        let svg = self.drawing();
        let svg = svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
        // After the title and the description, which come first.
        svg.replacen("</desc>", &format!("</desc><style>{COLOURS}</style>"), 1) + "\n"
    }

    fn about(&self) -> String {
        let points: Vec<String> = self
            .points
            .iter()
            .map(|point| {
                format!(
                    "{}: {} at {}",
                    cropped(&point.label, 80),
                    short(point.learning.mean),
                    short(point.forgetting.mean)
                )
            })
            .collect();
        format!("{} by {}, run after run. {}.", self.learning, self.forgetting, points.join("; "))
    }

    /// The drawing, whose colours a style sheet sets.
    fn drawing(&self) -> String {
        let ends = |estimate: &Estimate| {
            let [low, high] = estimate.ci_95.unwrap_or([estimate.mean; 2]);
            [low, estimate.mean, high]
        };
        let forgotten = self.points.iter().flat_map(|point| ends(&point.forgetting)).chain([0.0]);
        let learned = self.points.iter().flat_map(|point| ends(&point.learning)).chain([0.0]);
        let across = Scale::new(forgotten, LEFT, RIGHT).rounded();
        let upwards = Scale::new(learned, BOTTOM, TOP).rounded();
        let mut svg = open("trade-off", "Learning against forgetting", &self.about(), HEIGHT);
        for tick in upwards.ticks() {
            let y = upwards.at(tick);
            line(&mut svg, "grid", [LEFT, y, RIGHT, y]);
            text(&mut svg, LEFT - 8.0, y + 5.0, &Anchor::End, &short(tick));
        }
        for tick in across.ticks() {
            let x = across.at(tick);
            line(&mut svg, "grid", [x, TOP, x, BOTTOM]);
        }
        line(&mut svg, "axis", [LEFT, upwards.at(0.0), RIGHT, upwards.at(0.0)]);
        line(&mut svg, "axis", [across.at(0.0), TOP, across.at(0.0), BOTTOM]);
        let places: Vec<(f64, f64)> = self
            .points
            .iter()
            .map(|point| (across.at(point.forgetting.mean), upwards.at(point.learning.mean)))
            .collect();
        // The base has learned and forgotten nothing.
        let path: Vec<String> = [(across.at(0.0), upwards.at(0.0))]
            .iter()
            .chain(&places)
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        for (point, (x, y)) in self.points.iter().zip(&places) {
            if let Some([low, high]) = point.forgetting.ci_95 {
                line(&mut svg, "range", [across.at(low), *y, across.at(high), *y]);
            }
            if let Some([low, high]) = point.learning.ci_95 {
                line(&mut svg, "range", [*x, upwards.at(low), *x, upwards.at(high)]);
            }
        }
        let _ = write!(svg, "<polyline class=\"curve\" points=\"{}\"/>", path.join(" "));
        for (x, y) in &places {
            let _ = write!(svg, "<circle class=\"dot\" cx=\"{x:.2}\" cy=\"{y:.2}\" r=\"5\"/>");
        }
        self.labels(&mut svg, &places);
        numbers_below(&mut svg, &across, across.ticks().into_iter(), BOTTOM + 20.0);
        text(&mut svg, (LEFT + RIGHT) / 2.0, BOTTOM + 46.0, &Anchor::Middle, &cropped(&self.forgetting, 44));
        text(&mut svg, 8.0, 16.0, &Anchor::Start, &cropped(&self.learning, 44));
        svg + "</svg>"
    }

    /// Labels beside the points, where there is room; the table has all.
    fn labels(&self, svg: &mut String, places: &[(f64, f64)]) {
        let mut taken: Vec<[f64; 4]> =
            places.iter().map(|(x, y)| [x - 5.0, y - 5.0, x + 5.0, y + 5.0]).collect();
        for (point, (x, y)) in self.points.iter().zip(places) {
            let label = cropped(&point.label, LABEL_CHARS);
            let width = width_of(&label);
            // Curves rise, so there is most room below them, and to the left above.
            let spots = [
                (Anchor::Start, x + 9.0, y + 18.0),
                (Anchor::End, x - 9.0, y - 6.0),
                (Anchor::Start, x + 9.0, y - 6.0),
                (Anchor::End, x - 9.0, y + 18.0),
                (Anchor::Middle, *x, y + 28.0),
                (Anchor::Middle, *x, y - 14.0),
                (Anchor::Middle, *x, y + 48.0),
                (Anchor::Middle, *x, y - 34.0),
            ];
            for (anchor, at, baseline) in spots {
                let from = match anchor {
                    Anchor::End => at - width,
                    Anchor::Middle => at - width / 2.0,
                    Anchor::Start => at,
                };
                let area = [from, baseline - LABEL_HEIGHT + 4.0, from + width, baseline + 4.0];
                let inside = area[0] >= LEFT && area[2] <= WIDTH && area[1] >= 20.0 && area[3] <= BOTTOM;
                let free = taken.iter().all(|other| !overlap(&area, other));
                if inside && free {
                    text(svg, at, baseline, &anchor, &label);
                    taken.push(area);
                    break;
                }
            }
        }
    }
}

fn overlap(one: &[f64; 4], other: &[f64; 4]) -> bool {
    one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3]
}

/// The contents of the page of a comparison.
#[derive(Serialize)]
struct Page {
    labels: Vec<String>,
    headline: String,
    grade: &'static str,
    svg: String,
    axes: [String; 2],
    points: Vec<[String; 5]>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    lists: Vec<(&'static str, Vec<String>)>,
}

impl Comparison {
    /// The plot of learning against forgetting and the tables as one HTML page,
    /// without scripts; none if the runs have nothing to plot.
    pub fn to_html(&self) -> Option<String> {
        const OURS: &str = "the template is built in, and a test renders it";
        let trade_off = self.trade_off.as_ref()?;
        let point = |point: &super::super::compare::TradeOffPoint| {
            let interval = |estimate: &Estimate| format::interval(estimate.ci_95);
            [
                cropped(&point.label, 120),
                short(point.forgetting.mean),
                interval(&point.forgetting),
                short(point.learning.mean),
                interval(&point.learning),
            ]
        };
        let words = |texts: &[String]| texts.iter().map(|text| cropped(text, 1500)).collect::<Vec<_>>();
        let headline = match self.latest_regressions.len() {
            _ if !self.latest_errors.is_empty() => "A probe newly fails to run.".to_owned(),
            0 => "No proven regression.".to_owned(),
            1 => "1 proven regression.".to_owned(),
            many => format!("{many} proven regressions."),
        };
        let page = Page {
            labels: words(&self.labels),
            headline,
            grade: if self.is_worse() { "damaged" } else { "healthy" },
            svg: trade_off.drawing(),
            axes: [trade_off.forgetting.clone(), trade_off.learning.clone()],
            points: trade_off.points.iter().map(point).collect(),
            columns: words(&self.columns()),
            rows: self.rows().iter().map(|row| words(row)).collect(),
            lists: [("Changes", self.sentences()), ("Notes", self.notes.clone())]
                .into_iter()
                .filter(|(_, items)| !items.is_empty())
                .map(|(title, items)| (title, words(&items)))
                .collect(),
        };
        let environment = environment();
        let template = environment.get_template("comparison.html").expect(OURS);
        Some(template.render(context! { page => Serde(page), style => STYLE }).expect(OURS))
    }
}
