//! `POST /v1/completions`.

use weightloom_hub::TextGenerator;
use weightloom_hub::text::{OrderedJson, Special, SpecialText};

use crate::api_error::ApiError;
use crate::generation_params::{GenerationParams, MAX_TOP_LOGPROBS, StreamMode};
use crate::json_object::{JsonObject, unexpected};
use crate::memory::MemoryNeed;
use crate::request::{CompletionRequest, Echo, Endpoint, Limits, Prompt, TokenBudget};
use crate::request_keys::check_keys;

/// The default of `max_tokens`, as in the OpenAI API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// Parses and validates a request.
pub(crate) fn parse(
    fields: &JsonObject,
    generator: &TextGenerator,
    limits: &Limits,
) -> Result<CompletionRequest, ApiError> {
    check_keys(fields, Endpoint::Completion)?;
    let params = GenerationParams::parse(fields)?;
    fields.reject_unless("suffix", |data| *data == OrderedJson::from(""))?;
    if let Some(best_of) = fields.count("best_of")?
        && best_of != params.n
    {
        let message = format!("`best_of` is {best_of}, but must equal `n`");
        return Err(ApiError::invalid_field("best_of", message));
    }
    let top_logprobs = fields.count("logprobs")?;
    if top_logprobs.is_some_and(|count| count > MAX_TOP_LOGPROBS) {
        return Err(ApiError::invalid_field(
            "logprobs",
            format!("`logprobs` must be at most {MAX_TOP_LOGPROBS}"),
        ));
    }
    // Before anything is made of a million prompts.
    if let Some(OrderedJson::List(list)) = fields.get("prompt")
        && !matches!(list.first(), Some(OrderedJson::Number(_)))
    {
        limits.check_batch(list.len(), params.n)?;
    }
    let given = given_prompts(fields)?;
    limits.check_batch(given.len(), params.n)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let offsets = if top_logprobs.is_some() { Offsets::Include } else { Offsets::Omit };
    let mut prompts = Vec::new();
    for (place, given) in given {
        if let GivenPrompt::Text(text) = &given {
            limits.check_text(text, &place)?;
        }
        let tokens = given.tokens(generator)?;
        limits.check_prompt(&tokens, &place)?;
        let echo = if echo { Some(given.echo(&tokens, generator, offsets)?) } else { None };
        prompts.push(Prompt { tokens, echo });
    }
    let budget = TokenBudget {
        field: "max_tokens",
        requested: fields.count("max_tokens")?,
        default: DEFAULT_MAX_TOKENS,
    };
    let lengths = prompts.iter().map(|prompt| prompt.tokens.len());
    let need = MemoryNeed {
        rows: prompts.len() * params.n,
        longest: lengths.clone().max().unwrap_or(0),
        prompt_tokens: lengths.sum(),
        reported: (params.stream_mode == StreamMode::Off).then(|| top_logprobs.unwrap_or(0)),
        prompt_reported: top_logprobs.filter(|_| echo),
    };
    let max_new_tokens = limits.new_tokens(&need, &budget)?;
    Ok(CompletionRequest { endpoint: Endpoint::Completion, prompts, max_new_tokens, params, top_logprobs })
}

/// A prompt as text or tokens.
#[derive(Debug, PartialEq)]
enum GivenPrompt<'a> {
    Text(&'a str),
    Tokens(Vec<u32>),
}

/// All prompts with their places in the request.
fn given_prompts(fields: &JsonObject) -> Result<Vec<(String, GivenPrompt<'_>)>, ApiError> {
    let place = "prompt".to_owned();
    let list = match fields.get("prompt") {
        None => return Err(ApiError::invalid_field("prompt", "`prompt` is missing")),
        Some(OrderedJson::Text(text)) => return Ok(vec![(place, GivenPrompt::Text(text))]),
        Some(OrderedJson::List(list)) => list,
        Some(other) => return Err(unexpected("prompt", "a string, tokens, or a list of these", other)),
    };
    match list.first() {
        None => Err(ApiError::invalid_field("prompt", "`prompt` is an empty list")),
        Some(OrderedJson::Number(_)) => Ok(vec![(place.clone(), GivenPrompt::Tokens(tokens(list, &place)?))]),
        Some(_) => {
            list.iter().enumerate().map(|(at, data)| given_prompt(data, format!("prompt[{at}]"))).collect()
        }
    }
}

