//! Probes of a user: fields, both judgements, typed evidence, chart and table, and
//! what happens if they misbehave.

use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weightloom_errors::Hint as _;
use weightloom_sway::backend::dummy::Dummy;
use weightloom_sway::paired::{Claim, Draft, PairedSettings, mean_above};
use weightloom_sway::probe::{
    About, Better, Chart, ChartBar, Evidence, EvidenceTable, FieldProblem, Finding, ItemResult, ItemResults,
    ProbeContext, ProbeKind, Probes, RegisterProbeProblem, Shape, Stop, TableColumn, look_up_all,
};
use weightloom_sway::suite::{SuiteErrors, SuiteReader};
use weightloom_sway::{
    Aspect, Category, Decision, Extensions, JudgeOptions, PrepareError, PreparedSuite, ProbeVerdict, Record,
    Report, Statistics, judge,
};

/// Whether the fine-tuned model still expects texts that the base expects.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Recall {
    /// Texts that the base expects.
    texts: Vec<String>,
    /// The most nats that a text may lose.
    most_lost: f64,
}

impl Default for Recall {
    fn default() -> Self {
        Self { texts: vec!["Once upon a time".to_owned()], most_lost: 0.5 }
    }
}

/// Evidence of [`Recall`].
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct RecallEvidence {
    gains: Vec<f64>,
    labels: Vec<String>,
}

impl Recall {
    fn measure(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let gain = |text: &String| -> Result<f64, Stop> {
            let tuned = context.answers.rolling(&context.tuned, text)?.total;
            Ok(tuned - context.answers.rolling(&context.base, text)?.total)
        };
        let gains = look_up_all(self.texts.iter().map(gain))?;
        let raw = gains.iter().sum::<f64>() / gains.len() as f64;
        let items = self.texts.iter().zip(&gains).map(|(text, gain)| ItemResult::new(text, 0.0, *gain));
        let verdict = if raw >= -self.most_lost { ProbeVerdict::Pass } else { ProbeVerdict::Fail };
        Ok(Finding {
            score: Some(0.75),
            raw: Some(raw),
            evidence: Evidence::of(&RecallEvidence { gains: gains.clone(), labels: self.texts.clone() })
                .with(&ItemResults::new("nats", Better::Higher, items)),
            ..Finding::without_number(verdict, format!("texts gained {raw:.2} nats"))
        })
    }
}

impl ProbeKind for Recall {
    const ABOUT: About = About {
        kind: "recall",
        category: Category::Calibration,
        aspect: Aspect::Damage,
        title: "Recall of <known> texts",
        summary: "whether known texts stay likely",
        question: "Does the fine-tuned model still expect known texts?",
        measure: "Mean gain in log-likelihood.",
        axis: "gain (nats)",
    };

    fn problems(&self) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([(!self.texts.is_empty(), "texts", "needs at least one")])
    }

    fn on_noise(_: &ProbeContext<'_>) -> Option<Self> {
        Some(Self::default())
    }

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        self.measure(context)
    }

    fn draft(&self, context: &ProbeContext<'_>, _: &PairedSettings) -> Result<Draft, Stop> {
        let finding = self.measure(context)?;
        let gains = finding.evidence.read::<RecallEvidence>().map(|found| found.gains).unwrap_or_default();
        let claim = Claim::Limit(mean_above(&gains, -self.most_lost, "texts"));
        Ok(Draft { finding, claim })
    }

    fn chart(evidence: &Evidence, _: Statistics) -> Option<Chart> {
        let found: RecallEvidence = evidence.read()?;
        let bar =
            |(label, gain): (&String, &f64)| ChartBar { label: label.clone(), value: *gain, interval: None };
        Some(Chart {
            about: "What each text gained.".to_owned(),
            caption: "gain of each text".to_owned(),
            shape: Shape::Bars {
                columns: ["text".to_owned(), "gain".to_owned()],
                bars: found.labels.iter().zip(&found.gains).map(bar).collect(),
            },
        })
    }

    fn table(evidence: &Evidence) -> Option<EvidenceTable> {
        let found: RecallEvidence = evidence.read()?;
        let row = |(text, gain): (&String, &f64)| vec![text.clone(), format!("{gain:.1}")];
        Some(EvidenceTable {
            title: "Recalled texts of".to_owned(),
            columns: vec![TableColumn::text("Text"), TableColumn::number("Gain")],
            rows: found.labels.iter().zip(&found.gains).map(row).collect(),
        })
    }
}

