//! `POST /v1/chat/completions`.

use std::time::{SystemTime, UNIX_EPOCH};

use weightloom_hub::text::{ChatContext, Message, OrderedJson, Timestamp};
use weightloom_hub::{HubError, TextGenerator};

use crate::api_error::ApiError;
use crate::generation_params::{GenerationParams, MAX_TOP_LOGPROBS, StreamMode};
use crate::json_object::{JsonObject, unexpected};
use crate::memory::MemoryNeed;
use crate::message;
use crate::request::{CompletionRequest, Endpoint, Limits, Prompt, TokenBudget};
use crate::request_keys::check_keys;

/// Parses and validates a request.
pub(crate) fn parse(
    fields: &JsonObject,
    generator: &TextGenerator,
    limits: &Limits,
) -> Result<CompletionRequest, ApiError> {
    check_keys(fields, Endpoint::Chat)?;
    let params = GenerationParams::parse(fields)?;
    reject_unsupported(fields)?;
    let top_logprobs = top_logprobs(fields)?;
    let budget = budget(fields)?;
    limits.check_batch(1, params.n)?;
    let messages = messages(fields)?;
    let context = context(fields)?;
    check_template(generator, &context)?;
    let failed = |error: HubError| ApiError::from_model(&error, "messages");
    let text = generator.render_chat(&messages, &context).map_err(failed)?;
    drop((messages, context));
    limits.check_text(&text, "messages")?;
    let tokens = generator.encode_rendered(&text).map_err(failed)?;
    limits.check_prompt(&tokens, "messages")?;
    let need = MemoryNeed {
        rows: params.n,
        longest: tokens.len(),
        prompt_tokens: tokens.len(),
        reported: (params.stream_mode == StreamMode::Off).then(|| top_logprobs.unwrap_or(0)),
        prompt_reported: None,
    };
    let max_new_tokens = limits.new_tokens(&need, &budget)?;
    let prompts = vec![Prompt { tokens, echo: None }];
    Ok(CompletionRequest { endpoint: Endpoint::Chat, prompts, max_new_tokens, params, top_logprobs })
}

/// Rejects unsupported fields that would change the result.
fn reject_unsupported(fields: &JsonObject) -> Result<(), ApiError> {
    let is = |text: &'static str| move |data: &OrderedJson| *data == OrderedJson::from(text);
    let no_functions = |data: &OrderedJson| *data == OrderedJson::List(Vec::new());
    fields.reject_unless("functions", no_functions)?;
    fields.reject_unless("function_call", is("none"))?;
    fields.reject_unless("audio", |_| false)?;
    fields.reject_unless("modalities", |data| *data == OrderedJson::List(vec![OrderedJson::from("text")]))?;
    fields.reject_unless("add_generation_prompt", |data| *data == OrderedJson::Bool(true))?;
    fields.reject_unless("continue_final_message", |data| *data == OrderedJson::Bool(false))?;
    fields.reject_unless("echo", |data| *data == OrderedJson::Bool(false))?;
    fields.reject_unless("tool_choice", |data| is("none")(data) || is("auto")(data))
}

/// Rejects tools and documents that the model's chat template would ignore.
fn check_template(generator: &TextGenerator, context: &ChatContext) -> Result<(), ApiError> {
    // A model without a template is reported when the messages are encoded.
    let Some(template) = generator.templates.pick(context) else { return Ok(()) };
    let given = [("tools", context.tools.is_some()), ("documents", context.documents.is_some())];
    match given.into_iter().find(|(key, given)| *given && !template.source().contains(key)) {
        Some((key, _)) => Err(ApiError::invalid_field(
            key,
            format!("`{key}` is not supported: the chat template of this model does not use it; remove it"),
        )),
        None => Ok(()),
    }
}

