//! Routes and handlers.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use axum::extract::{Path, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use weightloom_errors::nearest;
use weightloom_hub::TextGenerator;

use crate::access::Access;
use crate::activity::{ActiveRequest, ConnectionClass};
use crate::admission::Admission;
use crate::api_error::ApiError;
use crate::body::{BodyLimits, RequestBody};
use crate::choice::Delta;
use crate::connection::ConnectionInfo;
use crate::events::{EVENTS, Events, ServerState};
use crate::generation_params::StreamMode;
use crate::json_object::JsonObject;
use crate::options::ServeOptions;
use crate::readiness::{self, PROBES};
use crate::request::{CompletionRequest, Endpoint, Limits};
use crate::request_log::RequestLog;
use crate::response::{self, ResponseFormatter};
use crate::response_state::{Progress, ResponseState};
use crate::validate::{check_model, parse_fields};
use crate::worker::{Job, QueuedRequest};
use crate::{body, stream};

/// State shared by all handlers.
pub(crate) struct AppState {
    pub(crate) generator: Arc<TextGenerator>,
    pub(crate) options: ServeOptions,
    pub(crate) jobs: Sender<Job>,
    pub(crate) limits: Limits,
    pub(crate) admission: Admission,
    pub(crate) access: Access,
    pub(crate) server_state: watch::Receiver<ServerState>,
    /// The Unix time at which the server started.
    pub(crate) started: u64,
}

const PATHS: [&str; 5] = ["/v1/models", "/v1/completions", "/v1/chat/completions", "/health", "/ready"];

pub(crate) fn router(app: Arc<AppState>) -> Router {
    let completions = |app, request| complete(Endpoint::Completion, app, request);
    let chat = |app, request| complete(Endpoint::Chat, app, request);
    Router::new()
        .route("/health", get(readiness::health))
        .route("/ready", get(readiness::ready))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(Arc::clone(&app), authenticate))
        .layer(from_fn(track))
        .layer(from_fn_with_state(Arc::clone(&app), check_access))
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

/// Checks the host and the origin of a request.
async fn check_access(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let sharing = match app.access.check(request.uri(), request.headers()) {
        Ok(sharing) => sharing,
        Err(error) => return error.into_response(),
    };
    if let Some(answer) = sharing.preflight(request.method(), request.headers()) {
        return answer;
    }
    sharing.mark(next.run(request).await)
}

/// Marks the connection as one with a request. On a reserved connection, answers
/// only probes.
async fn track(mut request: Request, next: Next) -> Response {
    let Some(info) = request.extensions().get::<ConnectionInfo>().cloned() else {
        return next.run(request).await;
    };
    if info.class == ConnectionClass::Reserved && !PROBES.contains(&request.uri().path()) {
        return ApiError::busy("all connections are taken").into_response();
    }
    let active = Arc::new(info.activity.begin());
    request.extensions_mut().insert(Arc::clone(&active));
    next.run(request).await
}

/// Checks the API key. Probes need none.
async fn authenticate(State(app): State<Arc<AppState>>, request: Request, next: Next) -> Response {
    let Some(key) = &app.options.api_key else { return next.run(request).await };
    let header = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let bearer = header
        .and_then(|header| header.split_at_checked(7))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
    let is_valid = bearer.is_some_and(|(_, candidate)| key.matches(candidate));
    if is_valid || PROBES.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let message = match header {
        None => "missing API key; send it as `Authorization: Bearer KEY`",
        Some(_) => "invalid API key",
    };
    ApiError::with_code(StatusCode::UNAUTHORIZED, "invalid_api_key", None, message).into_response()
}

async fn models(State(app): State<Arc<AppState>>) -> Json<Value> {
    Json(json!({"object": "list", "data": [response::model(&app.options.name, app.started)]}))
}

async fn model(State(app): State<Arc<AppState>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    check_model(&id, &app.options.name)?;
    Ok(Json(response::model(&id, app.started)))
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
    let active = parts.extensions.remove::<Arc<ActiveRequest>>();
    let ServeOptions { max_request_bytes, client_timeout, request_timeout, .. } = app.options;
    let limits = BodyLimits { bytes: max_request_bytes, time: client_timeout, memory: app.admission.body() };
    let body = body::read(&parts.headers, body, limits).await?;
    app.admission.check_queue()?;
    let lane = timeout(request_timeout, app.admission.parse_lane(body.bytes.len())).await;
    let lane = lane.map_err(|_| ApiError::timeout(request_timeout.as_secs_f64()))?;
    // Templates, tokenizing and decoding must not block other connections. The
    // lane is taken until they are done, even if the client leaves.
    let shared = Arc::clone(&app);
    let parsed = spawn_blocking(move || {
        let _lane = lane;
        let request = Arc::new(parse(endpoint, body, &shared)?);
        let formatter = ResponseFormatter::new(&request, &shared.options.name, &shared.generator.tokenizer);
        let state = ResponseState::new(Arc::clone(&request), &shared.generator, log);
        Ok::<_, ApiError>((request, formatter, state))
    });
    let parsed = parsed.await.map_err(|_| ApiError::internal("cannot parse the request"))?;
    let (request, formatter, state) = parsed?;

    let prompt_tokens = request.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let admitted = app.admission.admit(prompt_tokens, endpoint.prompt_field())?;
    let stream_mode = request.params.stream_mode;
    let (sender, receiver) = mpsc::channel(EVENTS);
    let queued = QueuedRequest::new(request, admitted);
    let mut events =
        Events::new(receiver, queued.clone(), app.server_state.clone(), arrived, request_timeout);
    let sent = app.jobs.send(Job { queued, events: sender });
    sent.map_err(|_| ApiError::internal("the model's thread has ended"))?;
    if stream_mode == StreamMode::Off {
        return complete_response(events, state, formatter).await;
    }
    // A request that fails at once gets an error status.
    let first = events.next().await?;
    Ok(stream::send(first, events, state, formatter, active))
}

fn parse(endpoint: Endpoint, body: RequestBody, app: &AppState) -> Result<CompletionRequest, ApiError> {
    let fields = JsonObject::parse(&body.bytes)?;
    drop(body);
    parse_fields(endpoint, &fields, &app.options.name, &app.generator, &app.limits)
}

async fn complete_response(
    mut events: Events,
    mut state: ResponseState,
    formatter: ResponseFormatter,
) -> Result<Response, ApiError> {
    let mut rows: Vec<Delta> = (0..state.rows()).map(|_| Delta::default()).collect();
    loop {
        let (deltas, progress) = state.apply(events.next().await?);
        for (row, delta) in deltas {
            rows[row].append(delta);
        }
        if progress == Progress::Done {
            break;
        }
    }
    // Many log-probabilities take long to format.
    let formatted = spawn_blocking(move || Json(formatter.complete(&rows, state.usage())).into_response());
    formatted.await.map_err(|_| ApiError::internal("cannot format the response"))
}
