//! `weightloom data`: list datasets, and show training data as a run would use it.

mod list;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueHint};
use weightloom::Registry;
use weightloom::train::config::ConfigReader;
use weightloom::train::data::{
    DataSummary, DocumentStatus, DocumentsRead, DroppedDocuments, Example, LengthHistogram, PairKind, Passage,
};
use weightloom::train::{DataPreview, TrainError, preview_data};

use super::escape::escaped;
use super::failure::Failure;
use super::hub::{Downloads, HubArgs};
use super::output::{Output, counted};

#[derive(Subcommand)]
pub(super) enum DataCommand {
    /// Show the first documents with their trained tokens, the lengths, and what is dropped.
    ///
    /// Trained tokens are in ⟦brackets⟧, and green on a terminal.
    #[command(after_help = "Examples:
  weightloom data show run.yaml
  weightloom data show run.yaml -n 10 data.max_seq_len=2048
  weightloom data show run.yaml --json | jq .summary.dropped")]
    Show(ShowArgs),

    /// List datasets with cards.
    ///
    /// A training config names one as data.dataset.
    #[command(after_help = "Examples:
  weightloom data list
  weightloom data list --asset-dir my-cards --json | jq -r '.datasets[].name'")]
    List(HubArgs),
}

#[derive(Args)]
pub(super) struct ShowArgs {
    /// YAML config of a training run.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Override config values, such as data.max_seq_len=2048.
    #[arg(value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    overrides: Vec<String>,

    /// Number of documents to show.
    #[arg(short = 'n', long = "examples", value_name = "N", default_value_t = 3, value_hint = ValueHint::Other)]
    examples: usize,

    #[command(flatten)]
    hub: HubArgs,
}

pub(super) fn run(command: &DataCommand, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let args = match command {
        DataCommand::Show(args) => args,
        DataCommand::List(hub) => return list::run(hub, registry, output),
    };
    let variable = |name: &str| std::env::var(name).ok();
    let reader = ConfigReader::new(registry.training(), &variable);
    let config = ConfigReader { overrides: &args.overrides, ..reader }
        .read_file(&args.file)
        .map_err(|error| Failure::user(&TrainError::from(error)))?;
    let downloads = Downloads::new(output);
    let preview =
        preview_data(&config, &args.hub.hub(registry)?, registry.training(), args.examples, &downloads)?;
    let colour = if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        Colour::On
    } else {
        Colour::Off
    };
    output.show_styled(&preview, |preview| render(preview, colour))
}

/// Whether trained tokens are coloured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Colour {
    On,
    Off,
}

fn render(preview: &DataPreview, colour: Colour) -> String {
    let dataset = preview.dataset.iter().map(|name| format!("dataset: {}", escaped(name)));
    let examples = preview.examples.iter().map(|example| self::example(example, colour));
    let mut parts: Vec<String> = dataset.chain(examples).collect();
    // Of preferences, a document is two sequences.
    let sequences = if preview.examples.iter().any(|example| example.second.is_some()) { 2 } else { 1 };
    parts.push(histogram(&preview.summary.lengths, sequences));
    parts.push(escaped(&summary_lines(&preview.summary).join("\n")).into_owned());
    parts.join("\n\n")
}

/// Passages with those that are trained on in brackets.
fn passages(passages: &[Passage], colour: Colour) -> String {
    let mut text = String::new();
    for passage in passages {
        let passage_text = escaped(&passage.text);
        match (passage.trained, colour) {
            (false, _) => text += &passage_text,
            (true, Colour::Off) => text += &format!("⟦{passage_text}⟧"),
            (true, Colour::On) => text += &format!("\u{1b}[32m⟦{passage_text}⟧\u{1b}[0m"),
        }
    }
    text
}

fn example(example: &Example, colour: Colour) -> String {
    let used = match example.status {
        DocumentStatus::Whole => {
            format!("{}, {} trained", counted(example.tokens, "token"), example.trained_tokens)
        }
        DocumentStatus::Truncated => format!(
            "truncated from {} to {}, {} trained",
            example.full_length,
            counted(example.tokens, "token"),
            example.trained_tokens
        ),
        DocumentStatus::Dropped(reason) => {
            format!("dropped: {reason}; {}", counted(example.full_length, "token"))
        }
    };
    let text = passages(&example.passages, colour);
    let text = format!("{}{}", text.trim_end(), if example.complete { "" } else { "…" });
    let text = match &example.second {
        None => text,
        Some(second) => {
            let [first, other] = match second.kind {
                PairKind::Rejected => ["chosen", "rejected"],
                PairKind::Mismatched { desirable: true } => ["desirable", "mismatched"],
                PairKind::Mismatched { desirable: false } => ["undesirable", "mismatched"],
            };
            format!("{first}: {text}\n{other}: {}", passages(&second.passages, colour).trim_end())
        }
    };
    let separator = if text.is_empty() { "" } else { "\n" };
    format!("{} ({used}){separator}{text}", escaped(&example.origin))
}

/// Width of the longest bar.
const BAR: u64 = 40;

fn histogram(lengths: &LengthHistogram, sequences: u64) -> String {
    let most = lengths.bins.iter().map(|bin| bin.documents).max().unwrap_or(0).max(1);
    let width = lengths.bins.last().map_or(1, |bin| bin.to.to_string().len());
    let mut lines = vec!["documents by length in tokens".to_owned()];
    // Short bins at the start and the end say nothing.
    let first = lengths.bins.iter().position(|bin| bin.documents > 0 || bin.to >= lengths.limit).unwrap_or(0);
    for bin in &lengths.bins[first..] {
        let bar = "█".repeat((bin.documents * BAR).div_ceil(most) as usize);
        let line = format!("{:>width$}–{:<width$} {bar} {}", bin.from, bin.to, bin.documents);
        lines.push(format!("  {line}"));
        if bin.to == lengths.limit {
            let cut = lengths.limit.saturating_sub(1) / sequences;
            let times = if sequences == 1 { String::new() } else { format!("{sequences} × ") };
            lines.push(format!("  {} {times}data.max_seq_len: {cut}", "─".repeat(2 * width + 1)));
        }
    }
    lines.join("\n")
}

