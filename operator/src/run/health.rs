//! What others ask the operator: whether it lives, whether it can do its work, and its metrics.

use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;

use crate::metrics::Metrics;

/// Kinds that cannot be listed although nothing can be decided without, while the operator waits for them.
#[derive(Debug, Default)]
pub struct Unreadable(Mutex<Vec<&'static str>>);

impl Unreadable {
    pub(super) fn set(&self, kinds: Vec<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = kinds;
    }

    /// What to tell of them; none when there are none.
    pub(super) fn text(&self) -> Option<String> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner).join(", ");
        (!kinds.is_empty()).then(|| {
            format!("cannot list {kinds}; give the operator's role the verbs get, list and watch, as the chart does")
        })
    }
}

/// What the answers are made of.
pub(super) struct Health {
    pub(super) metrics: Arc<Metrics>,
    pub(super) unreadable: Arc<Unreadable>,
}

/// All paths.
pub(super) fn router(health: Arc<Health>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(|State(health): State<Arc<Health>>| async move {
                match health.unreadable.text() {
                    Some(text) => (StatusCode::SERVICE_UNAVAILABLE, text + "\n"),
                    None => (StatusCode::OK, "ready\n".into()),
                }
            }),
        )
        .route(
            "/metrics",
            get(|State(health): State<Arc<Health>>| async move {
                health.metrics.text().map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
            }),
        )
        .with_state(health)
}
