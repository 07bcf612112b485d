//! Generation parameters that both endpoints accept.

use std::hash::{BuildHasher, Hasher, RandomState};

use weightloom_hub::text::OrderedJson;
use weightloom_hub::{EosHandling, StopCriteria};
use weightloom_nn::Sampling;

use crate::api_error::ApiError;
use crate::json_object::{JsonObject, unexpected};

/// Limits on stop strings, since each token is compared with all of them.
const MAX_STOP_STRINGS: usize = 64;
const MAX_STOP_BYTES: usize = 1 << 14;

/// The maximum of `top_logprobs`, as in the OpenAI API.
pub(crate) const MAX_TOP_LOGPROBS: usize = 20;

/// Generation parameters of a request.
pub(crate) struct GenerationParams {
    /// Completions per prompt.
    pub(crate) n: usize,
    pub(crate) sampling: Sampling,
    pub(crate) stop: StopCriteria,
    pub(crate) stream_mode: StreamMode,
}

/// Whether a response is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamMode {
    Off,
    On,
    /// On, with a final chunk of token counts.
    WithUsage,
}

impl GenerationParams {
    pub(crate) fn parse(fields: &JsonObject) -> Result<Self, ApiError> {
        reject_unsupported(fields)?;
        let n = fields.count("n")?.unwrap_or(1);
        if n == 0 {
            return Err(ApiError::invalid_field("n", "`n` must be 1 or more"));
        }
        let eos = match fields.flag("ignore_eos")? {
            Some(true) => EosHandling::Ignore,
            _ => EosHandling::Stop,
        };
        let stop = StopCriteria { strings: stop_strings(fields)?, eos };
        Ok(Self { n, sampling: sampling(fields)?, stop, stream_mode: stream_mode(fields)? })
    }
}

/// Rejects unsupported fields that would change the result.
fn reject_unsupported(fields: &JsonObject) -> Result<(), ApiError> {
    let zero =
        |data: &OrderedJson| matches!(data, OrderedJson::Number(number) if number.as_f64() == Some(0.0));
    let empty = |data: &OrderedJson| match data {
        OrderedJson::Map(map) => map.is_empty(),
        OrderedJson::List(list) => list.is_empty(),
        OrderedJson::Text(text) => text.is_empty(),
        OrderedJson::Bool(flag) => !flag,
        _ => false,
    };
    for key in ["presence_penalty", "frequency_penalty", "min_tokens"] {
        fields.reject_unless(key, zero)?;
    }
    let others = [
        "logit_bias",
        "stop_token_ids",
        "use_beam_search",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "structured_outputs",
    ];
    for key in others {
        fields.reject_unless(key, empty)?;
    }
    response_format(fields)
}

/// Accepts plain text only: the model is not constrained to a grammar.
fn response_format(fields: &JsonObject) -> Result<(), ApiError> {
    let key = "response_format";
    let Some(format) = fields.object(key)? else { return Ok(()) };
    match format.text("type")? {
        Some("text") => Ok(()),
        found => {
            let found = found.map_or_else(String::new, |kind| format!(" of type `{kind}`"));
            let message =
                format!("`{key}`{found} is not supported; use `{{\"type\": \"text\"}}`, or remove it");
            Err(ApiError::invalid_field(key, message))
        }
    }
}

fn sampling(fields: &JsonObject) -> Result<Sampling, ApiError> {
    let sampling = Sampling {
        temperature: fields.number("temperature")?.unwrap_or(1.0),
        // Some clients send 0 or -1 for all tokens.
        top_k: match fields.integer("top_k")? {
            Some(count) if count > 0 => Some(usize::try_from(count).unwrap_or(usize::MAX)),
            Some(-1 | 0) | None => None,
            Some(_) => {
                return Err(ApiError::invalid_field("top_k", "`top_k` must be 1 or more, or -1 for all"));
            }
        },
        // 0 leaves only the most likely token.
        top_p: fields.number("top_p")?.map(|share| if share == 0.0 { f64::MIN_POSITIVE } else { share }),
        min_p: fields.number("min_p")?,
        repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(1.0),
        seed: match fields.integer("seed")? {
            Some(seed) => seed as u64,
            None => random_u64(),
        },
    };
    sampling.check().map_err(|error| ApiError::invalid_field(error.key, error.to_string()))?;
    Ok(sampling)
}

fn stop_strings(fields: &JsonObject) -> Result<Vec<String>, ApiError> {
    let stops: Vec<String> = match fields.get("stop") {
        None => Vec::new(),
        Some(OrderedJson::Text(text)) => vec![text.clone()],
        Some(OrderedJson::List(list)) => {
            let text = |(at, data): (usize, &OrderedJson)| match data {
                OrderedJson::Text(text) => Ok(text.clone()),
                other => Err(unexpected(&format!("stop[{at}]"), "a string", other)),
            };
            list.iter().enumerate().map(text).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(unexpected("stop", "a string or a list of strings", other)),
    };
    if stops.len() > MAX_STOP_STRINGS {
        let message = format!("`stop` has {} strings, but the limit is {MAX_STOP_STRINGS}", stops.len());
        return Err(ApiError::invalid_field("stop", message));
    }
    let bytes: usize = stops.iter().map(String::len).sum();
    if bytes > MAX_STOP_BYTES {
        return Err(ApiError::invalid_field(
            "stop",
            format!("`stop` has {bytes} bytes, but the limit is {MAX_STOP_BYTES}"),
        ));
    }
    Ok(stops)
}

fn stream_mode(fields: &JsonObject) -> Result<StreamMode, ApiError> {
    let options = fields.object("stream_options")?;
    let usage = options.map(|options| options.flag("include_usage")).transpose()?.flatten();
    Ok(match (fields.flag("stream")?, usage) {
        (Some(true), Some(true)) => StreamMode::WithUsage,
        (Some(true), _) => StreamMode::On,
        _ => StreamMode::Off,
    })
}

/// A random number: the keys of each hasher come from the operating system.
pub(crate) fn random_u64() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn read(text: &str) -> Result<GenerationParams, ApiError> {
        GenerationParams::parse(&JsonObject::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn defaults_are_those_of_openai() {
        let params = read("{}").unwrap();
        assert_eq!((params.n, params.stream_mode, params.stop.eos), (1, StreamMode::Off, EosHandling::Stop));
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = params.sampling;
        assert_eq!((temperature, top_k, top_p, min_p, repetition_penalty), (1.0, None, None, None, 1.0));
        assert_ne!(read("{}").unwrap().sampling.seed, params.sampling.seed);
        assert_eq!(read(r#"{"seed": -1}"#).unwrap().sampling.seed, u64::MAX);
    }

    #[test]
    fn unsupported_fields_are_rejected_only_if_they_change_the_result() {
        for wrong in [
            r#"{"logit_bias": {"5": 1}}"#,
            r#"{"presence_penalty": 0.1}"#,
            r#"{"response_format": {"type": "json_object"}}"#,
            r#"{"guided_json": {"type": "object"}}"#,
            r#"{"n": 0}"#,
            r#"{"top_k": -2}"#,
            r#"{"temperature": -0.5}"#,
            r#"{"top_p": 1.5}"#,
            r#"{"stop": ["a", 1]}"#,
            r#"{"stream_options": 1}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        for right in [
            r#"{"logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0, "user": "me"}"#,
            r#"{"response_format": {"type": "text"}, "top_k": -1, "top_p": 0, "stop": null}"#,
        ] {
            assert!(read(right).is_ok(), "{right}");
        }
    }
}
