//! The keys that requests may have.
//!
//! A misspelled key would be ignored in silence, and its default used. So every
//! key that is not listed here is rejected.

use weightloom_errors::nearest;

use crate::api_error::ApiError;
use crate::json_object::JsonObject;
use crate::request::Endpoint;

/// Keys of both endpoints. Some are supported only with values that have no
/// effect, which their parsers check.
const SHARED: [&str; 28] = [
    "model",
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "ignore_eos",
    "stream",
    "stream_options",
    "logprobs",
    "max_tokens",
    "echo",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "logit_bias",
    "stop_token_ids",
    "use_beam_search",
    "response_format",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "structured_outputs",
];

/// Keys of OpenAI's API that are accepted and ignored, because they do not change
/// the answer: they are about accounts, storage, caching and speed.
const HARMLESS: [&str; 8] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
];

const COMPLETION: [&str; 3] = ["prompt", "suffix", "best_of"];

const CHAT: [&str; 13] = [
    "messages",
    "max_completion_tokens",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "documents",
    "audio",
    "modalities",
    "chat_template_kwargs",
    "add_generation_prompt",
];

/// Keys of vLLM's chat endpoint.
const CHAT_TEMPLATE: [&str; 1] = ["continue_final_message"];

/// Rejects a request with an unknown key. A key that is `null` counts as absent.
pub(crate) fn check_keys(fields: &JsonObject, endpoint: Endpoint) -> Result<(), ApiError> {
    let own: Vec<&str> = match endpoint {
        Endpoint::Completion => COMPLETION.to_vec(),
        Endpoint::Chat => CHAT.into_iter().chain(CHAT_TEMPLATE).collect(),
    };
    let known: Vec<&str> = SHARED.into_iter().chain(HARMLESS).chain(own).collect();
    match fields.keys().find(|key| !known.contains(key)) {
        None => Ok(()),
        Some(key) => {
            let hint = match nearest(key, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "remove it".to_owned(),
            };
            let shown: String = key.chars().take(100).collect();
            Err(ApiError::invalid_field(&shown, format!("unknown field `{shown}`; {hint}")))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn check(text: &str, endpoint: Endpoint) -> Result<(), ApiError> {
        check_keys(&JsonObject::parse(text.as_bytes()).unwrap(), endpoint)
    }

    #[test]
    fn unknown_keys_are_rejected_and_harmless_ones_are_not() {
        let error = check(r#"{"temprature": 0}"#, Endpoint::Completion).unwrap_err();
        assert_eq!(error.message(), "unknown field `temprature`; did you mean `temperature`?");
        let error = check(r#"{"zzzzzzzzzz": 0}"#, Endpoint::Chat).unwrap_err();
        assert_eq!(error.message(), "unknown field `zzzzzzzzzz`; remove it");
        // A key of the other endpoint.
        assert!(check(r#"{"messages": []}"#, Endpoint::Completion).is_err());
        assert!(check(r#"{"prompt": ""}"#, Endpoint::Chat).is_err());
        let harmless = r#"{"user": "me", "store": true, "metadata": {}, "service_tier": "auto",
            "stream_options": {"include_usage": true}, "reasoning_effort": null}"#;
        for endpoint in [Endpoint::Completion, Endpoint::Chat] {
            assert_eq!(check(harmless, endpoint), Ok(()));
        }
        assert_eq!(check(r#"{"parallel_tool_calls": true}"#, Endpoint::Chat), Ok(()));
    }
}