/// One prompt of a list.
fn given_prompt(data: &OrderedJson, place: String) -> Result<(String, GivenPrompt<'_>), ApiError> {
    let given = match data {
        OrderedJson::Text(text) => GivenPrompt::Text(text),
        OrderedJson::List(list) => GivenPrompt::Tokens(tokens(list, &place)?),
        other => return Err(unexpected(&place, "a string or a list of tokens", other)),
    };
    Ok((place, given))
}

fn tokens(list: &[OrderedJson], place: &str) -> Result<Vec<u32>, ApiError> {
    let token = |(at, data): (usize, &OrderedJson)| {
        let token = match data {
            OrderedJson::Number(number) => number.as_u64().and_then(|token| u32::try_from(token).ok()),
            _ => None,
        };
        token.ok_or_else(|| unexpected(&format!("{place}[{at}]"), "a token", data))
    };
    list.iter().enumerate().map(token).collect()
}

impl GivenPrompt<'_> {
    fn tokens(&self, generator: &TextGenerator) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Text(text) => {
                generator.encode_prompt(text).map_err(|error| ApiError::from_model(&error, "prompt"))
            }
            Self::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    fn echo(&self, tokens: &[u32], generator: &TextGenerator, offsets: Offsets) -> Result<Echo, ApiError> {
        let tokenizer = &generator.tokenizer;
        let text = match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Tokens(tokens) => tokenizer.decode(tokens, SpecialText::Skip),
        };
        let offsets = match (offsets, self) {
            (Offsets::Omit, _) => Vec::new(),
            (Offsets::Include, Self::Text(text)) => {
                let encoded = tokenizer.encode_with_offsets(text, Special::Add);
                let encoded = encoded.map_err(|error| ApiError::from_model(&error.into(), "prompt"))?;
                let starts = encoded.offsets.iter().map(|range| range.start);
                character_offsets(text, starts, tokens.len())
            }
            (Offsets::Include, Self::Tokens(tokens)) => {
                let mut streamer = tokenizer.streamer(SpecialText::Skip);
                let mut decoded = 0;
                let start = |&token: &u32| {
                    let start = decoded;
                    decoded += streamer.push(token).map_or(0, |text| text.chars().count());
                    start
                };
                tokens.iter().map(start).collect()
            }
        };
        Ok(Echo { text, offsets })
    }
}

/// Converts byte offsets to non-decreasing character offsets. Special tokens,
/// which are not in the text, have offset 0.
fn character_offsets(text: &str, starts: impl Iterator<Item = usize>, count: usize) -> Vec<usize> {
    let (mut bytes, mut characters) = (0, 0);
    let mut offsets: Vec<usize> = starts
        .map(|start| {
            if let Some(between) = text.get(bytes..start) {
                characters += between.chars().count();
                bytes = start;
            }
            characters
        })
        .collect();
    offsets.resize(count, characters);
    offsets
}

/// Whether to compute the offsets of tokens.
#[derive(Clone, Copy)]
enum Offsets {
    Include,
    Omit,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn fields(text: &str) -> JsonObject {
        JsonObject::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn prompts_are_strings_tokens_or_lists_of_them() {
        let count = |text: &str| given_prompts(&fields(text)).map(|given| given.len()).ok();
        assert_eq!(count(r#"{"prompt": "a"}"#), Some(1));
        assert_eq!(count(r#"{"prompt": ["a", "b"]}"#), Some(2));
        assert_eq!(count(r#"{"prompt": [1, 2, 3]}"#), Some(1));
        assert_eq!(count(r#"{"prompt": [[1, 2], [3]]}"#), Some(2));
        for wrong in
            ["{}", r#"{"prompt": []}"#, r#"{"prompt": 5}"#, r#"{"prompt": {}}"#, r#"{"prompt": [{}]}"#]
        {
            assert_eq!(count(wrong), None, "{wrong}");
        }
        let refused = |text: &str| given_prompts(&fields(text)).unwrap_err().message().to_owned();
        assert_eq!(refused(r#"{"prompt": [1, -2]}"#), "`prompt[1]` must be a token, not -2");
        assert_eq!(refused(r#"{"prompt": [[1], [true]]}"#), "`prompt[1][0]` must be a token, not true");
        assert_eq!(
            refused(r#"{"prompt": ["a", 3]}"#),
            "`prompt[1]` must be a string or a list of tokens, not 3"
        );
    }

    #[test]
    fn offsets_count_characters_and_never_decrease() {
        // A token at the start that is not in the text, then one for each of
        // the bytes of two characters, then one at the end that is not there.
        let starts = [0, 0, 0, 2, 2, 2, 0];
        assert_eq!(character_offsets("é€", starts.into_iter(), 7), [0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(character_offsets("", [].into_iter(), 1), [0]);
    }
}
