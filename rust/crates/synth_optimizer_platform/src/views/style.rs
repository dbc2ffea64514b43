//! The stylesheet of the page and of the report.

use crate::artifacts::pictures::{colours, stylesheet};

/// Returns the stylesheet: the colours of the pictures are those of the whole page.
pub fn page_style() -> String {
    colours(".synth-page") + &stylesheet() + include_str!("style.css")
}
