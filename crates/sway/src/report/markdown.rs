//! Reports as Markdown.

use serde_json::Value;

use super::{Report, format};
use crate::category::Category;
use crate::probe::{Align, NullAdapter, NullAdapterEvidence, ProbeKind, SkippedKind, TableColumn};
use crate::record::{ProbeVerdict, Record};
use crate::verdict::AnsweredQuestion;

impl Report {
    /// The report as Markdown.
    pub fn to_markdown(&self) -> String {
        let mut page = format!("# Sway report\n\n**{}**\n\n", flat(&self.sentence()));
        self.questions(&mut page);
        self.head(&mut page);
        self.components(&mut page);
        self.table(&mut page);
        list(&mut page, "Findings", &self.score.findings);
        list(&mut page, "Skipped", &self.skipped());
        list(&mut page, "Without a null distribution", &self.opted_out());
        list(&mut page, "Null distributions without variance", &self.degenerate());
        for record in &self.probes {
            evidence_table(&mut page, record);
        }
        list(&mut page, "Notes", &self.all_notes());
        list(&mut page, "Warnings", &self.warnings);
        page
    }

    /// The three questions of the verdict, each with its evidence.
    fn questions(&self, page: &mut String) {
        if !self.has_results() {
            return;
        }
        *page += "| Question | Answer | Evidence |\n|---|---|---|\n";
        for AnsweredQuestion { question, conclusion, .. } in self.verdict.questions() {
            let facts: Vec<String> = conclusion.evidence.iter().map(|fact| cell(fact)).collect();
            *page += &format!("| {question} | {} | {} |\n", conclusion.decision, facts.join("<br>"));
        }
        *page += "\n";
    }

    fn head(&self, page: &mut String) {
        let mut line = |name: &str, value: &str| {
            if !value.is_empty() {
                *page += &format!("- **{name}:** {}\n", flat(value));
            }
        };
        line("Base", &self.base_model_id);
        line("Adapter", &format::adapter(&self.adapter_id));
        if self.has_score() {
            line("Score", &format!("{:.2} of 1", self.score.overall));
        }
        line("Statistics", &self.statistics.to_string());
        line("Suite", &self.spec_path);
        if let Some(backend) = &self.backend {
            line("Backend", &backend.kind);
        }
        line("Text packs", self.packs.as_deref().unwrap_or_default());
        line("Started", &self.started_at);
        line("Duration", &format!("{} s", format::seconds(self.wall_seconds)));
        if let Some(determinism) = &self.determinism {
            line("Determinism", &format!("{}, seed {}", determinism.class, determinism.seed));
        }
        line("Version", &self.sway_version);
    }

    fn components(&self, page: &mut String) {
        *page += "\n## Categories\n\n| Category | Score | Weight |\n|---|---:|---:|\n";
        for (name, _) in self.components_in_order() {
            let score = format::score(self.component(name));
            let weight =
                self.score.weights.get(name).map_or(format::NONE.to_owned(), |weight| format!("{weight:.2}"));
            *page += &format!("| {} | {score} | {weight} |\n", cell(name));
        }
    }

    /// Known categories in their order, then others.
    pub(super) fn components_in_order(&self) -> Vec<(&str, f64)> {
        let place = |name: &str| {
            Category::from_name(name)
                .and_then(|category| Category::ALL.iter().position(|other| *other == category))
                .unwrap_or(Category::ALL.len())
        };
        let mut all: Vec<(&str, f64)> =
            self.score.components.iter().map(|(name, score)| (name.as_str(), *score)).collect();
        all.sort_by_key(|(name, _)| place(name));
        all
    }

    fn table(&self, page: &mut String) {
        let tested = self.probes.iter().any(|record| record.p_value.is_some());
        let (heading, rule) = if tested { (" p | adjusted p |", "---:|---:|") } else { ("", "") };
        *page += &format!(
            "\n## Probes\n\n| Name | Kind | Verdict | Score | Raw | 95 % | z |{heading} Seconds | Note |\n\
             |---|---|---|---:|---:|---|---:|{rule}---:|---|\n"
        );
        for record in &self.probes {
            let mut cells = vec![
                cell(&record.name),
                cell(&record.kind),
                record.verdict.to_string(),
                format::score(record.score),
                format::raw(record.raw),
                format::interval(record.ci_95),
                format::z(record.z_score),
            ];
            if tested {
                cells.push(format::probability(record.p_value));
                cells.push(format::probability(record.p_adjusted));
            }
            cells.push(format::seconds(record.duration_s));
            cells.push(cell(&format::note(record)));
            *page += &format!("| {} |\n", cells.join(" | "));
        }
    }

    /// Skipped entries, with the reason.
    pub fn skipped(&self) -> Vec<String> {
        let skipped = self.probes.iter().filter(|record| record.verdict == ProbeVerdict::Skip);
        skipped.map(|record| format!("{} ({}): {}", record.name, record.kind, record.message)).collect()
    }

    /// Kinds without a null distribution, with the reason.
    pub fn opted_out(&self) -> Vec<String> {
        let noise = self.probes.iter().filter(|record| record.kind == NullAdapter::ABOUT.kind);
        let lists = noise.filter_map(|record| record.evidence.read::<NullAdapterEvidence>());
        let line = |kind: SkippedKind| match kind {
            SkippedKind::Named(kind) => kind,
            SkippedKind::Explained { kind, reason } => format!("{kind}: {reason}"),
        };
        lists.flat_map(|found| found.skipped_kinds).map(line).collect()
    }

    /// Kinds whose null distribution has no variance.
    pub fn degenerate(&self) -> Vec<String> {
        let flagged =
            |value: &Value| value.get("degenerate").and_then(Value::as_f64).is_some_and(|flag| flag != 0.0);
        self.null_stats.iter().filter(|(_, value)| flagged(value)).map(|(kind, _)| kind.clone()).collect()
    }
}

/// The table that a kind makes of its evidence.
fn evidence_table(page: &mut String, record: &Record) {
    let Some(table) = record.table() else { return };
    let rule = |column: &TableColumn| match column.align {
        Align::Left => "---",
        Align::Right => "---:",
    };
    let rules: Vec<&str> = table.columns.iter().map(rule).collect();
    let headings: Vec<String> = table.columns.iter().map(|column| cell(&column.heading)).collect();
    *page += &format!(
        "\n## {} {}\n\n| {} |\n|{}|\n",
        flat(&table.title),
        flat(&record.name),
        headings.join(" | "),
        rules.join("|")
    );
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
        *page += &format!("| {} |\n", cells.join(" | "));
    }
}

fn list(page: &mut String, title: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    *page += &format!("\n## {title}\n\n");
    for item in items {
        *page += &format!("- {}\n", flat(item));
    }
}

/// A text on one line, with HTML escaped.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('<', "&lt;")
}

/// A text in a cell of a table.
fn cell(text: &str) -> String {
    flat(text).replace('|', "\\|")
}
