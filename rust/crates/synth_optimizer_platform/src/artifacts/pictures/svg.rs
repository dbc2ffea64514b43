//! Writes an SVG document: elements, attributes and texts, with everything escaped.

use std::fmt::Display;

use super::label::{Anchor, cut, fit};
use super::theme::{TITLE_SIZE, stylesheet};
use super::{PictureForm, PictureLayout};

/// The most characters of a tooltip.
const MAX_TITLE_CHARS: usize = 400;

/// The attributes of an element. Values are escaped.
pub(super) type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// A drawing, one element per line. Its size is known at the end, when all parts are laid out.
#[derive(Debug)]
pub(super) struct Svg {
    layout: PictureLayout,
    body: String,
}

impl Svg {
    pub(super) fn new(layout: PictureLayout) -> Self {
        Self { layout, body: String::new() }
    }

    /// Whether the picture is a part of a page.
    pub(super) fn is_inline(&self) -> bool {
        self.layout.form == PictureForm::Inline
    }

    /// Writes the name of the picture above it. A page has a heading for it. Returns the height below.
    pub(super) fn heading(&mut self, title: &str, left: f64, width: f64) -> f64 {
        match self.layout.form {
            PictureForm::File => {
                self.text("title", (left, 28.0), Anchor::Start, &fit(title, TITLE_SIZE, width - 2.0 * left));
                40.0
            }
            PictureForm::Inline => 6.0,
        }
    }

    /// Opens an element.
    pub(super) fn open(&mut self, name: &str, attributes: Attributes<'_>) {
        write_tag(&mut self.body, name, attributes);
        self.body.push_str(">\n");
    }

    /// Closes an element that `open` opened.
    pub(super) fn close(&mut self, name: &str) {
        self.body.push_str("</");
        self.body.push_str(name);
        self.body.push_str(">\n");
    }

    /// Adds an element without content.
    pub(super) fn add(&mut self, name: &str, attributes: Attributes<'_>) {
        write_tag(&mut self.body, name, attributes);
        self.body.push_str("/>\n");
    }

    /// Adds an element with a tooltip.
    pub(super) fn add_with_title(&mut self, name: &str, attributes: Attributes<'_>, title: &str) {
        write_tag(&mut self.body, name, attributes);
        self.body.push_str("><title>");
        self.body.push_str(&escape(&cut(title, MAX_TITLE_CHARS)));
        self.body.push_str("</title></");
        self.body.push_str(name);
        self.body.push_str(">\n");
    }

    /// Adds the tooltip of the open element.
    pub(super) fn title(&mut self, title: &str) {
        self.body.push_str("<title>");
        self.body.push_str(&escape(&cut(title, MAX_TITLE_CHARS)));
        self.body.push_str("</title>\n");
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let (x1, y1, x2, y2) = (number(from.0), number(from.1), number(to.0), number(to.1));
        self.add("line", &[("class", &class), ("x1", &x1), ("y1", &y1), ("x2", &x2), ("y2", &y2)]);
    }

    pub(super) fn rect(&mut self, class: &str, corner: (f64, f64), size: (f64, f64)) {
        let (x, y, width, height) = (number(corner.0), number(corner.1), number(size.0), number(size.1));
        self.add("rect", &[("class", &class), ("x", &x), ("y", &y), ("width", &width), ("height", &height)]);
    }

    /// Adds a text. `class` is one of the text classes of the theme, which set its size.
    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let (x, y) = (number(at.0), number(at.1));
        self.text_with(&[("class", &class), ("x", &x), ("y", &y), ("text-anchor", &anchor.as_str())], text);
    }

    /// Adds a text that reads from bottom to top and begins at `at`.
    pub(super) fn upright(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let place = format!("translate({} {}) rotate(-90)", number(at.0), number(at.1));
        self.text_with(&[("class", &class), ("transform", &place), ("text-anchor", &anchor.as_str())], text);
    }

    fn text_with(&mut self, attributes: Attributes<'_>, text: &str) {
        write_tag(&mut self.body, "text", attributes);
        self.body.push('>');
        self.body.push_str(&escape(text));
        self.body.push_str("</text>\n");
    }

    /// Returns the document. `title` names the picture and `description` says what it shows, for screen readers.
    pub(super) fn finish(self, size: (f64, f64), title: &str, description: &str) -> String {
        let (width, height) = (number(size.0), number(size.1));
        let view_box = format!("0 0 {width} {height}");
        let title = cut(title, MAX_TITLE_CHARS);
        let mut out = String::with_capacity(self.body.len() + 8192);
        let common: [(&str, &dyn Display); 5] = [
            ("xmlns", &"http://www.w3.org/2000/svg"),
            ("class", &"synth-picture"),
            ("viewBox", &view_box),
            ("width", &width),
            ("height", &height),
        ];
        match self.layout.form {
            // The picture shrinks with its page, and a page without the stylesheet needs nothing else for that.
            PictureForm::File => {
                let own: [(&str, &dyn Display); 2] = [("style", &"max-width:100%;height:auto"), ("role", &"img")];
                write_tag(&mut out, "svg", &[common.as_slice(), own.as_slice()].concat());
            }
            PictureForm::Inline => {
                let own: [(&str, &dyn Display); 2] = [("role", &"group"), ("aria-label", &title)];
                write_tag(&mut out, "svg", &[common.as_slice(), own.as_slice()].concat());
            }
        }
        out.push_str(">\n<title>");
        out.push_str(&escape(&title));
        out.push_str("</title>\n<desc>");
        out.push_str(&escape(&cut(description, 4 * MAX_TITLE_CHARS)));
        out.push_str("</desc>\n");
        if self.layout.form == PictureForm::File {
            out.push_str("<style>\n");
            out.push_str(&stylesheet());
            out.push_str("</style>\n");
        }
        write_tag(&mut out, "rect", &[("class", &"ground"), ("width", &width), ("height", &height)]);
        out.push_str("/>\n");
        out.push_str(&self.body);
        out.push_str("</svg>\n");
        out
    }
}

fn write_tag(out: &mut String, name: &str, attributes: Attributes<'_>) {
    out.push('<');
    out.push_str(name);
    for (key, value) in attributes {
        out.push(' ');
        out.push_str(key);
        out.push_str("=\"");
        out.push_str(&escape(&value.to_string()));
        out.push('"');
    }
}

/// Formats a coordinate with at most one digit after the point.
pub(super) fn number(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None if text == "-0.0" => "0".to_owned(),
        None => text,
    }
}

/// Escapes text for XML. Drops characters that XML does not allow, and those that change the direction of the text after
/// them.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in text.chars() {
        match ch {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(' '),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {}
            control if control.is_control() => {}
            other => out.push(other),
        }
    }
    out
}
