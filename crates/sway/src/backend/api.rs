//! Backend over servers with OpenAI's `/v1/completions`, and
//! `/v1/chat/completions` for prompts with messages.
//!
//! Base and tuned model may be on two servers, or on one. Questions are asked
//! in parallel, up to a limit; transient failures are retried. Tokens are
//! identified by their texts: servers send no ids, and the order of top tokens
//! has no meaning.

mod client;
mod echo;
mod echo_check;
mod key;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use weightloom_errors::Hint;
use weightloom_http::{ClientError, IoRuntime, Proxies, RetryPolicy, build_client};

pub use key::ApiKeys;
pub use wire::MAX_LOGPROBS;

use super::preflight::{first_problem, first_problem_with};
use super::{AnswerSink, Backend, Capabilities, Capability, Description};
use crate::answer::Answer;
use crate::chat::{ChatSupport, ChatUsage};
use crate::error::{BackendError, QueryError};
use crate::prompt::{ChatMessage, Prompt, Role};
use crate::question::{Query, Question};
use crate::suite::ServedModel;
use crate::view::View;
use client::{ApiFailure, ModelClient};

/// Name of the backend in suite files.
const KIND: &str = "api";

/// Threads for sockets: responses are short.
const THREADS: usize = 1;

/// Limits of requests to servers.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// Sent to the endpoints that they are for, and nowhere else.
    pub keys: ApiKeys,
    /// Parallel requests.
    pub concurrency: usize,
    /// Limit for one response, unless a model sets `timeout_s`.
    pub timeout: Duration,
    /// Limit for establishing a connection.
    pub connect_timeout: Duration,
    /// Retries of one request.
    pub retry: RetryPolicy,
    /// Proxy servers.
    pub proxies: Proxies,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            keys: ApiKeys::default(),
            concurrency: 4,
            timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            retry: RetryPolicy {
                max_retries: 4,
                max_backoff: Duration::from_secs(8),
                max_retry_after: Duration::from_secs(120),
                ..RetryPolicy::default()
            },
            proxies: Proxies::default(),
        }
    }
}

/// Invalid settings of servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ApiError {
    #[error("invalid endpoint `{endpoint}`: {problem}")]
    Endpoint {
        /// Without secrets.
        endpoint: String,
        problem: String,
    },
    #[error("invalid key in {variable}: it contains a space or a character outside ASCII")]
    Key { variable: &'static str },
    #[error("cannot send the key in {variable} to `{endpoint}`: the connection is not encrypted")]
    InsecureKey {
        variable: &'static str,
        /// Without secrets.
        endpoint: String,
    },
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl Hint for ApiError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Endpoint { .. } => {
                Some("use the root URL of the server, such as http://127.0.0.1:8000".to_owned())
            }
            Self::Key { variable } => Some(format!("set {variable} to the key alone")),
            Self::InsecureKey { variable, .. } => {
                Some(format!("use an https endpoint or one on this machine, or unset {variable}"))
            }
            Self::Client(ClientError::Proxy { variable }) => Some(format!("correct or unset {variable}")),
            Self::Client(_) => None,
        }
    }
}

/// One or two models on servers.
pub struct ApiBackend {
    description: Description,
    base: Arc<ModelClient>,
    /// `None` to measure one model without a comparison.
    tuned: Option<Arc<ModelClient>>,
    concurrency: usize,
    runtime: IoRuntime,
}

impl ApiBackend {
    /// Connects base and tuned model; sends no request yet.
    pub fn new(
        base: &ServedModel,
        tuned: Option<&ServedModel>,
        options: &ApiOptions,
    ) -> Result<Self, ApiError> {
        let http = build_client(options.connect_timeout, &options.proxies)?;
        let client = |served: &ServedModel| ModelClient::new(http.clone(), served, options).map(Arc::new);
        let (base, tuned) = (client(base)?, tuned.map(client).transpose()?);
        let runtime = IoRuntime::start("weightloom-sway-api", THREADS)
            .map_err(|error| ClientError::Build { message: error.to_string() })?;
        let description = describe(&base, tuned.as_deref());
        let concurrency = options.concurrency.max(1);
        Ok(Self { description, base, tuned, concurrency, runtime })
    }

    /// The client that answers for a view.
    fn client(&self, view: &View) -> Option<&Arc<ModelClient>> {
        match view {
            View::Base => Some(&self.base),
            View::Tuned => self.tuned.as_ref(),
            _ => None,
        }
    }

    /// Checks whether the servers can score given texts. Those that cannot still
    /// answer other questions.
    fn check_echo(&mut self) -> Result<(), BackendError> {
        for client in [Some(&self.base), self.tuned.as_ref()].into_iter().flatten() {
            self.runtime.block_on(client.check_echo()).map_err(ApiFailure::into_error)?;
            let problem = client.echo_problem.get().cloned().flatten();
            if let Some(note) = problem.filter(|note| !self.description.notes.contains(note)) {
                self.description.notes.push(note);
            }
        }
        Ok(())
    }

