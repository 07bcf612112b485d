//! Answers from servers that speak OpenAI's `/v1/completions`.
//!
//! Both sides may be two servers, or two models of one. Questions are asked
//! side by side, but not more at once than a server is likely to bear; what
//! fails in passing is asked again. Tokens are told apart by their texts:
//! servers do not tell their numbers, and their ranks mean nothing.

mod client;
mod echo;
mod key;
mod trial;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use weightloom_errors::Hint;
use weightloom_hub::fetch::Proxies;

pub use key::ApiKey;
pub use wire::MOST_TOLD;

use super::preflight::first_problem;
use super::{AnswerSink, Backend, Capabilities, Capability, Description};
use crate::answer::Answer;
use crate::error::{BackendError, QueryError};
use crate::question::Question;
use crate::suite::ServedModel;
use crate::view::View;
use client::{Client, Trouble};

/// The kind, as a suite file calls it.
const KIND: &str = "api";

/// Threads for sockets: answers are short.
const THREADS: usize = 1;

/// How many questions are asked at once, and how patient we are.
#[derive(Clone, Debug)]
pub struct ApiOptions {
    /// Who we are. Sent to the endpoints and to nobody else.
    pub key: Option<ApiKey>,
    /// How many questions are asked at once.
    pub concurrency: usize,
    /// How long an answer may take, unless a model says otherwise.
    pub time_limit: Duration,
    /// How long a server may take to be there.
    pub connect_limit: Duration,
    /// How often a question is asked again.
    pub retries: u32,
    /// The wait before it is asked again for the first time; each further one
    /// is twice as long.
    pub first_wait: Duration,
    /// The longest of these waits.
    pub longest_wait: Duration,
    /// The longest wait that a server may ask for.
    pub longest_asked_wait: Duration,
    /// Servers that requests go through.
    pub proxies: Proxies,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self {
            key: None,
            concurrency: 4,
            time_limit: Duration::from_secs(60),
            connect_limit: Duration::from_secs(10),
            retries: 4,
            first_wait: Duration::from_millis(500),
            longest_wait: Duration::from_secs(8),
            longest_asked_wait: Duration::from_secs(120),
            proxies: Proxies::default(),
        }
    }
}

/// What is wrong with what a file says of servers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ApiError {
    /// An address that is none.
    #[error("`{endpoint}` is no address of a server: {problem}")]
    Address {
        /// As much of it as may be shown.
        endpoint: String,
        problem: String,
    },
    /// A key that no header can carry.
    #[error("the key in {variable} has characters in it that no key has")]
    Key { variable: &'static str },
    /// A proxy that is none.
    #[error("{variable} is no address of a proxy")]
    Proxy { variable: &'static str },
    /// The system refuses what connections need.
    #[error("connections cannot be made: {message}")]
    Client { message: String },
}

impl Hint for ApiError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Address { .. } => {
                Some("write the root of the server alone, as in http://127.0.0.1:8000".to_owned())
            }
            Self::Key { variable } => Some(format!("set {variable} to the key alone")),
            Self::Proxy { variable } => Some(format!("correct {variable}, or unset it")),
            Self::Client { .. } => None,
        }
    }
}

/// One or two models that servers have.
pub struct ApiBackend {
    description: Description,
    base: Arc<Client>,
    /// None if one model alone is asked.
    tuned: Option<Arc<Client>>,
    concurrency: usize,
    runtime: Option<Runtime>,
}

impl ApiBackend {
    /// A model, and what it became. No server is asked yet.
    pub fn new(
        base: &ServedModel,
        tuned: Option<&ServedModel>,
        options: &ApiOptions,
    ) -> Result<Self, ApiError> {
        let http = client::pooled(options)?;
        let client = |served: &ServedModel| Client::new(http.clone(), served, options).map(Arc::new);
        let (base, tuned) = (client(base)?, tuned.map(client).transpose()?);
        let built = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("weightloom-sway-api")
            .enable_all()
            .build();
        let runtime = built.map_err(|error| ApiError::Client { message: error.to_string() })?;
        let description = describe(&base, tuned.as_deref());
        let concurrency = options.concurrency.max(1);
        Ok(Self { description, base, tuned, concurrency, runtime: Some(runtime) })
    }

