//! `GET /health` and `GET /ready`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::events::ServerState;
use crate::routes::AppState;

/// Paths that need no key, and are answered when all others are refused.
pub(crate) const PROBES: [&str; 2] = ["/health", "/ready"];

/// Liveness: the process answers.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// Readiness: a request would be accepted now.
pub(crate) async fn ready(State(app): State<Arc<AppState>>) -> Response {
    let draining = *app.server_state.borrow() != ServerState::Running;
    let reason = match (draining, app.admission.has_room()) {
        (true, _) => "shutting down",
        (false, false) => "queue full",
        (false, true) => return Json(json!({"status": "ready"})).into_response(),
    };
    let body = Json(json!({"status": "not ready", "reason": reason}));
    (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], body).into_response()
}
