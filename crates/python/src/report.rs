//! Reports of judgements, in the formats of the command line.

use pyo3::prelude::*;
use serde_json::{Value, json};
use weightloom::sway::Report;
use weightloom::sway::probe::{NullComparison, RawLimit};
use weightloom::sway::report::compare::{Comparison, Margins, TradeOff};
use weightloom::sway::score::refusals;
use weightloom::sway::suite::Defaults;

use crate::errors::{Raise, wrong};
use crate::judge::user;

fn parsed(text: &str, name: &str) -> Result<Report, Raise> {
    Report::from_json(text, name).map_err(|error| user(&error))
}

/// A report in another format: `json`, `markdown`, `junit` or `html`. `name` is that of the
/// file in errors.
#[pyfunction]
pub(crate) fn report_text(py: Python<'_>, text: &str, name: &str, format: &str) -> PyResult<String> {
    py.detach(|| {
        let report = parsed(text, name)?;
        Ok(match format {
            "json" => report.to_json(),
            "markdown" => report.to_markdown(),
            "junit" => report.to_junit(),
            "html" => report.to_html(),
            other => {
                let hint = "use json, markdown, junit or html";
                return Err(wrong(format!("no format of reports is `{other}`"), hint));
            }
        })
    })
}

/// What follows from a report, as JSON: the verdict in words, and what each probe is about
/// and compared with.
#[pyfunction]
pub(crate) fn report_facts(py: Python<'_>, text: &str, name: &str) -> PyResult<String> {
    py.detach(|| {
        let report = parsed(text, name)?;
        let questions: Vec<Value> = report
            .verdict
            .questions()
            .into_iter()
            .map(|asked| {
                json!({"question": asked.question, "hoped": asked.hoped,
                       "decision": asked.conclusion.decision, "evidence": asked.conclusion.evidence})
            })
            .collect();
        let probes: Vec<Value> = report
            .probes
            .iter()
            .map(|record| {
                let about = record.about();
                let noise = record.evidence.read::<NullComparison>().unwrap_or_default().null_samples;
                let limit = record.evidence.read::<RawLimit>();
                json!({"title": about.title, "question": about.question, "axis": about.axis,
                       "category": about.category, "aspect": about.aspect, "noise": noise,
                       "limit": limit.map(|limit| limit.raw_limit),
                       "passes": limit.map(|limit| limit.raw_passes)})
            })
            .collect();
        let facts = json!({
            "headline": report.sentence(), "label": report.verdict.label(), "grade": report.verdict.grade(),
            "questions": questions, "probes": probes, "has_score": report.has_score(),
            "notes": report.all_notes(),
        });
        Ok(facts.to_string())
    })
}

/// Why a report does not pass a gate; empty if it passes.
#[pyfunction]
#[pyo3(signature = (text, name, threshold=None))]
pub(crate) fn report_refusals(text: &str, name: &str, threshold: Option<f64>) -> PyResult<Vec<String>> {
    let threshold = threshold.unwrap_or(Defaults::default().coverage_threshold);
    if !(0.0..=1.0).contains(&threshold) {
        return Err(wrong(
            format!("threshold {threshold} is outside the range of scores"),
            "give a score from 0 to 1",
        ));
    }
    let report = parsed(text, name)?;
    Ok(refusals(&report, threshold).iter().map(ToString::to_string).collect())
}

/// The comparison of reports, oldest first.
#[pyclass(frozen, get_all, module = "weightloom._weightloom")]
pub(crate) struct ReportComparison {
    json: String,
    markdown: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    sentences: Vec<String>,
    is_worse: bool,
    /// Learning against forgetting, if runs measured both: a drawing, and a page.
    svg: Option<String>,
    html: Option<String>,
}

/// Compares reports with their labels. `margin` is the largest loss that passes, in the unit
/// of each probe.
#[pyfunction]
#[pyo3(signature = (reports, margin=None))]
pub(crate) fn compare_reports(
    py: Python<'_>,
    reports: Vec<(String, String)>,
    margin: Option<f64>,
) -> PyResult<ReportComparison> {
    if let Some(margin) = margin.filter(|margin| !(margin.is_finite() && *margin >= 0.0)) {
        return Err(wrong(format!("{margin} is no margin"), "use a number of at least 0"));
    }
    py.detach(|| {
        let runs: Result<Vec<(String, Report)>, Raise> = reports
            .into_iter()
            .map(|(label, text)| {
                let report = parsed(&text, &label)?;
                Ok((label, report))
            })
            .collect();
        let comparison = Comparison::of(&runs?, margin.map_or_else(Margins::default, Margins::all));
        Ok(ReportComparison {
            json: comparison.to_json(),
            markdown: comparison.to_markdown(),
            columns: comparison.columns(),
            rows: comparison.rows(),
            sentences: comparison.sentences(),
            is_worse: comparison.is_worse(),
            svg: comparison.trade_off.as_ref().map(TradeOff::to_svg),
            html: comparison.to_html(),
        })
    })
}