/// A probe that misbehaves as its field says.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Rogue {
    /// What it does.
    does: Misdeed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Misdeed {
    /// Panics after it has asked a question.
    #[default]
    Panics,
    /// Returns a score above 1.
    Score,
    /// Returns items without their unit.
    Items,
    /// Returns evidence that is a list.
    List,
    /// Claims a comparison with fewer draws of noise than there are.
    Draws,
    /// Returns a number that is not finite.
    Nan,
    /// Panics when its chart is drawn.
    Chart,
    /// Panics over its prompts for layers.
    Layers,
}

impl ProbeKind for Rogue {
    const ABOUT: About = About {
        kind: "rogue",
        category: Category::Adherence,
        aspect: Aspect::Behavior,
        title: "Rogue",
        summary: "misbehaves",
        question: "What happens?",
        measure: "Nothing.",
        axis: "value",
    };

    fn judge(&self, context: &ProbeContext<'_>) -> Result<Finding, Stop> {
        let fine = Finding { raw: Some(1.0), ..Finding::without_number(ProbeVerdict::Pass, "fine") };
        Ok(match self.does {
            Misdeed::Panics => {
                let _ = context.answers.rolling(&context.base, "never answered");
                panic!("index out of bounds");
            }
            Misdeed::Score => Finding { score: Some(1.5), ..fine },
            Misdeed::Items => {
                let items = json!({"items": [{"item": "a", "base": 0, "tuned": 1}]});
                Finding { evidence: Evidence::of(&items), ..fine }
            }
            Misdeed::List => Finding { evidence: Evidence::of(&[1, 2]), ..fine },
            Misdeed::Nan => Finding { raw: Some(f64::NAN), ..fine },
            Misdeed::Draws | Misdeed::Layers => fine,
            Misdeed::Chart => Finding { evidence: Evidence::of(&json!({"panics": true})), ..fine },
        })
    }

    fn draft(&self, context: &ProbeContext<'_>, _: &PairedSettings) -> Result<Draft, Stop> {
        let finding = self.judge(context)?;
        Ok(match self.does {
            Misdeed::Draws => {
                let change = weightloom_sway::paired::Change {
                    observed: 1.0,
                    nulls: vec![0.0; 3],
                    tail: weightloom_sway::paired::Tail::Upper,
                    absent: ProbeVerdict::Fail,
                    fallback_p: None,
                    units: 1,
                    unit: "texts",
                    effect_unit: weightloom_sway::paired::EffectUnit::Plain,
                    decided: None,
                };
                Draft { finding, claim: Claim::Change(change) }
            }
            _ => Draft::settled(finding),
        })
    }

    fn chart(evidence: &Evidence, _: Statistics) -> Option<Chart> {
        assert!(!evidence.contains_key("panics"), "no pencil");
        None
    }

    fn attribution_prompts(&self) -> &[weightloom_sway::Prompt] {
        assert!(self.does != Misdeed::Layers, "no prompts");
        &[]
    }
}

const MODELS: &str = "models:\n  base: {base: tiny}\n  ft: {base: tiny, adapter: out}\n";

fn extensions() -> Extensions {
    let probes = Probes::standard().with::<Recall>().unwrap().with::<Rogue>().unwrap();
    Extensions { probes, ..Extensions::standard() }
}

fn read(suite: &str) -> Result<PreparedSuite, SuiteErrors> {
    let text = format!("{MODELS}{suite}");
    let suite = SuiteReader::new(&extensions(), &|_| None).read(&text, Path::new("sway.yaml"))?;
    PreparedSuite::new(suite, None).map_err(|error| match error {
        PrepareError::Suite(errors) => errors,
        other => panic!("{other}"),
    })
}

fn judged(suite: &str) -> Report {
    let prepared = read(suite).unwrap_or_else(|errors| panic!("{errors}"));
    judge(&prepared, &mut Dummy::default(), &JudgeOptions::default(), &mut ()).unwrap()
}

const RECALL: &str = "suite:
  - {name: own, kind: recall, texts: [Once upon a time, The sky is blue], most_lost: 0.25}
  - {name: change, kind: delta_kl, prompts: [Once]}
";

#[test]
fn a_suite_names_a_users_probe_and_every_report_shows_it() {
    let report = judged(RECALL);
    let record = &report.probes[0];
    assert_eq!(
        (record.kind.as_str(), record.raw, record.category()),
        ("recall", Some(1.5), Category::Calibration)
    );
    assert_eq!(record.evidence.read::<RecallEvidence>().unwrap().gains, [1.5, 1.5]);
    assert_eq!(report.probes[1].kind, "delta_kl");
    assert!(report.probes[1].raw.is_some());
    let markdown = report.to_markdown();
    assert!(markdown.contains("## Recalled texts of own"), "{markdown}");
    assert!(markdown.contains("| The sky is blue | 1.5 |"), "{markdown}");
    assert!(report.to_json().contains("\"recall\""));
    assert!(report.to_junit().contains("recall"));
    let page = report.to_html();
    assert!(page.contains("own: gain of each text") && page.contains("What each text gained."));
    assert!(page.contains("Recall of &lt;known&gt; texts") && !page.contains("Recall of <known>"));
}

