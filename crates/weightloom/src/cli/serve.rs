//! `weightloom serve`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use serde_json::json;
use weightloom::serve::{
    RequestObserver, RequestRecord, Secret, ServeError, ServeOptions, run as run_server, shutdown_signal,
};

use super::failure::Failure;
use super::generate::RunArgs;
use super::hub::ArgumentError;
use super::output::Output;

/// The variable with the API key. Other users can see command lines, so it is
/// not an option.
const KEY: &str = "WEIGHTLOOM_API_KEY";

#[derive(Args)]
pub(super) struct ServeArgs {
    /// Model: card, folder, file, run, adapter, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    name: String,

    /// Name of the model in requests [default: the last component of NAME].
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    served_name: Option<String>,

    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_hint = ValueHint::Other)]
    host: String,

    /// Port to listen on; 0 for any free port.
    #[arg(long, value_name = "PORT", default_value_t = 8000, value_hint = ValueHint::Other)]
    port: u16,

    /// Maximum number of new tokens per request.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    max_new_tokens: Option<usize>,

    /// Maximum number of waiting requests.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    max_waiting: Option<usize>,

    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Ready {
    url: String,
    model: String,
    needs_key: bool,
}

pub(super) fn run(args: &ServeArgs, output: Output) -> Result<ExitCode, Failure> {
    let last = args.name.trim_end_matches('/').rsplit('/').next().unwrap_or(&args.name);
    let mut options = ServeOptions::new(args.served_name.clone().unwrap_or_else(|| last.to_owned()));
    options.max_new_tokens = args.max_new_tokens;
    options.max_waiting = args.max_waiting.unwrap_or(options.max_waiting);
    options.api_key = match std::env::var(KEY) {
        Ok(key) => Some(Secret::new(key)),
        Err(std::env::VarError::NotPresent) => None,
        Err(std::env::VarError::NotUnicode(_)) => {
            let error = ArgumentError { fact: format!("{KEY} is not valid UTF-8"), fix: None };
            return Err(Failure::user(&error));
        }
    };
    if !output.is_quiet() {
        options.observer = Some(RequestObserver::new(move |record| output.note(&line(record, output))));
    }
    let (name, needs_key) = (options.name.clone(), options.api_key.is_some());
    let model = args.run.open(&args.name, output)?;
    let generator = args.run.generator(&model, None, output)?;
    let host = if args.host.contains(':') { format!("[{}]", args.host) } else { args.host.clone() };
    let address = format!("{host}:{}", args.port);
    let ready = |address: SocketAddr| {
        let ready = Ready { url: format!("http://{address}/v1"), model: name, needs_key };
        // One line, so that a parent process can read it.
        let _ = output.line(&ready, |ready| {
            let key =
                if ready.needs_key { format!("; requests need the API key in {KEY}") } else { String::new() };
            format!("serving {} at {}{key}; press Ctrl-C to stop", ready.model, ready.url)
        });
    };
    let served = run_server(&address, generator, options, shutdown_signal(), ready);
    served.map_err(|error| match error {
        ServeError::Listen { .. } | ServeError::Thread { .. } | ServeError::Runtime { .. } => {
            Failure::operational_with_hint(&error)
        }
        other => Failure::user(&other),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A line of the log: method, path, status, tokens and time.
fn line(record: &RequestRecord, output: Output) -> String {
    let seconds = record.duration.as_secs_f64();
    if output.is_json() {
        return json!({
            "method": record.method, "path": record.path, "status": record.status,
            "prompt_tokens": record.prompt_tokens, "completion_tokens": record.completion_tokens,
            "seconds": seconds,
        })
        .to_string();
    }
    let status = record.status.map_or_else(|| "cancelled".to_owned(), |status| status.to_string());
    let tokens = match (record.prompt_tokens, record.completion_tokens) {
        (Some(prompt), Some(completion)) => format!("  {prompt} + {completion} tokens"),
        _ => String::new(),
    };
    format!("{} {} {status}{tokens}  {seconds:.3} s", record.method, record.path)
}
