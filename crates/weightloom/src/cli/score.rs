//! `weightloom score`.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::LoadedGenerator;
use weightloom::hub::CheckpointMismatch;

use weightloom::Registry;

use super::failure::Failure;
use super::generate::{RunArgs, prompt_text};
use super::hub::ArgumentError;
use super::output::{Output, counted, table};

#[derive(Args)]
pub(super) struct ScoreArgs {
    /// Model: card, folder, file, run, adapter, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// Text, or - for stdin.
    #[arg(value_hint = ValueHint::Other)]
    text: String,

    /// Show the N most likely tokens at each position.
    #[arg(long, value_name = "N", default_value_t = 0, value_hint = ValueHint::Other)]
    top: usize,

    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Scores {
    model: String,
    tokens: Vec<ScoredToken>,
    /// The sum over all tokens.
    log_probability: f64,
    perplexity: Option<f64>,
    tokens_per_second: f64,
    /// Tensors that were initialized or ignored.
    #[serde(skip_serializing_if = "CheckpointMismatch::is_empty")]
    mismatch: CheckpointMismatch,
}

#[derive(Serialize)]
struct ScoredToken {
    token: u32,
    piece: String,
    /// `None` for the first token.
    log_probability: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    likeliest: Vec<(u32, f64)>,
}

pub(super) fn run(args: &ScoreArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let text = prompt_text(&args.text)?;
    let model = args.run.open(registry, &args.name, output)?;
    let LoadedGenerator { generator, mismatch } = args.run.generator(&model, None, output)?;
    let tokens = generator.encode_prompt(&text)?;
    if tokens.is_empty() {
        let error = ArgumentError { fact: "cannot score an empty text".to_owned(), fix: None };
        return Err(Failure::user(&error));
    }
    let started = Instant::now();
    let scores = generator.score(&[&tokens], args.top)?.into_iter().next().unwrap_or_default();
    let seconds = started.elapsed().as_secs_f64();
    let total: f64 = scores.iter().map(|score| score.chosen).sum();
    let count = scores.len();
    let scored = |(position, &token): (usize, &u32)| {
        let score = position.checked_sub(1).and_then(|before| scores.get(before));
        ScoredToken {
            token,
            piece: generator.tokenizer.token(token).unwrap_or_default().to_owned(),
            log_probability: score.map(|score| score.chosen),
            likeliest: score.map(|score| score.top.clone()).unwrap_or_default(),
        }
    };
    let shown = Scores {
        model: args.name.clone(),
        tokens: tokens.iter().enumerate().map(scored).collect(),
        log_probability: total,
        perplexity: (count > 0).then(|| (-total / count as f64).exp()),
        tokens_per_second: tokens.len() as f64 / seconds,
        mismatch,
    };
    output.show(&shown, |shown| {
        let mut rows = table(&["token", "piece", "log probability", "most likely"], &[0, 2]);
        for token in &shown.tokens {
            let likeliest: Vec<String> = token
                .likeliest
                .iter()
                .map(|(id, score)| {
                    format!("{:?} {score:.3}", generator.tokenizer.token(*id).unwrap_or_default())
                })
                .collect();
            rows.add_row([
                token.token.to_string(),
                format!("{:?}", token.piece),
                token.log_probability.map_or_else(String::new, |score| format!("{score:.4}")),
                likeliest.join(", "),
            ]);
        }
        let perplexity =
            shown.perplexity.map_or_else(String::new, |value| format!(", perplexity {value:.3}"));
        let speed = shown.tokens_per_second;
        format!(
            "{rows}\n{}, log probability {:.4}{perplexity}, {speed:.0} tokens/s",
            counted(shown.tokens.len(), "token"),
            shown.log_probability
        )
    })
}