#[test]
fn the_aspect_of_a_users_probe_decides_which_question_it_answers() {
    let kept = judged("defaults: {statistics: reference}\nsuite: [{name: own, kind: recall}]\n");
    assert_eq!(
        (kept.verdict.damaged.decision, kept.verdict.learned.decision),
        (Decision::No, Decision::NotTested)
    );
    // The texts gain 1.5 nats, so a negative limit of loss is a required gain.
    let lost =
        judged("defaults: {statistics: reference}\nsuite: [{name: own, kind: recall, most_lost: -9}]\n");
    assert_eq!(lost.verdict.damaged.decision, Decision::Yes);
    assert_eq!(lost.verdict.failed, ["own"]);
}

#[test]
fn noise_calibrates_a_users_probe() {
    let report = judged(
        "defaults: {statistics: reference}\nsuite:
  - {name: noise, kind: null_adapter, runs: 2}
  - {name: own, kind: recall}
",
    );
    assert_eq!(report.probes[0].evidence["calibrated_kinds"], json!(["recall"]));
}

#[test]
fn a_report_is_read_by_a_program_without_the_probe() {
    let written = judged(RECALL);
    let read = Report::from_json(&written.to_json(), "report.json").unwrap();
    let record = &read.probes[0];
    assert_eq!(record.about().title, "Recall of <known> texts");
    assert_eq!(record.evidence["gains"], json!([1.5, 1.5]), "generic data");
    assert_eq!(read.verdict, written.verdict);
    assert_eq!(read.to_markdown(), written.to_markdown());
    assert_eq!(read.to_html(), written.to_html());
    assert_eq!(read.to_junit(), written.to_junit());
    // A chart that a later version writes is left out.
    let later = written.to_json().replace("\"bars\": {", "\"stars\": {");
    assert_ne!(later, written.to_json());
    let later = Report::from_json(&later, "report.json").unwrap();
    assert_eq!((later.probes[0].chart.clone(), later.probes.len()), (None, 2));
    assert!(!later.to_html().contains("gain of each text"));
}

#[test]
fn unknown_names_and_wrong_fields_are_errors_with_their_lines() {
    let errors =
        read("suite:\n  - {name: a, kind: recal}\n  - {name: b, kind: nothing_like_it}\n").unwrap_err();
    assert_eq!(errors.errors.len(), 2);
    assert_eq!(errors.errors[0].hint().unwrap(), "did you mean `recall`?");
    assert!(errors.errors[1].hint().unwrap().ends_with("adapter_ablation, recall, rogue"), "{errors}");
    let errors = read("suite:\n  - {name: a, kind: recall, text: [b]}\n").unwrap_err();
    assert_eq!((errors.errors[0].path.as_str(), errors.errors[0].origin.line()), ("suite.0.text", Some(5)));
    assert!(errors.errors[0].hint().unwrap().contains("texts"), "{errors}");
    let errors = read("suite:\n  - {name: a, kind: recall, texts: []}\n").unwrap_err();
    assert!(errors.to_string().contains("needs at least one"), "{errors}");
    // The standard registry does not know it.
    let text = format!("{MODELS}suite: [{{name: a, kind: recall}}]\n");
    let suite = weightloom_sway::Suite::read(&text, Path::new("sway.yaml"), &|_| None).unwrap();
    assert!(PreparedSuite::new(suite, None).unwrap_err().to_string().contains("unknown probe kind `recall`"));
}

#[test]
fn fields_of_a_users_probe_are_documented() {
    let extensions = extensions();
    let kind = extensions.probes.find("recall").unwrap();
    assert_eq!(kind.about.title, "Recall of <known> texts");
    assert_eq!(
        kind.schema()["properties"]["most_lost"]["description"],
        "The most nats that a text may lose."
    );
    assert_eq!(extensions.probes.kinds().len(), Probes::standard().kinds().len() + 2);
}

