//! The files of the page. They are part of the binary.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use synth_optimizer_platform::views::page_style;

/// What the page may load: its own scripts and styles, and data from its own service.
pub(in crate::service) const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";
/// What a file of a run may do when it is opened: use the styles inside it, and nothing else.
pub(in crate::service) const FILE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox";

const INDEX: &str = include_str!("../../../ui/index.html");

macro_rules! scripts {
    ($($name:literal,)+) => {
        const SCRIPTS: [(&str, &str); [$($name,)+].len()] = [$(($name, include_str!(concat!("../../../ui/", $name))),)+];
    };
}

scripts! {
    "api.js", "app.js", "controls.js", "download.js", "feed.js", "pictures.js", "sections.js", "submit.js", "tables.js",
}

/// Returns whether a path is one of the page's own files, which everybody may read.
pub(in crate::service) fn is_page_path(path: &str) -> bool {
    path == "/ui" || path.starts_with("/ui/")
}

/// Returns a file of the page by the path after `/ui/`. Every path that is not a file is a view, which the script shows.
pub(in crate::service) fn page_file(path: &str) -> Response {
    let Some(name) = path.strip_prefix("assets/") else { return file("text/html; charset=utf-8", INDEX.to_owned()) };
    if name == "style.css" {
        return file("text/css; charset=utf-8", page_style());
    }
    match SCRIPTS.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => file("text/javascript; charset=utf-8", (*text).to_owned()),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn file(kind: &'static str, text: String) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}