/// The account of documents, for people.
pub(super) fn summary_lines(summary: &DataSummary) -> Vec<String> {
    let count = |documents: u64| counted(documents as usize, "document");
    let mut head = format!("data: {} in {}", count(summary.documents), counted(summary.files, "file"));
    if !summary.skipped_files.is_empty() {
        let types: Vec<String> =
            summary.skipped_files.iter().map(|(kind, files)| format!("{files} {kind}")).collect();
        head += &format!("; files of other types, not read: {}", types.join(", "));
    }
    let mut lines = vec![head];
    if !summary.other_splits.is_empty() {
        let splits: Vec<String> =
            summary.other_splits.iter().map(|(split, files)| format!("{files} of {split}")).collect();
        lines.push(format!("  files of other splits, not trained on: {}", splits.join(", ")));
    }
    if !summary.is_complete() {
        lines.push(format!("  counted so far: {}", summary.read));
    }
    if summary.formats.keys().any(|format| format != "text file") {
        let formats: Vec<String> =
            summary.formats.iter().map(|(format, documents)| format!("{documents} {format}")).collect();
        lines.push(format!("  formats: {}", formats.join(", ")));
    }
    let rows = summary.rows.map_or_else(String::new, |rows| format!(" in {}", counted(rows as usize, "row")));
    lines.push(format!(
        "  used: {}, {} tokens{rows}, {} of them trained",
        summary.used, summary.tokens, summary.trained_tokens
    ));
    if let Some(packing) = &summary.packing {
        lines.push(format!(
            "  rows: {:.1} % filled; {:.1} % of the documents continue in another row",
            100.0 * packing.filled,
            100.0 * packing.cut
        ));
    }
    if summary.truncated > 0 {
        lines.push(format!(
            "  truncated: {}, by {}; raise `data.max_seq_len` to keep them whole",
            summary.truncated,
            counted(summary.cut_tokens as usize, "token")
        ));
    }
    lines.extend(dropped_line(&summary.dropped));
    lines
}

fn dropped_line(dropped: &[DroppedDocuments]) -> Option<String> {
    let total: u64 = dropped.iter().map(|dropped| dropped.documents).sum();
    let reasons: Vec<String> = dropped.iter().map(ToString::to_string).collect();
    (total > 0).then(|| format!("  dropped: {total}: {}", reasons.join("; ")))
}

/// The documents that a run has read, for people.
pub(super) fn read_lines(name: &str, read: &DocumentsRead) -> Vec<String> {
    let mut lines =
        vec![format!("{name}: {} read, {} used", counted(read.read as usize, "document"), read.used)];
    if read.truncated > 0 {
        lines.push(format!("  truncated: {}", read.truncated));
    }
    lines.extend(dropped_line(&read.dropped));
    lines
}

#[cfg(test)]
mod tests {
    use weightloom::train::data::{DropReason, LengthBin, SecondSequence};

    use super::*;

    #[test]
    fn trained_tokens_are_in_brackets_and_green_on_a_terminal() {
        let passage = |text: &str, trained| Passage { text: text.to_owned(), trained };
        let shown = Example {
            origin: "a.jsonl:1".to_owned(),
            status: DocumentStatus::Whole,
            tokens: 3,
            trained_tokens: 1,
            full_length: 3,
            passages: vec![passage("question ", false), passage("answer", true)],
            complete: true,
            second: None,
        };
        assert_eq!(example(&shown, Colour::Off), "a.jsonl:1 (3 tokens, 1 trained)\nquestion ⟦answer⟧");
        assert!(example(&shown, Colour::On).ends_with("question \u{1b}[32m⟦answer⟧\u{1b}[0m"));
        let second = SecondSequence { kind: PairKind::Rejected, passages: vec![passage("no", true)] };
        let pair = Example { second: Some(second), ..shown.clone() };
        assert_eq!(
            example(&pair, Colour::Off),
            "a.jsonl:1 (3 tokens, 1 trained)\nchosen: question ⟦answer⟧\nrejected: ⟦no⟧"
        );
        let dropped = Example { status: DocumentStatus::Dropped(DropReason::AnswerCutOff), ..shown };
        assert!(
            example(&dropped, Colour::Off)
                .contains("(dropped: answer cut off by `data.max_seq_len`; 3 tokens)")
        );
    }

    #[test]
    fn the_cut_off_lies_between_the_bars() {
        let bin = |from, to, documents| LengthBin { from, to, documents };
        let lengths = LengthHistogram {
            limit: 9,
            bins: vec![bin(0, 4, 0), bin(5, 9, 80), bin(10, 18, 1)],
            longest: 12,
        };
        let bar = "█".repeat(40);
        let expected = format!(
            "documents by length in tokens\n   5–9  {bar} 80\n  ───── data.max_seq_len: 8\n  10–18 █ 1"
        );
        assert_eq!(histogram(&lengths, 1), expected);
        assert!(histogram(&lengths, 2).contains("2 × data.max_seq_len: 4\n"));
        assert_eq!(histogram(&LengthHistogram::default(), 1), "documents by length in tokens");
    }
}
