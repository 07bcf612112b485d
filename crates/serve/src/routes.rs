//! What the server answers to.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use axum::extract::{Path, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use weightloom_errors::nearest;
use weightloom_hub::Writer;

use crate::answer::{Answer, Rest};
use crate::ask::{Ask, Form};
use crate::choice::Increment;
use crate::events::{Events, Phase};
use crate::fields::Fields;
use crate::manner::Delivery;
use crate::options::ServeOptions;
use crate::refusal::Refusal;
use crate::reply::{self, Reply};
use crate::worker::{Job, Order};
use crate::{body, chat, completion, stream};

/// What all requests share.
pub(crate) struct Shared {
    pub(crate) writer: Arc<Writer>,
    pub(crate) options: ServeOptions,
    pub(crate) jobs: Sender<Job>,
    /// Places for requests that run or wait.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) phase: watch::Receiver<Phase>,
    /// When the server began, in seconds since 1970.
    pub(crate) since: u64,
}

const PATHS: [&str; 4] = ["/v1/models", "/v1/completions", "/v1/chat/completions", "/health"];

/// All routes.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let completions = |shared, request| answer(Form::Completion, shared, request);
    let chat = |shared, request| answer(Form::Chat, shared, request);
    Router::new()
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&shared), admit))
        .with_state(shared)
}

/// Lets those in who have the key. Whether the server is well, all may ask.
async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let Some(key) = &shared.options.api_key else { return next.run(request).await };
    let shown = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = shown.and_then(|shown| shown.split_at_checked(7)).filter(|(scheme, _)| {
        // The scheme is no secret.
        scheme.eq_ignore_ascii_case(b"Bearer ")
    });
    let fits = bearer.is_some_and(|(_, shown)| key.matches(shown));
    if fits || request.uri().path() == "/health" {
        return next.run(request).await;
    }
    let message = match shown {
        None => "an API key is needed; send it as `Authorization: Bearer KEY`",
        Some(_) => "the API key is wrong",
    };
    Refusal::named(StatusCode::UNAUTHORIZED, "invalid_api_key", None, message).into_response()
}

async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [reply::model(&shared.options.name, shared.since)]}))
}

async fn model(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Result<Json<Value>, Refusal> {
    check_model(&id, &shared.options.name)?;
    Ok(Json(reply::model(&id, shared.since)))
}

fn check_model(asked: &str, served: &str) -> Result<(), Refusal> {
    if asked == served {
        return Ok(());
    }
    let asked: String = asked.chars().take(200).collect();
    let message = format!("there is no model `{asked}` here; the one that is served is `{served}`");
    Err(Refusal::named(StatusCode::NOT_FOUND, "model_not_found", Some("model"), message))
}

async fn unknown_path(method: Method, uri: Uri) -> Refusal {
    let path: String = uri.path().chars().take(200).collect();
    let hint = match nearest(&path, PATHS) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", PATHS.join(", ")),
    };
    let message = format!("nothing answers to {method} {path}; {hint}");
    Refusal::named(StatusCode::NOT_FOUND, "unknown_url", None, message)
}

async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    let message = format!("{} does not answer to {method}", uri.path());
    Refusal::named(StatusCode::METHOD_NOT_ALLOWED, "method_not_supported", None, message)
}

/// Answers a request for texts.
async fn answer(
    form: Form,
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Refusal> {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    let ServeOptions { max_request_bytes, client_timeout, request_timeout, .. } = shared.options;
    let bytes = body::read(&parts.headers, body, max_request_bytes, client_timeout).await?;
    let place = Arc::clone(&shared.places).try_acquire_owned();
    let place = place.map_err(|_| Refusal::busy(shared.options.max_waiting))?;
    // Long texts take time, which other connections shall not wait for.
    let with = Arc::clone(&shared);
    let read = tokio::task::spawn_blocking(move || read(form, &bytes, &with)).await;
    let ask = read.map_err(|_| Refusal::failed("the request could not be read"))??;

    let ask = Arc::new(ask);
    let reply = Reply::new(&ask, &shared.options.name, &shared.writer.tokenizer);
    let answer = Answer::new(Arc::clone(&ask), &shared.writer);
    let delivery = ask.manner.delivery;
    let (tell, heard) = mpsc::unbounded_channel();
    let order = Order::new(ask, place);
    let mut events = Events::new(heard, order.clone(), shared.phase.clone(), arrived, request_timeout);
    let sent = shared.jobs.send(Job { order, tell });
    sent.map_err(|_| Refusal::failed("the model's thread is gone"))?;
    if delivery == Delivery::Whole {
        return whole(events, answer, &reply).await.map(IntoResponse::into_response);
    }
    // What is wrong from the start gets a status that says so.
    let first = events.next().await?;
    Ok(stream::send(first, events, answer, reply))
}

fn read(form: Form, bytes: &[u8], shared: &Shared) -> Result<Ask, Refusal> {
    let fields = Fields::parse(bytes)?;
    if let Some(asked) = fields.text("model")? {
        check_model(asked, &shared.options.name)?;
    }
    match form {
        Form::Completion => completion::read(&fields, &shared.writer, &shared.options),
        Form::Chat => chat::read(&fields, &shared.writer, &shared.options),
    }
}

async fn whole(mut events: Events, mut answer: Answer, reply: &Reply) -> Result<Json<Value>, Refusal> {
    let mut rows: Vec<Increment> = (0..answer.rows()).map(|_| Increment::default()).collect();
    loop {
        let (news, rest) = answer.take(events.next().await?);
        for (row, increment) in news {
            rows[row].append(increment);
        }
        if rest == Rest::Nothing {
            return Ok(Json(reply.whole(&rows, answer.usage())));
        }
    }
}
