//! How answers are written and sent: what both forms of requests can say.

use std::hash::{BuildHasher, Hasher, RandomState};

use weightloom_hub::Ends;
use weightloom_hub::text::Data;
use weightloom_nn::Sampling;

use crate::fields::{Fields, unexpected};
use crate::refusal::Refusal;

/// Texts to stop at, and their bytes in all. Each token is compared with all
/// of them.
const MOST_STOPS: usize = 64;
const MOST_STOP_BYTES: usize = 1 << 14;

/// The most tokens that can be told besides each.
pub(crate) const MOST_LIKELIEST: usize = 20;

/// How answers are written and sent.
pub(crate) struct Manner {
    /// Answers for each prompt.
    pub(crate) copies: usize,
    pub(crate) sampling: Sampling,
    pub(crate) stop: Vec<String>,
    pub(crate) ends: Ends,
    pub(crate) delivery: Delivery,
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// All at once.
    Whole,
    /// As it is written.
    Stream,
    /// As it is written, and how many tokens there were.
    StreamWithUsage,
}

impl Manner {
    pub(crate) fn read(fields: &Fields) -> Result<Self, Refusal> {
        refuse_unsupported(fields)?;
        let copies = fields.count("n")?.unwrap_or(1);
        if copies == 0 {
            return Err(Refusal::field("n", "`n` must be 1 or more"));
        }
        let ends = match fields.flag("ignore_eos")? {
            Some(true) => Ends::Ignored,
            _ => Ends::Heeded,
        };
        let (sampling, stop) = (sampling(fields)?, stops(fields)?);
        Ok(Self { copies, sampling, stop, ends, delivery: delivery(fields)? })
    }
}

/// Fields that would change the result, and that we do not know.
fn refuse_unsupported(fields: &Fields) -> Result<(), Refusal> {
    let zero = |data: &Data| matches!(data, Data::Number(number) if number.as_f64() == Some(0.0));
    let empty = |data: &Data| match data {
        Data::Map(map) => map.is_empty(),
        Data::List(list) => list.is_empty(),
        Data::Text(text) => text.is_empty(),
        Data::Bool(flag) => !flag,
        _ => false,
    };
    for key in ["presence_penalty", "frequency_penalty", "min_tokens"] {
        fields.refuse_unless(key, zero)?;
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
        fields.refuse_unless(key, empty)?;
    }
    let of_text = |data: &Data| match data {
        Data::Map(map) => map.iter().any(|(key, value)| key == "type" && *value == Data::from("text")),
        _ => false,
    };
    fields.refuse_unless("response_format", of_text)
}

fn sampling(fields: &Fields) -> Result<Sampling, Refusal> {
    let sampling = Sampling {
        temperature: fields.number("temperature")?.unwrap_or(1.0),
        // Some say 0 or -1 for all.
        top_k: match fields.integer("top_k")? {
            Some(count) if count > 0 => Some(usize::try_from(count).unwrap_or(usize::MAX)),
            Some(-1 | 0) | None => None,
            Some(_) => return Err(Refusal::field("top_k", "`top_k` must be 1 or more, or -1 for all")),
        },
        // 0 leaves the likeliest alone.
        top_p: fields.number("top_p")?.map(|share| if share == 0.0 { f64::MIN_POSITIVE } else { share }),
        min_p: fields.number("min_p")?,
        repetition_penalty: fields.number("repetition_penalty")?.unwrap_or(1.0),
        seed: match fields.integer("seed")? {
            Some(seed) => seed as u64,
            None => chance(),
        },
    };
    sampling.check().map_err(|error| Refusal::field(error.key, error.to_string()))?;
    Ok(sampling)
}

fn stops(fields: &Fields) -> Result<Vec<String>, Refusal> {
    let stops: Vec<String> = match fields.get("stop") {
        None => Vec::new(),
        Some(Data::Text(text)) => vec![text.clone()],
        Some(Data::List(list)) => {
            let text = |(at, data): (usize, &Data)| match data {
                Data::Text(text) => Ok(text.clone()),
                other => Err(unexpected(&format!("stop[{at}]"), "a string", other)),
            };
            list.iter().enumerate().map(text).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(unexpected("stop", "a string or a list of strings", other)),
    };
    if stops.len() > MOST_STOPS {
        let message = format!("`stop` has {} texts, more than {MOST_STOPS}", stops.len());
        return Err(Refusal::field("stop", message));
    }
    let bytes: usize = stops.iter().map(String::len).sum();
    if bytes > MOST_STOP_BYTES {
        return Err(Refusal::field("stop", format!("`stop` has {bytes} bytes, more than {MOST_STOP_BYTES}")));
    }
    Ok(stops)
}

fn delivery(fields: &Fields) -> Result<Delivery, Refusal> {
    let options = fields.inner("stream_options")?;
    let usage = options.map(|options| options.flag("include_usage")).transpose()?.flatten();
    Ok(match (fields.flag("stream")?, usage) {
        (Some(true), Some(true)) => Delivery::StreamWithUsage,
        (Some(true), _) => Delivery::Stream,
        _ => Delivery::Whole,
    })
}

/// A number that nobody foresees. Each hasher has its own keys, which the
/// system draws.
pub(crate) fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn read(text: &str) -> Result<Manner, Refusal> {
        Manner::read(&Fields::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn what_is_not_said_is_as_openai_has_it() {
        let manner = read("{}").unwrap();
        assert_eq!((manner.copies, manner.delivery, manner.ends), (1, Delivery::Whole, Ends::Heeded));
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = manner.sampling;
        assert_eq!((temperature, top_k, top_p, min_p, repetition_penalty), (1.0, None, None, None, 1.0));
        assert_ne!(read("{}").unwrap().sampling.seed, manner.sampling.seed);
        assert_eq!(read(r#"{"seed": -1}"#).unwrap().sampling.seed, u64::MAX);
    }

    #[test]
    fn what_would_change_the_result_is_refused_and_what_would_not_is_passed_over() {
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
