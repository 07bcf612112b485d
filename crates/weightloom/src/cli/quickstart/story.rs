//! How the tour is told.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::certificate::Certificate;
use super::lesson::Lesson;
use super::sample::Sample;
use super::verdict::Verdict;
use crate::cli::output::{bytes, counted};
use crate::cli::train::{millions, rate};

/// Everything that the tour has done.
#[derive(Serialize)]
pub(super) struct Story {
    pub(super) folder: PathBuf,
    pub(super) pretrain: Lesson,
    pub(super) certificate: Certificate,
    pub(super) tune: Lesson,
    pub(super) samples: Vec<Sample>,
    pub(super) verdict: Verdict,
    pub(super) next: Vec<Command>,
    pub(super) seconds: f64,
}

/// Something to try.
#[derive(Serialize)]
pub(super) struct Command {
    /// What it shows.
    what: &'static str,
    command: String,
}

/// Digits of a fingerprint that are shown.
const DIGITS: usize = 8;

pub(super) fn pretrained(lesson: &Lesson, text: &Path) -> String {
    format!(
        "1. Trained a model of {} parameters from nothing on {} ({}), over {} ({}):\n   {}",
        millions(lesson.parameters),
        text.display(),
        size(text),
        counted(lesson.ranks, "rank"),
        lesson.mesh,
        figures(lesson),
    )
}

pub(super) fn certified(certificate: &Certificate, lesson: &Lesson) -> String {
    format!(
        "2. Loaded its checkpoint on {} ({}) and hashed what they hold: {}, {:.2} s\n   \
         fingerprint {} as saved by {}, {} as loaded by {}: equal",
        counted(certificate.ranks, "rank"),
        certificate.mesh,
        counted(certificate.tensors, "tensor"),
        certificate.seconds,
        short(&certificate.saved),
        counted(lesson.ranks, "rank"),
        short(&certificate.loaded),
        counted(certificate.ranks, "rank"),
    )
}

pub(super) fn tuned(lesson: &Lesson, text: &Path) -> String {
    format!(
        "3. Tuned it with an adapter of {} parameters on {} ({}), over {} ({}):\n   {}",
        millions(lesson.parameters),
        text.display(),
        size(text),
        counted(lesson.ranks, "rank"),
        lesson.mesh,
        figures(lesson),
    )
}

pub(super) fn sampled(samples: &[Sample]) -> String {
    let mut lines = vec!["4. Asked it, before tuning and after:".to_owned()];
    for sample in samples {
        lines.push(format!("   {}", sample.prompt));
        lines.push(format!("     before … {}", beginning(&sample.before)));
        lines.push(format!("     after  … {}", beginning(&sample.after)));
    }
    lines.join("\n")
}

pub(super) fn judged(verdict: &Verdict) -> String {
    let probes: Vec<String> =
        verdict.probes.iter().map(|probe| format!("{}: {}", probe.name, probe.verdict)).collect();
    format!(
        "5. Judged the adapter with {}, {:.1} s: {}\n   score {:.2} of 1 ({}); {}\n   \
         what that rests on: open {} in a browser",
        verdict.suite.display(),
        verdict.seconds,
        verdict.meaning,
        verdict.overall,
        verdict.band,
        probes.join(", "),
        verdict.html.display(),
    )
}

pub(super) fn ending(story: &Story) -> String {
    let mut lines = vec![format!(
        "\nAll of it is in {}: texts, tokenizer, run files, checkpoints, metrics, report. {:.1} s in all.\nNext:",
        story.folder.display(),
        story.seconds
    )];
    for Command { what, command } in &story.next {
        lines.push(format!("  # {what}\n  {command}"));
    }
    lines.join("\n")
}

/// What to try with what the tour has left.
pub(super) fn next(folder: &Path, pretrain: &Lesson, tune: &Lesson, verdict: &Verdict) -> Vec<Command> {
    let program = program();
    let (model, adapter) = (shell(&pretrain.checkpoint), shell(&tune.checkpoint));
    let further = pretrain.steps + pretrain.steps.div_ceil(4);
    let merged = shell(&folder.join("merged"));
    let command = |what, rest: String| Command { what, command: format!("{program} {rest}") };
    vec![
        command("ask it something else, with three quarters of the adapter", {
            format!("generate {model} 'A token is' --adapter {adapter} --adapter-scale 0.75")
        }),
        command("see what the verdict rests on, here", format!("sway report {}", shell(&verdict.json))),
        command("train on where it was, on two ranks instead of four", {
            format!("train {} --ranks 2 train.max_steps={further}", shell(&pretrain.file))
        }),
        command("add the adapter to the weights, as a Hugging Face folder", {
            format!("export {model} {merged} --adapter {adapter}")
        }),
        command("see what a checkpoint holds", format!("inspect {model}")),
        command("all that a run's file can say", "train --reference".to_owned()),
    ]
}

/// The program as it was called, so that commands can be copied. Found by its
/// name alone, it is called so again.
fn program() -> String {
    let called = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    if called.components().count() > 1 { shell(&called) } else { "weightloom".to_owned() }
}

/// A path as a shell reads it.
fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |letter: char| letter.is_alphanumeric() || "/._-+=:,@".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn figures(lesson: &Lesson) -> String {
    format!(
        "loss {:.2} → {:.2} in {}, {:.1} s, {}",
        lesson.first_loss,
        lesson.last_loss,
        counted(lesson.steps as usize, "step"),
        lesson.seconds,
        rate(lesson.tokens_per_second),
    )
}

fn size(text: &Path) -> String {
    bytes(std::fs::metadata(text).map_or(0, |found| found.len()))
}

fn short(fingerprint: &str) -> &str {
    fingerprint.get(..DIGITS).unwrap_or(fingerprint)
}

/// Letters of a text that are shown, and where a sentence that is longer is cut.
const ENOUGH: usize = 80;
const MOST: usize = 150;

/// The first sentences of a text, on one line.
fn beginning(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown = String::new();
    for sentence in text.split_inclusive(['.', '!', '?']) {
        if shown.chars().count() + sentence.chars().count() > ENOUGH && !shown.is_empty() {
            break;
        }
        shown += sentence;
    }
    match shown.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{beginning, shell};

    #[test]
    fn paths_are_quoted_where_a_shell_needs_it() {
        assert_eq!(shell(Path::new("runs/a-b_1.0")), "runs/a-b_1.0");
        assert_eq!(shell(Path::new("my runs")), "'my runs'");
        assert_eq!(shell(Path::new("it's")), r"'it'\''s'");
        assert_eq!(shell(Path::new("$HOME")), "'$HOME'");
        assert_eq!(shell(Path::new("")), "''");
    }

    #[test]
    fn the_beginning_of_a_text_is_whole_sentences_on_one_line() {
        assert_eq!(beginning(""), "");
        assert_eq!(beginning(" a cook\nin  my kitchen.\n"), "a cook in my kitchen.");
        let first = "a first sentence that is of a good length.";
        assert_eq!(beginning(&format!("{first} Second! {}.", "x".repeat(60))), format!("{first} Second!"));
        // One that never ends is cut.
        assert_eq!(beginning(&"ä".repeat(400)), format!("{}…", "ä".repeat(150)));
    }
}