    fn clients(&self) -> impl Iterator<Item = &Arc<ModelClient>> {
        std::iter::once(&self.base).chain(&self.tuned)
    }

    /// Sends nothing to `/v1/completions`, so that prompts with messages are
    /// answered and others fail one by one.
    fn use_chats_only(&mut self, problem: &BackendError) {
        let message = format!(
            "the server answers prompts with messages only, since `/v1/completions` cannot be used: {}",
            problem.message
        );
        for client in self.clients() {
            let _ = client.completions_problem.set(message.clone());
        }
        self.description.notes.push(message);
    }

    fn unsupported(&self, question: &Question) -> QueryError {
        let query = match self.client(&question.view) {
            None => format!("the view {}", question.view),
            Some(_) => wire::name(&question.query).to_owned(),
        };
        QueryError::Unsupported { backend: KIND.to_owned(), query }
    }
}

fn describe(base: &ModelClient, tuned: Option<&ModelClient>) -> Description {
    let mut capabilities =
        Capabilities::from([Capability::Preflight, Capability::CacheIdentity, Capability::Chat]);
    let mut notes = vec![
        format!(
            "servers return at most {MAX_LOGPROBS} next tokens: the rest is known only as a sum, and divergences \
             cover the returned tokens"
        ),
        "tokens are identified by their texts: tokens with the same text count as one".to_owned(),
        "answers are cached under the endpoint and the model's name: after the model changes, discard the cache"
            .to_owned(),
    ];
    let mut identity = format!("api:{}", base.name());
    match tuned {
        Some(tuned) => {
            capabilities.insert(Capability::Differential);
            identity = format!("{identity}:{}", tuned.name());
        }
        None => notes.push("no tuned model: only one model answers".to_owned()),
    }
    Description {
        kind: KIND.to_owned(),
        base: base.name(),
        adapter: tuned.map(ModelClient::name),
        capabilities,
        notes,
        identity: Some(identity),
    }
}

/// The outcome of the question with an index.
type Outcome = (usize, Result<Answer, ApiFailure>);

/// Passes an answer on; an error ends the backend.
fn deliver((index, outcome): Outcome, sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
    match outcome {
        Ok(answer) => sink.answered(index, Ok(answer)),
        Err(ApiFailure::Question(error)) => sink.answered(index, Err(error)),
        Err(failure) => return Err(failure.into_error()),
    }
    Ok(())
}

impl Backend for ApiBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let mut supported = Vec::new();
        for (index, question) in questions.iter().enumerate() {
            match self.client(&question.view).filter(|_| wire::is_supported(&question.query)) {
                Some(client) => supported.push((index, Arc::clone(client), question.clone())),
                None => sink.answered(index, Err(self.unsupported(question))),
            }
        }
        let mut waiting = supported.into_iter();
        self.runtime.block_on(async {
            let mut running: JoinSet<Outcome> = JoinSet::new();
            loop {
                while running.len() < self.concurrency
                    && !sink.is_cancelled()
                    && let Some((index, client, question)) = waiting.next()
                {
                    running.spawn(async move { (index, client.answer(&question).await) });
                }
                let ended = match running.join_next().await {
                    None => return Ok(()),
                    Some(Ok(outcome)) => deliver(outcome, sink),
                    Some(Err(error)) => Err(ApiFailure::backend(error.to_string(), None).into_error()),
                };
                if let Err(error) = ended {
                    // Keep the answers that have arrived; do not wait for the rest.
                    while let Some(Ok(outcome)) = running.try_join_next() {
                        let _ = deliver(outcome, sink);
                    }
                    return Err(error);
                }
            }
        })
    }

    fn chat_support(&self) -> ChatSupport {
        let why = "a server does not say whether its model was trained on chats; \
                   set `chat: always` to use its chat endpoint";
        ChatSupport::new(ChatUsage::PlainText, why)
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        let views = if self.tuned.is_some() { &[View::Base, View::Tuned][..] } else { &[View::Base] };
        let problem = match first_problem(self, views, 1) {
            Ok(None) => return self.check_echo(),
            Ok(Some(error)) => {
                let hint = "use a server with `logprobs` in `/v1/completions`, such as `weightloom serve`";
                ApiFailure::backend(error.to_string(), Some(hint)).into_error()
            }
            Err(error) if !self.clients().any(|client| client.lacks_endpoint.load(Ordering::Relaxed)) => {
                return Err(error);
            }
            Err(error) => error,
        };
        // Some servers answer chats only.
        let hello = Prompt::Messages(vec![ChatMessage::new(Role::User, "hello")]);
        match first_problem_with(self, views, Query::Next { prompt: hello, top_k: 1 }) {
            Ok(None) => {
                self.use_chats_only(&problem);
                Ok(())
            }
            _ => Err(problem),
        }
    }
}
