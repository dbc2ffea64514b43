//! Rendered views, shared by everybody who looks at the same one.
//!
//! A view is rendered at most once per second, however many pages show it. A page that has the current view gets 304.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use super::super::api_error::ApiError;
use synth_optimizer_core::model::canonical::hex;
use synth_optimizer_platform::views::View;

/// How long a rendered view is current.
const MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum number of views that are kept.
const MAX_VIEWS: usize = 128;

/// A rendered view as it is sent.
#[derive(Debug, Clone)]
struct Rendered {
    at: Instant,
    etag: HeaderValue,
    html: Arc<str>,
}

type Slot = Arc<tokio::sync::Mutex<Option<Rendered>>>;

/// The views that were shown last, by path and query.
#[derive(Debug, Default)]
pub(in crate::service) struct ViewCache {
    slots: Mutex<BTreeMap<String, (Instant, Slot)>>,
}

impl ViewCache {
    /// Answers with a view. `render` is called if no current one is known; clients that ask for it meanwhile wait for it.
    pub(in crate::service) async fn answer<F>(
        &self,
        key: String,
        headers: &HeaderMap,
        render: impl FnOnce() -> F,
    ) -> Result<Response, ApiError>
    where
        F: Future<Output = Result<View, ApiError>>,
    {
        let slot = self.slot(key);
        let mut rendered = slot.lock().await;
        let current = rendered.clone().filter(|known| known.at.elapsed() < MAX_AGE);
        let current = match current {
            Some(current) => current,
            None => {
                let html: Arc<str> = document(&render().await?).into();
                let etag = format!("\"{}\"", hex(&Sha256::digest(html.as_bytes())).get(..32).unwrap_or_default());
                // Hexadecimal digits are always a valid header.
                let etag = HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""));
                rendered.insert(Rendered { at: Instant::now(), etag, html }).clone()
            }
        };
        drop(rendered);
        let is_known = headers.get(header::IF_NONE_MATCH) == Some(&current.etag);
        let mut response = match is_known {
            true => StatusCode::NOT_MODIFIED.into_response(),
            false => ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], current.html.to_string()).into_response(),
        };
        response.headers_mut().insert(header::ETAG, current.etag);
        Ok(response)
    }

    fn slot(&self, key: String) -> Slot {
        let mut slots = self.slots.lock();
        if slots.len() >= MAX_VIEWS {
            slots.retain(|_, (used, _)| used.elapsed() < 2 * MAX_AGE);
        }
        if slots.len() >= MAX_VIEWS {
            slots.clear();
        }
        let (used, slot) = slots.entry(key).or_insert_with(|| (Instant::now(), Slot::default()));
        *used = Instant::now();
        Arc::clone(slot)
    }
}

/// Returns the view as the element that the page shows.
fn document(view: &View) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let live = view.live_run.as_deref().map(|run| format!(" data-live-run=\"{}\"", escaped(run))).unwrap_or_default();
    format!("<div class=\"view\" data-title=\"{}\"{live}>{}</div>", escaped(&view.title), view.html)
}
