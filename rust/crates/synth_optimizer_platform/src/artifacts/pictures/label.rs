//! Labels: how wide a text is, how it is cut, and where it fits beside others.

/// Which point of a text its position names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// A rectangle of the drawing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Area {
    /// Returns the area that a text covers.
    pub(super) fn of_text(at: (f64, f64), anchor: Anchor, size: f64, text: &str) -> Self {
        let width = text_width(text, size);
        let left = match anchor {
            Anchor::Start => at.0,
            Anchor::Middle => at.0 - width / 2.0,
            Anchor::End => at.0 - width,
        };
        Self { left, top: at.1 - 0.8 * size, right: left + width, bottom: at.1 + 0.25 * size }
    }

    /// Returns the area around a mark.
    pub(super) fn around(at: (f64, f64), radius: f64) -> Self {
        Self { left: at.0 - radius, top: at.1 - radius, right: at.0 + radius, bottom: at.1 + radius }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn is_inside(&self, other: &Self) -> bool {
        self.left >= other.left && self.right <= other.right && self.top >= other.top && self.bottom <= other.bottom
    }
}

/// The most characters of an id that a picture names.
pub(super) const MAX_ID_CHARS: usize = 128;

/// The least distance between two labels.
const LABEL_GAP: f64 = 4.0;

/// Finds places for labels in an area. A placed label never covers another one or a mark.
#[derive(Debug)]
pub(super) struct LabelPlacer {
    inside: Area,
    taken: Vec<Area>,
}

impl LabelPlacer {
    pub(super) fn new(inside: Area) -> Self {
        Self { inside, taken: Vec::new() }
    }

    /// Keeps labels away from an area.
    pub(super) fn block(&mut self, area: Area) {
        self.taken.push(area);
    }

    /// Takes the first of these positions where the text fits, or returns `None`.
    pub(super) fn place(
        &mut self,
        positions: &[((f64, f64), Anchor)],
        size: f64,
        text: &str,
    ) -> Option<((f64, f64), Anchor)> {
        let fits = |(at, anchor): &&((f64, f64), Anchor)| {
            let area = Area::of_text(*at, *anchor, size, text);
            area.is_inside(&self.inside) && self.taken.iter().all(|taken| !taken.overlaps(&area))
        };
        let (at, anchor) = *positions.iter().find(fits)?;
        let area = Area::of_text(at, anchor, size, text);
        self.taken.push(Area { left: area.left - LABEL_GAP, right: area.right + LABEL_GAP, ..area });
        Some((at, anchor))
    }
}

/// Estimates the width of a text in a common sans-serif font, rather too wide than too narrow.
pub fn text_width(text: &str, size: f64) -> f64 {
    let share = |ch: char| match ch {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' => 0.32,
        'f' | 'r' | 't' | 'I' | '(' | ')' | '[' | ']' | '/' | '-' => 0.42,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '…' => 0.95,
        'A'..='Z' | '+' | '=' | '<' | '>' | '~' | '#' | '&' => 0.72,
        '\u{0}'..='\u{2fff}' => 0.6,
        // Wide letters and pictograms.
        _ => 1.1,
    };
    text.chars().map(share).sum::<f64>() * size
}

/// Cuts a text after this many characters.
pub(super) fn cut(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
    }
}

/// Cuts a text to this width.
pub(super) fn fit(text: &str, size: f64, width: f64) -> String {
    const SHORTEST: f64 = 0.32;
    let most = (width / (SHORTEST * size)).max(0.0) as usize;
    let mut shown = cut(text, most);
    while text_width(&shown, size) > width {
        let kept = shown.trim_end_matches('…').chars().count();
        if kept <= 1 {
            return String::new();
        }
        shown = cut(text, kept - 1);
    }
    shown
}

/// Returns the first characters of an id after its prefix, which tell it from others.
pub(super) fn short_id(id: &str) -> String {
    const DIGITS: usize = 6;
    let tail = id.rsplit(['_', '-']).next().unwrap_or(id);
    let tail = if tail.is_empty() { id } else { tail };
    tail.chars().take(DIGITS).collect()
}
