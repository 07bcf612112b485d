//! The text of the tour.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;
use weightloom::sway::AnsweredQuestion;

use super::judgement::Judgement;
use super::reshard_check::ReshardCheck;
use super::sample::Sample;
use super::training_run::TrainingRun;
use crate::cli::output::{bytes, counted};
use crate::cli::train::{millions, rate};

/// The results of the tour.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) folder: PathBuf,
    pub(super) pretrain: TrainingRun,
    pub(super) certificate: ReshardCheck,
    pub(super) tune: TrainingRun,
    pub(super) samples: Vec<Sample>,
    pub(super) verdict: Judgement,
    pub(super) next: Vec<Command>,
    pub(super) seconds: f64,
}

/// A command to try next.
#[derive(Serialize)]
pub(super) struct Command {
    /// Description of the command.
    what: &'static str,
    command: String,
}

/// Digits shown of a fingerprint.
const DIGITS: usize = 8;

pub(super) fn pretrained(run: &TrainingRun, text: &Path) -> String {
    format!(
        "1. Trained a model of {} parameters from scratch on {} ({}), on {} ({}):\n   {}",
        millions(run.parameters),
        text.display(),
        size(text),
        counted(run.ranks, "rank"),
        run.mesh,
        figures(run),
    )
}

pub(super) fn resharded(check: &ReshardCheck, run: &TrainingRun) -> String {
    format!(
        "2. Loaded its checkpoint on {} ({}) and hashed their shards: {}, {:.2} s\n   \
         fingerprint {} as saved by {}, {} as loaded by {}: equal",
        counted(check.ranks, "rank"),
        check.mesh,
        counted(check.tensors, "tensor"),
        check.seconds,
        short(&check.saved),
        counted(run.ranks, "rank"),
        short(&check.loaded),
        counted(check.ranks, "rank"),
    )
}

pub(super) fn tuned(run: &TrainingRun, text: &Path) -> String {
    format!(
        "3. Fine-tuned it with an adapter of {} parameters on {} ({}), on {} ({}):\n   {}",
        millions(run.parameters),
        text.display(),
        size(text),
        counted(run.ranks, "rank"),
        run.mesh,
        figures(run),
    )
}

pub(super) fn sampled(samples: &[Sample]) -> String {
    let mut lines = vec!["4. Generated text before and after fine-tuning:".to_owned()];
    for sample in samples {
        lines.push(format!("   {}", sample.prompt));
        lines.push(format!("     before … {}", first_sentences(&sample.before)));
        lines.push(format!("     after  … {}", first_sentences(&sample.after)));
    }
    lines.join("\n")
}

pub(super) fn judged(verdict: &Judgement) -> String {
    let probes: Vec<String> =
        verdict.probes.iter().map(|probe| format!("{}: {}", probe.name, probe.verdict)).collect();
    let mut lines = vec![
        format!("5. Judged the adapter with {}, {:.1} s:", verdict.suite.display(), verdict.seconds),
        format!("   {}", verdict.headline),
    ];
    for AnsweredQuestion { question, conclusion, .. } in verdict.verdict.questions() {
        let fact = conclusion.evidence.first().map_or(String::new(), |fact| format!(" ({fact})"));
        lines.push(format!("   {question} {}{fact}", conclusion.decision));
    }
    lines.push(format!("   probes: {}; score {:.2} of 1", probes.join(", "), verdict.overall));
    lines.push(format!("   evidence: open {} in a browser", verdict.html.display()));
    lines.join("\n")
}

pub(super) fn ending(summary: &Summary) -> String {
    let mut lines = vec![format!(
        "\nEverything is in {}: texts, tokenizer, configs, checkpoints, metrics, report. Total time: {:.1} s.\nNext:",
        summary.folder.display(),
        summary.seconds
    )];
    for Command { what, command } in &summary.next {
        lines.push(format!("  # {what}\n  {command}"));
    }
    lines.join("\n")
}

/// Commands to try with the results of the tour.
pub(super) fn next(
    program: &OsStr,
    folder: &Path,
    pretrain: &TrainingRun,
    tune: &TrainingRun,
    verdict: &Judgement,
) -> Vec<Command> {
    let program = program_name(Path::new(program));
    let (model, adapter) = (shell(&pretrain.checkpoint), shell(&tune.checkpoint));
    let further = pretrain.steps + pretrain.steps.div_ceil(4);
    let merged = shell(&folder.join("merged"));
    let command = |what, rest: String| Command { what, command: format!("{program} {rest}") };
    vec![
        command("generate from another prompt, with the adapter at 75 %", {
            format!("generate {model} 'A token is' --adapter {adapter} --adapter-scale 0.75")
        }),
        command("show the report in the terminal", format!("sway report {}", shell(&verdict.json))),
        command("resume the training, on two ranks instead of four", {
            format!("train {} --ranks 2 train.max_steps={further}", shell(&pretrain.file))
        }),
        command("merge the adapter into the weights, as a Hugging Face folder", {
            format!("export {model} {merged} --adapter {adapter}")
        }),
        command("list the tensors of a checkpoint", format!("inspect {model}")),
        command("print the reference of all config keys", "train --reference".to_owned()),
    ]
}

/// The program as it was called, so that commands can be copied.
fn program_name(called: &Path) -> String {
    if called.components().count() > 1 { shell(called) } else { "weightloom".to_owned() }
}

/// Quotes a path for a shell.
fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+=:,@".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn figures(run: &TrainingRun) -> String {
    format!(
        "loss {:.2} → {:.2} in {}, {:.1} s, {}",
        run.first_loss,
        run.last_loss,
        counted(run.steps as usize, "step"),
        run.seconds,
        rate(run.tokens_per_second),
    )
}

fn size(text: &Path) -> String {
    bytes(std::fs::metadata(text).map_or(0, |found| found.len()))
}

fn short(fingerprint: &str) -> &str {
    fingerprint.get(..DIGITS).unwrap_or(fingerprint)
}

/// Characters after which no further sentence is shown, and after which a
/// sentence is truncated.
const TARGET_LENGTH: usize = 80;
const MAX_LENGTH: usize = 150;

/// The first sentences of a text, on one line.
fn first_sentences(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown = String::new();
    for sentence in text.split_inclusive(['.', '!', '?']) {
        if shown.chars().count() + sentence.chars().count() > TARGET_LENGTH && !shown.is_empty() {
            break;
        }
        shown += sentence;
    }
    match shown.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{first_sentences, shell};

    #[test]
    fn paths_are_quoted_where_necessary() {
        assert_eq!(shell(Path::new("runs/a-b_1.0")), "runs/a-b_1.0");
        assert_eq!(shell(Path::new("my runs")), "'my runs'");
        assert_eq!(shell(Path::new("it's")), r"'it'\''s'");
        assert_eq!(shell(Path::new("$HOME")), "'$HOME'");
        assert_eq!(shell(Path::new("")), "''");
    }

    #[test]
    fn the_first_sentences_are_on_one_line() {
        assert_eq!(first_sentences(""), "");
        assert_eq!(first_sentences(" a cook\nin  my kitchen.\n"), "a cook in my kitchen.");
        let first = "a first sentence that is of a good length.";
        assert_eq!(
            first_sentences(&format!("{first} Second! {}.", "x".repeat(60))),
            format!("{first} Second!")
        );
        // A sentence that is too long is truncated.
        assert_eq!(first_sentences(&"ä".repeat(400)), format!("{}…", "ä".repeat(150)));
    }
}
