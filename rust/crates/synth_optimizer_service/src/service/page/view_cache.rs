//! Rendered views, shared by everybody who looks at the same one.
//!
//! A view is rendered at most once per second, however many pages show it, and a view that takes long less often. A page that
//! has the current view gets 304.

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

/// How long a rendered view is current, at least and at most.
const MIN_AGE: Duration = Duration::from_secs(1);
const MAX_AGE: Duration = Duration::from_secs(10);
/// How many times as long as its rendering took a view is current. Its pages so use at most a tenth of a core.
const AGE_PER_RENDERING: u32 = 10;
/// Maximum number of views that are kept.
const MAX_VIEWS: usize = 128;
/// Maximum size of the views that are kept, beside the last one.
const MAX_BYTES: usize = 32 << 20;

/// A rendered view as it is sent.
#[derive(Debug, Clone)]
struct Rendered {
    /// When it is rendered again, if a page asks for it.
    current_until: Instant,
    etag: HeaderValue,
    html: Arc<str>,
}

type Slot = Arc<tokio::sync::Mutex<Option<Rendered>>>;

/// The views that were shown last, by path and query.
#[derive(Debug, Default)]
pub(in crate::service) struct ViewCache {
    slots: Mutex<BTreeMap<String, Kept>>,
}

/// A view that is kept.
#[derive(Debug)]
struct Kept {
    used: Instant,
    /// The size of its HTML, as far as it is rendered.
    bytes: usize,
    slot: Slot,
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
        let slot = self.slot(key.clone());
        let mut rendered = slot.lock().await;
        let current = rendered.clone().filter(|known| Instant::now() < known.current_until);
        let current = match current {
            Some(current) => current,
            None => {
                let started = Instant::now();
                let html: Arc<str> = document(&render().await?).into();
                let current_until = Instant::now() + age(started.elapsed());
                let etag = format!("\"{}\"", hex(&Sha256::digest(html.as_bytes())).get(..32).unwrap_or_default());
                // Hexadecimal digits are always a valid header.
                let etag = HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""));
                self.note_size(&key, html.len());
                rendered.insert(Rendered { current_until, etag, html }).clone()
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
            slots.retain(|_, kept| kept.used.elapsed() < 2 * MIN_AGE);
        }
        if slots.len() >= MAX_VIEWS {
            slots.clear();
        }
        let new = || Kept { used: Instant::now(), bytes: 0, slot: Slot::default() };
        let kept = slots.entry(key).or_insert_with(new);
        kept.used = Instant::now();
        Arc::clone(&kept.slot)
    }

    /// Notes the size of a view, and forgets the oldest other ones until all fit.
    fn note_size(&self, key: &str, bytes: usize) {
        let mut slots = self.slots.lock();
        if let Some(kept) = slots.get_mut(key) {
            kept.bytes = bytes;
        }
        let mut sum: usize = slots.values().map(|kept| kept.bytes).sum();
        while sum > MAX_BYTES {
            let others = slots.iter().filter(|(other, kept)| *other != key && kept.bytes > 0);
            let Some(oldest) = others.min_by_key(|(_, kept)| kept.used).map(|(key, _)| key.clone()) else { return };
            sum -= slots.remove(&oldest).map_or(0, |kept| kept.bytes);
        }
    }
}

/// Returns how long a view is current whose rendering took this long.
fn age(rendering: Duration) -> Duration {
    (rendering * AGE_PER_RENDERING).clamp(MIN_AGE, MAX_AGE)
}

/// Returns the view as the element that the page shows.
fn document(view: &View) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let live = view.live_run.as_deref().map(|run| format!(" data-live-run=\"{}\"", escaped(run))).unwrap_or_default();
    format!("<div class=\"view\" data-title=\"{}\"{live}>{}</div>", escaped(&view.title), view.html)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{MAX_BYTES, ViewCache, age};

    #[test]
    fn views_that_take_long_are_rendered_less_often() {
        let ages = [1, 100, 101, 2500].map(|millis| age(Duration::from_millis(millis)).as_millis());
        assert_eq!(ages, [1000, 1000, 1010, 10_000]);
    }

    #[test]
    fn large_views_are_forgotten_before_they_fill_the_memory() {
        let views = ViewCache::default();
        for place in 0..6 {
            let key = format!("view {place}");
            drop(views.slot(key.clone()));
            views.note_size(&key, MAX_BYTES / 3);
        }
        let kept: Vec<String> = views.slots.lock().keys().cloned().collect();
        assert_eq!(kept, ["view 3", "view 4", "view 5"]);
        drop(views.slot("one".to_owned()));
        views.note_size("one", 2 * MAX_BYTES);
        assert_eq!(views.slots.lock().keys().cloned().collect::<Vec<_>>(), ["one"]);
    }
}