/// The number of most likely tokens to report at each position.
fn top_logprobs(fields: &JsonObject) -> Result<Option<usize>, ApiError> {
    let count = fields.count("top_logprobs")?;
    match (fields.flag("logprobs")?.unwrap_or(false), count) {
        (_, Some(count)) if count > MAX_TOP_LOGPROBS => Err(ApiError::invalid_field(
            "top_logprobs",
            format!("`top_logprobs` must be at most {MAX_TOP_LOGPROBS}"),
        )),
        (true, count) => Ok(Some(count.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::invalid_field("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
    }
}

fn budget(fields: &JsonObject) -> Result<TokenBudget, ApiError> {
    let older = fields.count("max_tokens")?;
    let newer = fields.count("max_completion_tokens")?;
    let field = if newer.is_some() { "max_completion_tokens" } else { "max_tokens" };
    let requested = newer.or(older);
    if requested == Some(0) {
        return Err(ApiError::invalid_field(field, format!("`{field}` must be 1 or more")));
    }
    Ok(TokenBudget { field, requested, default: usize::MAX })
}

fn messages(fields: &JsonObject) -> Result<Vec<Message>, ApiError> {
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return Err(ApiError::invalid_field(
            "messages",
            "`messages` must be a list with at least one message",
        ));
    }
    list.iter().enumerate().map(|(at, data)| message::parse(data, &format!("messages[{at}]"))).collect()
}

/// The template context. It has the tools unless `tool_choice` is `none`; tool
/// calls of the model are part of its text.
fn context(fields: &JsonObject) -> Result<ChatContext, ApiError> {
    let unused = fields.get("tool_choice") == Some(&OrderedJson::from("none"));
    let listed = |key: &str| {
        let list = fields.list(key)?.filter(|list| !list.is_empty());
        for (at, data) in list.unwrap_or_default().iter().enumerate() {
            if !matches!(data, OrderedJson::Map(_)) {
                return Err(unexpected(&format!("{key}[{at}]"), "an object", data));
            }
        }
        Ok(list.map(<[OrderedJson]>::to_vec))
    };
    let tools = listed("tools")?.filter(|_| !unused);
    let variables = fields.object("chat_template_kwargs")?.map(JsonObject::into_pairs).unwrap_or_default();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let now = Timestamp::from_unix(seconds);
    Ok(ChatContext { tools, documents: listed("documents")?, now, variables })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn fields(text: &str) -> JsonObject {
        JsonObject::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn required_tools_are_rejected() {
        for wrong in [
            r#"{"tool_choice": "required"}"#,
            r#"{"tool_choice": {"type": "function", "function": {"name": "f"}}}"#,
            r#"{"functions": [{"name": "f"}]}"#,
            r#"{"modalities": ["text", "audio"]}"#,
        ] {
            assert!(reject_unsupported(&fields(wrong)).is_err(), "{wrong}");
        }
        assert_eq!(reject_unsupported(&fields(r#"{"tool_choice": "auto", "store": true}"#)), Ok(()));
        let tools = |choice: &str| {
            let text = format!(r#"{{"tools": [{{"type": "function"}}], "tool_choice": "{choice}"}}"#);
            context(&fields(&text)).unwrap().tools.is_some()
        };
        assert!(tools("auto"));
        assert!(!tools("none"));
    }

    #[test]
    fn top_logprobs_requires_logprobs() {
        assert_eq!(top_logprobs(&fields("{}")), Ok(None));
        assert_eq!(top_logprobs(&fields(r#"{"logprobs": true}"#)), Ok(Some(0)));
        assert_eq!(top_logprobs(&fields(r#"{"logprobs": true, "top_logprobs": 3}"#)), Ok(Some(3)));
        assert!(top_logprobs(&fields(r#"{"top_logprobs": 3}"#)).is_err());
        assert!(top_logprobs(&fields(r#"{"logprobs": true, "top_logprobs": 21}"#)).is_err());
        assert!(top_logprobs(&fields(r#"{"logprobs": 3}"#)).is_err());
    }
}
