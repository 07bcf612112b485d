//! Routes and handlers.

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
use weightloom_hub::TextGenerator;

use crate::api_error::ApiError;
use crate::choice::Delta;
use crate::events::{Events, ServerState};
use crate::generation_params::StreamMode;
use crate::json_object::JsonObject;
use crate::options::ServeOptions;
use crate::request::{CompletionRequest, Endpoint};
use crate::request_log::RequestLog;
use crate::response::{self, ResponseFormatter};
use crate::response_state::{Progress, ResponseState};
use crate::worker::{Job, QueuedRequest};
use crate::{body, chat, completion, stream};

/// State shared by all handlers.
pub(crate) struct AppState {
    pub(crate) generator: Arc<TextGenerator>,
    pub(crate) options: ServeOptions,
    pub(crate) jobs: Sender<Job>,
    /// Permits of requests that run or wait.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) server_state: watch::Receiver<ServerState>,
    /// The Unix time at which the server started.
    pub(crate) started: u64,
}

const PATHS: [&str; 4] = ["/v1/models", "/v1/completions", "/v1/chat/completions", "/health"];

pub(crate) fn router(app: Arc<AppState>) -> Router {
    let completions = |app, request| complete(Endpoint::Completion, app, request);
    let chat = |app, request| complete(Endpoint::Chat, app, request);
    Router::new()
        .route("/health", get(health))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&app), authenticate))
        // The outermost layer, so that refused requests are logged as well.
        .layer(from_fn_with_state(Arc::clone(&app), log))
        .with_state(app)
}

/// Reports each request to the observer of the options.
async fn log(State(app): State<Arc<AppState>>, mut request: Request, next: Next) -> Response {
    let Some(observer) = &app.options.observer else { return next.run(request).await };
    let log = RequestLog::new(observer.clone(), request.method().as_str(), request.uri().path());
    request.extensions_mut().insert(log.clone());
    let response = next.run(request).await;
    log.set_status(response.status().as_u16());
    response
}

/// Checks the API key. `/health` needs none.
async fn authenticate(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let Some(key) = &app.options.api_key else { return next.run(request).await };
    let header = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = header
        .and_then(|header| header.split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
    let is_valid = bearer.is_some_and(|(_, candidate)| key.matches(candidate));
    if is_valid || request.uri().path() == "/health" {
        return next.run(request).await;
    }
    let message = match header {
        None => "missing API key; send it as `Authorization: Bearer KEY`",
        Some(_) => "invalid API key",
    };
    ApiError::with_code(StatusCode::UNAUTHORIZED, "invalid_api_key", None, message).into_response()
}

async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

async fn models(State(app): State<Arc<AppState>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [response::model(&app.options.name, app.started)]}))
}

async fn model(State(app): State<Arc<AppState>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    check_model(&id, &app.options.name)?;
    Ok(Json(response::model(&id, app.started)))
}

fn check_model(requested: &str, served: &str) -> Result<(), ApiError> {
    if requested == served {
        return Ok(());
    }
    let requested: String = requested.chars().take(200).collect();
    let message = format!("model `{requested}` not found; this server serves `{served}`");
    Err(ApiError::with_code(StatusCode::NOT_FOUND, "model_not_found", Some("model"), message))
}

async fn not_found(method: Method, uri: Uri) -> ApiError {
    let path: String = uri.path().chars().take(200).collect();
    let hint = match nearest(&path, PATHS) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("available: {}", PATHS.join(", ")),
    };
    let message = format!("no route for {method} {path}; {hint}");
    ApiError::with_code(StatusCode::NOT_FOUND, "unknown_url", None, message)
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not support {method}", uri.path());
    ApiError::with_code(StatusCode::METHOD_NOT_ALLOWED, "method_not_supported", None, message)
}

/// Generates completions.
async fn complete(
    endpoint: Endpoint,
    State(app): State<Arc<AppState>>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let (mut parts, body) = request.into_parts();
    let log = parts.extensions.remove::<RequestLog>();
    let ServeOptions { max_request_bytes, client_timeout, request_timeout, .. } = app.options;
    let bytes = body::read(&parts.headers, body, max_request_bytes, client_timeout).await?;
    let permit = Arc::clone(&app.permits).try_acquire_owned();
    let permit = permit.map_err(|_| ApiError::queue_full(app.options.max_waiting))?;
    // Tokenizing a long prompt must not block other connections.
    let shared = Arc::clone(&app);
    let parsed = tokio::task::spawn_blocking(move || parse(endpoint, &bytes, &shared)).await;
    let request = parsed.map_err(|_| ApiError::internal("cannot parse the request"))??;

    let request = Arc::new(request);
    let formatter = ResponseFormatter::new(&request, &app.options.name, &app.generator.tokenizer);
    let state = ResponseState::new(Arc::clone(&request), &app.generator, log);
    let stream_mode = request.params.stream_mode;
    let (sender, receiver) = mpsc::unbounded_channel();
    let queued = QueuedRequest::new(request, permit);
    let mut events =
        Events::new(receiver, queued.clone(), app.server_state.clone(), arrived, request_timeout);
    let sent = app.jobs.send(Job { queued, events: sender });
    sent.map_err(|_| ApiError::internal("the model's thread has ended"))?;
    if stream_mode == StreamMode::Off {
        return complete_response(events, state, &formatter).await.map(IntoResponse::into_response);
    }
    // A request that fails at once gets an error status.
    let first = events.next().await?;
    Ok(stream::send(first, events, state, formatter))
}

fn parse(endpoint: Endpoint, bytes: &[u8], app: &AppState) -> Result<CompletionRequest, ApiError> {
    let fields = JsonObject::parse(bytes)?;
    if let Some(requested) = fields.text("model")? {
        check_model(requested, &app.options.name)?;
    }
    match endpoint {
        Endpoint::Completion => completion::parse(&fields, &app.generator, &app.options),
        Endpoint::Chat => chat::parse(&fields, &app.generator, &app.options),
    }
}

async fn complete_response(
    mut events: Events,
    mut state: ResponseState,
    formatter: &ResponseFormatter,
) -> Result<Json<Value>, ApiError> {
    let mut rows: Vec<Delta> = (0..state.rows()).map(|_| Delta::default()).collect();
    loop {
        let (deltas, progress) = state.apply(events.next().await?);
        for (row, delta) in deltas {
            rows[row].append(delta);
        }
        if progress == Progress::Done {
            return Ok(Json(formatter.complete(&rows, state.usage())));
        }
    }
}
