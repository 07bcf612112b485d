//! `weightloom serve`.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use serde_json::json;
use weightloom::Registry;
use weightloom::serve::{
    RequestObserver, RequestRecord, Secret, ServeError, ServeOptions, run as run_server, shutdown_signal,
};
use weightloom_machine::memory;

use super::byte_size::ByteSize;
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

    /// Memory for keys, values and results, such as 8GiB [default: half of the available].
    #[arg(long, value_name = "SIZE", value_hint = ValueHint::Other)]
    cache_memory: Option<ByteSize>,

    /// Host name that requests may be for, besides the address; * for any; repeatable.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    allowed_host: Vec<String>,

    /// Origin whose pages may send requests, or * for any; repeatable.
    #[arg(long, value_name = "ORIGIN", value_hint = ValueHint::Other)]
    allowed_origin: Vec<String>,

    #[command(flatten)]
    run: RunArgs,
}

#[derive(Serialize)]
struct Ready {
    url: String,
    model: String,
    needs_key: bool,
}

pub(super) fn run(args: &ServeArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
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
    options.allowed_hosts.clone_from(&args.allowed_host);
    options.allowed_origins.clone_from(&args.allowed_origin);
    if !output.is_quiet() {
        options.observer = Some(RequestObserver::new(move |record| output.note(&line(record, output))));
    }
    let (name, needs_key) = (options.name.clone(), options.api_key.is_some());
    let model = args.run.open(registry, &args.name, output)?;
    let generator = args.run.generator(&model, None, output)?.generator;
    // Once the weights are loaded, so that they are not counted as available.
    if let Some(bytes) = args.cache_memory.map(|size| size.0).or_else(half_of_available_memory) {
        options.max_cache_bytes = bytes;
    }
    let host = if args.host.contains(':') { format!("[{}]", args.host) } else { args.host.clone() };
    let address = format!("{host}:{}", args.port);
    let ready = |address: SocketAddr| {
        if let Some(warning) = warning(address, needs_key.then_some(KEY)) {
            output.note(&warning);
        }
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

/// A warning about a server that everyone can use. `key` is the variable with its
/// key, if it has one.
fn warning(address: SocketAddr, key: Option<&str>) -> Option<String> {
    let is_open = !address.ip().is_loopback() && key.is_none();
    is_open.then(|| {
        format!(
            "warning: everyone who can reach {address} can use the model; set {KEY} to require a key, or use \
             --host 127.0.0.1"
        )
    })
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

/// Half of the memory that this process may still use, if the system says.
fn half_of_available_memory() -> Option<u64> {
    memory().map(|memory| (memory.available / 2).max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn a_server_for_other_machines_without_a_key_is_warned_about() {
        let warning = |address: &str, key| warning(address.parse().unwrap(), key);
        for open in ["0.0.0.0:8000", "[::]:8000", "10.0.0.1:80"] {
            assert!(warning(open, None).unwrap().contains(KEY), "{open}");
            assert_eq!(warning(open, Some(KEY)), None);
        }
        for local in ["127.0.0.1:8000", "[::1]:8000"] {
            assert_eq!(warning(local, None), None);
        }
    }
}