    /// Who answers for a view.
    fn client(&self, view: &View) -> Option<&Arc<Client>> {
        match view {
            View::Base => Some(&self.base),
            View::Tuned => self.tuned.as_ref(),
            _ => None,
        }
    }

    /// Sees whether texts can be scored. A server that cannot do so still
    /// answers other questions.
    fn try_echo(&mut self) -> Result<(), BackendError> {
        let runtime = self.runtime.as_ref().expect("the runtime is there until the backend is dropped");
        for client in [Some(&self.base), self.tuned.as_ref()].into_iter().flatten() {
            runtime.block_on(client.try_echo()).map_err(Trouble::into_end)?;
            let why = client.mute.get().cloned().flatten();
            if let Some(note) = why.filter(|note| !self.description.notes.contains(note)) {
                self.description.notes.push(note);
            }
        }
        Ok(())
    }

    fn not_able(&self, question: &Question) -> QueryError {
        let query = match self.client(&question.view) {
            None => format!("the view {}", question.view),
            Some(_) => wire::name(&question.query).to_owned(),
        };
        QueryError::Unsupported { backend: KIND.to_owned(), query }
    }
}

fn describe(base: &Client, tuned: Option<&Client>) -> Description {
    let mut capabilities = Capabilities::from([Capability::Preflight, Capability::CacheIdentity]);
    let mut notes = vec![
        format!(
            "a server tells at most {MOST_TOLD} next tokens: what lies beyond them is known only as a sum, and \
             distances between distributions are those of what is told"
        ),
        "tokens are told apart by their texts: those of one text count as one".to_owned(),
        "answers are kept under the server's address and the model's name: after a change of the model there, \
         ask anew"
            .to_owned(),
    ];
    let mut identity = format!("api:{}", base.name());
    match tuned {
        Some(tuned) => {
            capabilities.insert(Capability::Differential);
            identity = format!("{identity}:{}", tuned.name());
        }
        None => notes.push("there is no tuned model: one model alone answers".to_owned()),
    }
    Description {
        kind: KIND.to_owned(),
        base: base.name(),
        adapter: tuned.map(Client::name),
        capabilities,
        notes,
        identity: Some(identity),
    }
}

/// A question on its way.
type Asked = (usize, Result<Answer, Trouble>);

/// Tells what came; an error is the end.
fn tell((place, outcome): Asked, sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
    match outcome {
        Ok(answer) => sink.answered(place, Ok(answer)),
        Err(Trouble::Question(error)) => sink.answered(place, Err(error)),
        Err(trouble) => return Err(trouble.into_end()),
    }
    Ok(())
}

impl Backend for ApiBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let mut asks = Vec::new();
        for (place, question) in questions.iter().enumerate() {
            match self.client(&question.view).filter(|_| wire::able(&question.query)) {
                Some(client) => asks.push((place, Arc::clone(client), question.clone())),
                None => sink.answered(place, Err(self.not_able(question))),
            }
        }
        let runtime = self.runtime.as_ref().expect("the runtime is there until the backend is dropped");
        let mut waiting = asks.into_iter();
        runtime.block_on(async {
            let mut running: JoinSet<Asked> = JoinSet::new();
            loop {
                while running.len() < self.concurrency
                    && !sink.is_cancelled()
                    && let Some((place, client, question)) = waiting.next()
                {
                    running.spawn(async move { (place, client.ask(&question).await) });
                }
                let ended = match running.join_next().await {
                    None => return Ok(()),
                    Some(Ok(asked)) => tell(asked, sink),
                    Some(Err(error)) => Err(Trouble::end(error.to_string(), None).into_end()),
                };
                if let Err(error) = ended {
                    // What has come by now is kept; nobody waits for the rest.
                    while let Some(Ok(asked)) = running.try_join_next() {
                        let _ = tell(asked, sink);
                    }
                    return Err(error);
                }
            }
        })
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        let views = if self.tuned.is_some() { &[View::Base, View::Tuned][..] } else { &[View::Base] };
        if let Some(error) = first_problem(self, views, 1)? {
            let hint =
                "use a server that answers `logprobs` of `/v1/completions`, as `weightloom serve` does";
            return Err(Trouble::end(error.to_string(), Some(hint.to_owned())).into_end());
        }
        self.try_echo()
    }
}

impl Drop for ApiBackend {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A look-up of a name may hang for long; nobody wants it any more.
            runtime.shutdown_background();
        }
    }
}
