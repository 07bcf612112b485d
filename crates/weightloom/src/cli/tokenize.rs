//! `weightloom tokenize`: a text as a model sees it.

use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::hub::HubError;
use weightloom::hub::text::Special;

use super::failure::Failure;
use super::generate::prompt_text;
use super::hub::{Downloads, HubArgs};
use super::output::{Output, counted, table};

#[derive(Args)]
pub(super) struct TokenizeArgs {
    /// The name of a card, a folder, a file, or an address such as hf://org/name.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// The text, or - to read it from stdin.
    #[arg(value_hint = ValueHint::Other)]
    text: String,

    /// Leave out the tokens that mark beginning and end.
    #[arg(long)]
    plain: bool,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct Answer {
    tokens: Vec<u32>,
    pieces: Vec<String>,
}

pub(super) fn run(args: &TokenizeArgs, output: Output) -> Result<ExitCode, Failure> {
    let text = prompt_text(&args.text)?;
    let model = args.hub.hub()?.open(&args.name, &Downloads::new(output))?;
    let tokenizer = model.tokenizer()?;
    let special = if args.plain { Special::Plain } else { Special::Add };
    let tokens = tokenizer.encode(&text, special).map_err(HubError::from)?;
    let pieces = tokens.iter().map(|&id| tokenizer.token(id).unwrap_or_default().to_owned()).collect();
    output.show(&Answer { tokens, pieces }, |answer| {
        let mut rows = table(&["token", "piece"], &[0]);
        for (token, piece) in answer.tokens.iter().zip(&answer.pieces) {
            rows.add_row([token.to_string(), format!("{piece:?}")]);
        }
        format!("{rows}\n{}", counted(answer.tokens.len(), "token"))
    })
}
