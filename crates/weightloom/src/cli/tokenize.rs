//! `weightloom tokenize`.

use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::hub::HubError;
use weightloom::hub::text::Special;

use super::failure::Failure;
use super::generate::prompt_text;
use super::hub::HubArgs;
use super::located::OpenedModel;
use super::output::{Output, counted, table};

#[derive(Args)]
pub(super) struct TokenizeArgs {
    /// Model: card, folder, file, run, adapter, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// Text, or - for stdin.
    #[arg(value_hint = ValueHint::Other)]
    text: String,

    /// Omit beginning-of-text and end-of-text tokens.
    #[arg(long)]
    plain: bool,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct Tokens {
    tokens: Vec<u32>,
    pieces: Vec<String>,
}

pub(super) fn run(args: &TokenizeArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let text = prompt_text(&args.text)?;
    let model = OpenedModel::open(&args.hub.hub(registry)?, &args.name, None, output)?.model;
    let tokenizer = model.tokenizer()?;
    let special = if args.plain { Special::Plain } else { Special::Add };
    let tokens = tokenizer.encode(&text, special).map_err(HubError::from)?;
    let pieces = tokens.iter().map(|&id| tokenizer.token(id).unwrap_or_default().to_owned()).collect();
    output.show(&Tokens { tokens, pieces }, |shown| {
        let mut rows = table(&["token", "piece"], &[0]);
        for (token, piece) in shown.tokens.iter().zip(&shown.pieces) {
            rows.add_row([token.to_string(), format!("{piece:?}")]);
        }
        format!("{rows}\n{}", counted(shown.tokens.len(), "token"))
    })
}