/// The record of a rogue between two probes that behave.
fn rogue(does: &str, statistics: &str) -> (Record, Report) {
    let report = judged(&format!(
        "defaults: {{statistics: {statistics}}}\nsuite:
  - {{name: before, kind: recall}}
  - {{name: bad, kind: rogue, does: {does}}}
  - {{name: after, kind: delta_kl, prompts: [Once]}}
"
    ));
    assert_eq!(report.probes.len(), 3);
    assert!(report.probes[0].raw.is_some() && report.probes[2].raw.is_some(), "the others ran");
    (report.probes[1].clone(), report)
}

#[test]
fn a_probe_that_panics_is_an_error_record_and_the_others_run() {
    for statistics in ["paired", "reference"] {
        let (bad, report) = rogue("panics", statistics);
        assert_eq!(bad.verdict, ProbeVerdict::Error);
        assert_eq!(bad.message, "the probe `rogue` failed: it panicked: index out of bounds");
        assert_eq!(bad.about().title, "Rogue");
        assert!(report.to_html().contains("index out of bounds"));
    }
}

#[test]
fn a_finding_that_contradicts_itself_is_an_error_record() {
    for (does, reason) in [
        ("score", "the probe `rogue` contradicts itself: its score 1.5 is not from 0 to 1"),
        (
            "items",
            "the probe `rogue` contradicts itself: `items` in its evidence has another form than in other probes",
        ),
        ("list", "the probe `rogue` contradicts itself: a part of its evidence is not a map of fields"),
    ] {
        for statistics in ["paired", "reference"] {
            let (bad, _) = rogue(does, statistics);
            assert_eq!((bad.verdict, bad.message.as_str()), (ProbeVerdict::Error, reason));
        }
    }
    let (bad, _) = rogue("draws", "paired");
    assert_eq!(
        bad.message,
        "the probe `rogue` contradicts itself: it compares with 3 draws of noise; there are 24"
    );
    assert_eq!(rogue("nan", "paired").0.verdict, ProbeVerdict::Error);
}

#[test]
fn a_chart_that_panics_costs_only_the_chart() {
    for statistics in ["paired", "reference"] {
        let (record, report) = rogue("chart", statistics);
        assert_eq!((record.verdict, record.chart), (ProbeVerdict::Pass, None));
        let warning = "`bad` has no chart of its kind `rogue`: it panicked: no pencil";
        assert_eq!(
            report.warnings.iter().filter(|found| *found == warning).count(),
            1,
            "{:?}",
            report.warnings
        );
    }
    assert_eq!(rogue("layers", "paired").0.verdict, ProbeVerdict::Pass);
}

/// A kind with a name or fields that no suite could use.
macro_rules! faulty {
    ($type:ident, $kind:literal, $title:literal, { $($(#[$doc:meta])* $field:ident: $is:ty),* }) => {
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        struct $type { $($(#[$doc])* $field: $is),* }

        impl ProbeKind for $type {
            const ABOUT: About = About { kind: $kind, title: $title, ..Rogue::ABOUT };
            fn judge(&self, _: &ProbeContext<'_>) -> Result<Finding, Stop> {
                Err(Stop::unable("never"))
            }
            fn draft(&self, _: &ProbeContext<'_>, _: &PairedSettings) -> Result<Draft, Stop> {
                Err(Stop::unable("never"))
            }
        }
    };
}

faulty!(Taken, "delta_kl", "t", {});
faulty!(Spaced, "my probe", "t", {});
faulty!(Untitled, "untitled", " ", {});
faulty!(Undocumented, "undocumented", "t", { limit: f64 });
faulty!(Named, "named", "t", {
    /// A name.
    name: String
});

#[test]
fn a_kind_that_no_suite_could_use_is_not_registered() {
    let fault = |error: weightloom_sway::probe::RegisterProbeError| {
        assert!(error.hint().is_some(), "{error}");
        error.problem
    };
    let probes = Probes::standard;
    assert_eq!(fault(probes().with::<Taken>().unwrap_err()), RegisterProbeProblem::Taken);
    assert_eq!(fault(probes().with::<Spaced>().unwrap_err()), RegisterProbeProblem::Name);
    assert_eq!(
        fault(probes().with::<Untitled>().unwrap_err()),
        RegisterProbeProblem::Empty { text: "title" }
    );
    let field = |field: &str| field.to_owned();
    assert_eq!(
        fault(probes().with::<Undocumented>().unwrap_err()),
        RegisterProbeProblem::Undocumented { field: field("limit") }
    );
    assert_eq!(
        fault(probes().with::<Named>().unwrap_err()),
        RegisterProbeProblem::CommonField { field: field("name") }
    );
    let twice = probes().with::<Recall>().unwrap().with::<Recall>();
    assert_eq!(
        twice.unwrap_err().to_string(),
        "cannot register the probe kind `recall`: another kind has this name"
    );
}
