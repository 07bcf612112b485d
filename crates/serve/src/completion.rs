//! Requests for completions, in the legacy form.

use weightloom_hub::Writer;
use weightloom_hub::text::{Data, Special, SpecialText};

use crate::ask::{Ask, Echo, Form, Limits, Prompt, Wanted};
use crate::fields::{Fields, unexpected};
use crate::manner::{MOST_LIKELIEST, Manner};
use crate::options::ServeOptions;
use crate::refusal::Refusal;

/// Tokens that are written if nobody says how many.
const UNASKED: usize = 16;

/// Reads and checks a request.
pub(crate) fn read(fields: &Fields, writer: &Writer, options: &ServeOptions) -> Result<Ask, Refusal> {
    let manner = Manner::read(fields)?;
    fields.refuse_unless("suffix", |data| *data == Data::from(""))?;
    if let Some(best_of) = fields.count("best_of")?
        && best_of != manner.copies
    {
        let message = format!("`best_of` is {best_of}, but no others than `n` are written");
        return Err(Refusal::field("best_of", message));
    }
    let likeliest = fields.count("logprobs")?;
    if likeliest.is_some_and(|count| count > MOST_LIKELIEST) {
        return Err(Refusal::field("logprobs", format!("`logprobs` must be at most {MOST_LIKELIEST}")));
    }
    let given = given(fields)?;
    let limits = Limits::new(writer, options);
    limits.check_batch(given.len(), manner.copies)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let places = if likeliest.is_some() { Places::Told } else { Places::Untold };
    let mut prompts = Vec::new();
    for (place, given) in given {
        let tokens = given.tokens(writer)?;
        limits.check_prompt(&tokens, &place)?;
        let echo = if echo { Some(given.echo(&tokens, writer, places)?) } else { None };
        prompts.push(Prompt { tokens, echo });
    }
    let wanted = Wanted { field: "max_tokens", asked: fields.count("max_tokens")?, unasked: UNASKED };
    let longest = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let max_new_tokens = limits.new_tokens(longest, &wanted)?;
    Ok(Ask { form: Form::Completion, prompts, max_new_tokens, manner, likeliest })
}

/// A prompt as it was given.
#[derive(Debug, PartialEq)]
enum Given<'a> {
    Text(&'a str),
    Tokens(Vec<u32>),
}

/// All prompts, each with where it stands.
fn given(fields: &Fields) -> Result<Vec<(String, Given<'_>)>, Refusal> {
    let place = "prompt".to_owned();
    let list = match fields.get("prompt") {
        None => return Err(Refusal::field("prompt", "`prompt` is missing")),
        Some(Data::Text(text)) => return Ok(vec![(place, Given::Text(text))]),
        Some(Data::List(list)) => list,
        Some(other) => return Err(unexpected("prompt", "a string, tokens, or a list of these", other)),
    };
    match list.first() {
        None => Err(Refusal::field("prompt", "`prompt` is an empty list")),
        Some(Data::Number(_)) => Ok(vec![(place.clone(), Given::Tokens(tokens(list, &place)?))]),
        Some(_) => list.iter().enumerate().map(|(at, data)| one(data, format!("prompt[{at}]"))).collect(),
    }
}

/// One prompt of a list.
fn one(data: &Data, place: String) -> Result<(String, Given<'_>), Refusal> {
    let given = match data {
        Data::Text(text) => Given::Text(text),
        Data::List(list) => Given::Tokens(tokens(list, &place)?),
        other => return Err(unexpected(&place, "a string or a list of tokens", other)),
    };
    Ok((place, given))
}

fn tokens(list: &[Data], place: &str) -> Result<Vec<u32>, Refusal> {
    let token = |(at, data): (usize, &Data)| {
        let token = match data {
            Data::Number(number) => number.as_u64().and_then(|token| u32::try_from(token).ok()),
            _ => None,
        };
        token.ok_or_else(|| unexpected(&format!("{place}[{at}]"), "a token", data))
    };
    list.iter().enumerate().map(token).collect()
}

impl Given<'_> {
    fn tokens(&self, writer: &Writer) -> Result<Vec<u32>, Refusal> {
        match self {
            Self::Text(text) => writer.prompt(text).map_err(|error| Refusal::of_model(&error, "prompt")),
            Self::Tokens(tokens) => Ok(tokens.clone()),
        }
    }

    fn echo(&self, tokens: &[u32], writer: &Writer, places: Places) -> Result<Echo, Refusal> {
        let tokenizer = &writer.tokenizer;
        let text = match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Tokens(tokens) => tokenizer.decode(tokens, SpecialText::Skip),
        };
        let offsets = match (places, self) {
            (Places::Untold, _) => Vec::new(),
            (Places::Told, Self::Text(text)) => {
                let encoded = tokenizer.encode_with_offsets(text, Special::Add);
                let encoded = encoded.map_err(|error| Refusal::of_model(&error.into(), "prompt"))?;
                let starts = encoded.offsets.iter().map(|range| range.start);
                in_characters(text, starts, tokens.len())
            }
            (Places::Told, Self::Tokens(tokens)) => {
                let mut streamer = tokenizer.streamer(SpecialText::Skip);
                let mut reached = 0;
                let start = |&token: &u32| {
                    let start = reached;
                    reached += streamer.push(token).map_or(0, |text| text.chars().count());
                    start
                };
                tokens.iter().map(start).collect()
            }
        };
        Ok(Echo { text, offsets })
    }
}

/// Starts in bytes as starts in characters, never going back. Added tokens are
/// nowhere in the text, and say 0.
fn in_characters(text: &str, starts: impl Iterator<Item = usize>, count: usize) -> Vec<usize> {
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

/// Whether it is told where tokens are.
#[derive(Clone, Copy)]
enum Places {
    Told,
    Untold,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn prompts_are_texts_or_tokens_or_lists_of_these() {
        let count = |text: &str| given(&fields(text)).map(|given| given.len()).ok();
        assert_eq!(count(r#"{"prompt": "a"}"#), Some(1));
        assert_eq!(count(r#"{"prompt": ["a", "b"]}"#), Some(2));
        assert_eq!(count(r#"{"prompt": [1, 2, 3]}"#), Some(1));
        assert_eq!(count(r#"{"prompt": [[1, 2], [3]]}"#), Some(2));
        for wrong in
            ["{}", r#"{"prompt": []}"#, r#"{"prompt": 5}"#, r#"{"prompt": {}}"#, r#"{"prompt": [{}]}"#]
        {
            assert_eq!(count(wrong), None, "{wrong}");
        }
        let refused = |text: &str| given(&fields(text)).unwrap_err().message().to_owned();
        assert_eq!(refused(r#"{"prompt": [1, -2]}"#), "`prompt[1]` must be a token, but is -2");
        assert_eq!(refused(r#"{"prompt": [[1], [true]]}"#), "`prompt[1][0]` must be a token, but is true");
        assert_eq!(
            refused(r#"{"prompt": ["a", 3]}"#),
            "`prompt[1]` must be a string or a list of tokens, but is 3"
        );
    }

    #[test]
    fn places_are_counted_in_characters_and_never_go_back() {
        // A token at the start that is not in the text, then one for each of
        // the bytes of two characters, then one at the end that is not there.
        let starts = [0, 0, 0, 2, 2, 2, 0];
        assert_eq!(in_characters("é€", starts.into_iter(), 7), [0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(in_characters("", [].into_iter(), 1), [0]);
    }
}
