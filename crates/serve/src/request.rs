//! A validated request.

use weightloom_hub::TextGenerator;

use crate::api_error::ApiError;
use crate::generation_params::GenerationParams;
use crate::memory::{MemoryNeed, ModelMemory};
use crate::options::ServeOptions;
use axum::http::StatusCode;

/// A validated request for completions.
pub(crate) struct CompletionRequest {
    pub(crate) endpoint: Endpoint,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) max_new_tokens: usize,
    pub(crate) params: GenerationParams,
    /// The number of most likely tokens to report at each position.
    pub(crate) top_logprobs: Option<usize>,
}

/// The endpoint of a request, which determines the format of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Completion,
    Chat,
}

/// A tokenized prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Set if the response repeats it.
    pub(crate) echo: Option<Echo>,
}

/// The text of a prompt in the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Echo {
    pub(crate) text: String,
    /// The offset of each token in characters.
    pub(crate) offsets: Vec<usize>,
}

impl Endpoint {
    /// The field with the prompt.
    pub(crate) fn prompt_field(self) -> &'static str {
        match self {
            Self::Completion => "prompt",
            Self::Chat => "messages",
        }
    }
}

impl CompletionRequest {
    /// The prompt of a row.
    pub(crate) fn prompt_of(&self, row: usize) -> &Prompt {
        &self.prompts[row / self.params.n]
    }

    /// The number of completions: `n` for each prompt.
    pub(crate) fn rows(&self) -> usize {
        self.prompts.len() * self.params.n
    }

    /// The number of log-probabilities to report for prompt tokens.
    pub(crate) fn prompt_logprobs(&self) -> Option<usize> {
        self.top_logprobs.filter(|_| self.prompts.iter().any(|prompt| prompt.echo.is_some()))
    }
}

/// Limits of the model and the server.
pub(crate) struct Limits {
    positions: usize,
    memory: ModelMemory,
    cache_bytes: u64,
    /// Bytes of the longest token: no text has fewer tokens than its bytes by this.
    token_bytes: usize,
    prompt_tokens: usize,
    new_tokens: usize,
    batch: usize,
}

/// The requested number of new tokens.
pub(crate) struct TokenBudget {
    /// The field it comes from.
    pub(crate) field: &'static str,
    pub(crate) requested: Option<usize>,
    pub(crate) default: usize,
}

impl Limits {
    pub(crate) fn new(generator: &TextGenerator, options: &ServeOptions) -> Self {
        let definition = generator.model.definition();
        let vocabulary = definition.vocabulary();
        let memory =
            ModelMemory { cache_bytes_per_token: generator.model.cache_bytes_per_token(), vocabulary };
        let tokens = (0..u32::try_from(vocabulary).unwrap_or(u32::MAX)).filter_map(|id| {
            let text = generator.tokenizer.token(id)?.len();
            Some(generator.tokenizer.token_bytes(id).map_or(text, |bytes| bytes.len().max(text)))
        });
        Self {
            positions: definition.context_length().unwrap_or(usize::MAX),
            memory,
            cache_bytes: options.max_cache_bytes,
            token_bytes: tokens.max().unwrap_or(1),
            prompt_tokens: options.max_prompt_tokens.unwrap_or(usize::MAX),
            new_tokens: options.max_new_tokens.unwrap_or(usize::MAX),
            batch: options.max_batch,
        }
    }

    pub(crate) fn check_batch(&self, prompts: usize, n: usize) -> Result<(), ApiError> {
        let fits = prompts.checked_mul(n).is_some_and(|rows| rows <= self.batch);
        let message =
            || format!("{prompts} prompts with n={n} exceed the limit of {} completions", self.batch);
        if fits {
            Ok(())
        } else {
            Err(ApiError::invalid_field(if n > 1 { "n" } else { "prompt" }, message()))
        }
    }

    /// Refuses a text that cannot fit whatever its tokens are, before it is
    /// tokenized.
    pub(crate) fn check_text(&self, text: &str, place: &str) -> Result<(), ApiError> {
        let tokens = self.positions.min(self.prompt_tokens);
        let (found, most) = (text.len(), tokens.saturating_mul(self.token_bytes));
        if found <= most {
            return Ok(());
        }
        let message = format!(
            "`{place}` has {found} bytes, which are more than {tokens} tokens, the most that a prompt may have"
        );
        let code = "context_length_exceeded";
        Err(ApiError::with_code(StatusCode::BAD_REQUEST, code, Some(place), message))
    }

    pub(crate) fn check_prompt(&self, tokens: &[u32], place: &str) -> Result<(), ApiError> {
        if tokens.is_empty() {
            return Err(ApiError::invalid_field(place, format!("`{place}` has no tokens")));
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.memory.vocabulary) {
            let size = self.memory.vocabulary;
            let message = format!("`{place}` contains token {token}, but the vocabulary has {size} tokens");
            return Err(ApiError::invalid_field(place, message));
        }
        let (count, most) = (tokens.len(), self.prompt_tokens);
        if count > most && count <= self.positions {
            let message = format!("`{place}` has {count} tokens, but the limit is {most}");
            return Err(ApiError::with_code(
                StatusCode::BAD_REQUEST,
                "prompt_too_long",
                Some(place),
                message,
            ));
        }
        Ok(())
    }

    /// The maximum number of new tokens after some prompts.
    pub(crate) fn new_tokens(&self, need: &MemoryNeed, budget: &TokenBudget) -> Result<usize, ApiError> {
        let TokenBudget { field, requested, default } = *budget;
        let longest = need.longest;
        let room = self.positions.saturating_sub(longest);
        let affordable = need.affordable(room, self.cache_bytes, self.memory);
        let most = room.min(self.new_tokens).min(affordable.unwrap_or(0));
        let count = requested.unwrap_or_else(|| default.min(most).max(1));
        if count > room || longest > self.positions {
            let (positions, sum) = (self.positions, longest.saturating_add(count));
            let message = format!(
                "the model's maximum context length is {positions} tokens, but the request needs {sum}: \
                 {longest} for the prompt and {count} for the completion"
            );
            let code = "context_length_exceeded";
            return Err(ApiError::with_code(StatusCode::BAD_REQUEST, code, Some(field), message));
        }
        if count > self.new_tokens {
            let most = self.new_tokens;
            let message = format!("`{field}` is {count}, but the limit is {most}");
            return Err(ApiError::invalid_field(field, message));
        }
        if affordable.is_none_or(|affordable| affordable < count) {
            let (needed, limit) = (mebibytes(need.bytes(count, self.memory)), mebibytes(self.cache_bytes));
            let message = format!(
                "the request needs {needed} MiB of memory for {} completions of up to {count} tokens after \
                 prompts of up to {longest}, but the limit is {limit} MiB; lower `{field}`, `n` or the number of \
                 prompts, or start the server with a larger --cache-memory",
                need.rows
            );
            let code = "memory_limit_exceeded";
            return Err(ApiError::with_code(StatusCode::BAD_REQUEST, code, Some(field), message));
        }
        Ok(count)
    }
}

fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
