//! Requests for answers in a conversation.

use std::time::{SystemTime, UNIX_EPOCH};

use weightloom_hub::Writer;
use weightloom_hub::text::{ChatContext, Data, Message, Moment};

use crate::ask::{Ask, Form, Limits, Prompt, Wanted};
use crate::fields::{Fields, unexpected};
use crate::manner::{MOST_LIKELIEST, Manner};
use crate::message;
use crate::options::ServeOptions;
use crate::refusal::Refusal;

/// Reads and checks a request.
pub(crate) fn read(fields: &Fields, writer: &Writer, options: &ServeOptions) -> Result<Ask, Refusal> {
    let manner = Manner::read(fields)?;
    refuse_unsupported(fields)?;
    let likeliest = likeliest(fields)?;
    let wanted = wanted(fields)?;
    let limits = Limits::new(writer, options);
    limits.check_batch(1, manner.copies)?;
    let messages = messages(fields)?;
    let context = context(fields)?;
    let tokens = writer.chat(&messages, &context).map_err(|error| Refusal::of_model(&error, "messages"))?;
    limits.check_prompt(&tokens, "messages")?;
    let max_new_tokens = limits.new_tokens(tokens.len(), &wanted)?;
    let prompts = vec![Prompt { tokens, echo: None }];
    Ok(Ask { form: Form::Chat, prompts, max_new_tokens, manner, likeliest })
}

/// Fields of conversations that would change the result.
fn refuse_unsupported(fields: &Fields) -> Result<(), Refusal> {
    let is = |text: &'static str| move |data: &Data| *data == Data::from(text);
    let no_functions = |data: &Data| *data == Data::List(Vec::new());
    fields.refuse_unless("functions", no_functions)?;
    fields.refuse_unless("function_call", is("none"))?;
    fields.refuse_unless("audio", |_| false)?;
    fields.refuse_unless("modalities", |data| *data == Data::List(vec![Data::from("text")]))?;
    fields.refuse_unless("add_generation_prompt", |data| *data == Data::Bool(true))?;
    fields.refuse_unless("continue_final_message", |data| *data == Data::Bool(false))?;
    fields.refuse_unless("echo", |data| *data == Data::Bool(false))?;
    fields.refuse_unless("tool_choice", |data| is("none")(data) || is("auto")(data))
}

/// How many of the likeliest tokens are told besides each.
fn likeliest(fields: &Fields) -> Result<Option<usize>, Refusal> {
    let count = fields.count("top_logprobs")?;
    match (fields.flag("logprobs")?.unwrap_or(false), count) {
        (_, Some(count)) if count > MOST_LIKELIEST => {
            Err(Refusal::field("top_logprobs", format!("`top_logprobs` must be at most {MOST_LIKELIEST}")))
        }
        (true, count) => Ok(Some(count.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(Refusal::field("top_logprobs", "`top_logprobs` needs `logprobs` to be true")),
    }
}

fn wanted(fields: &Fields) -> Result<Wanted, Refusal> {
    let older = fields.count("max_tokens")?;
    let newer = fields.count("max_completion_tokens")?;
    let field = if newer.is_some() { "max_completion_tokens" } else { "max_tokens" };
    let asked = newer.or(older);
    if asked == Some(0) {
        return Err(Refusal::field(field, format!("`{field}` must be 1 or more")));
    }
    Ok(Wanted { field, asked, unasked: usize::MAX })
}

fn messages(fields: &Fields) -> Result<Vec<Message>, Refusal> {
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return Err(Refusal::field("messages", "`messages` must be a list with at least one message"));
    }
    list.iter().enumerate().map(|(at, data)| message::read(data, &format!("messages[{at}]"))).collect()
}

/// What the template is told besides the messages. Tools are told unless the
/// model shall not use them; calls that it writes are a part of its text.
fn context(fields: &Fields) -> Result<ChatContext, Refusal> {
    let unused = fields.get("tool_choice") == Some(&Data::from("none"));
    let listed = |key: &str| {
        let list = fields.list(key)?.filter(|list| !list.is_empty());
        for (at, data) in list.unwrap_or_default().iter().enumerate() {
            if !matches!(data, Data::Map(_)) {
                return Err(unexpected(&format!("{key}[{at}]"), "an object", data));
            }
        }
        Ok(list.map(<[Data]>::to_vec))
    };
    let tools = listed("tools")?.filter(|_| !unused);
    let variables = fields.inner("chat_template_kwargs")?.map(Fields::into_pairs).unwrap_or_default();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = Moment::from_unix(seconds);
    Ok(ChatContext { tools, documents: listed("documents")?, now, variables })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn tools_that_must_be_used_are_refused() {
        for wrong in [
            r#"{"tool_choice": "required"}"#,
            r#"{"tool_choice": {"type": "function", "function": {"name": "f"}}}"#,
            r#"{"functions": [{"name": "f"}]}"#,
            r#"{"modalities": ["text", "audio"]}"#,
        ] {
            assert!(refuse_unsupported(&fields(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(refuse_unsupported(&fields(r#"{"tool_choice": "auto", "store": true}"#)), Ok(()));
        let tools = |choice: &str| {
            let text = format!(r#"{{"tools": [{{"type": "function"}}], "tool_choice": "{choice}"}}"#);
            context(&fields(&text)).unwrap().tools.is_some()
        };
        assert!(tools("auto"));
        assert!(!tools("none"));
    }

    #[test]
    fn probabilities_must_be_asked_for_as_a_whole() {
        assert_eq!(likeliest(&fields("{}")), Ok(None));
        assert_eq!(likeliest(&fields(r#"{"logprobs": true}"#)), Ok(Some(0)));
        assert_eq!(likeliest(&fields(r#"{"logprobs": true, "top_logprobs": 3}"#)), Ok(Some(3)));
        assert!(likeliest(&fields(r#"{"top_logprobs": 3}"#)).is_err());
        assert!(likeliest(&fields(r#"{"logprobs": true, "top_logprobs": 21}"#)).is_err());
        assert!(likeliest(&fields(r#"{"logprobs": 3}"#)).is_err());
    }
}
