//! Reads a picture and checks what every picture keeps to: it is well-formed, all texts are inside of it, and no two
//! texts overlap.

use std::collections::BTreeMap;

use synth_optimizer_platform::artifacts::pictures::text_width;

/// The area of a text: left, top, right, bottom.
type TextArea = (f64, f64, f64, f64);

/// A picture that was read.
#[derive(Debug, Default)]
pub(super) struct Picture {
    /// Every element: its name and attributes.
    pub(super) elements: Vec<(String, BTreeMap<String, String>)>,
    /// The texts that a reader sees.
    pub(super) texts: Vec<(String, BTreeMap<String, String>)>,
    /// The tooltips.
    pub(super) titles: Vec<String>,
}

impl Picture {
    pub(super) fn count(&self, keep: impl Fn(&str, &BTreeMap<String, String>) -> bool) -> usize {
        self.elements.iter().filter(|(name, attributes)| keep(name, attributes)).count()
    }

    pub(super) fn has_text(&self, text: &str) -> bool {
        self.texts.iter().any(|(shown, _)| shown.contains(text))
    }
}

/// Reads a picture and checks it.
pub(super) fn check(svg: &str) -> Picture {
    let picture = read(svg);
    let (name, root) = &picture.elements[0];
    assert_eq!(name, "svg");
    assert!(["img", "group"].contains(&root["role"].as_str()));
    let view: Vec<f64> = root["viewBox"].split(' ').map(|part| part.parse().unwrap()).collect();
    for (name, attributes) in &picture.elements {
        let known = ["svg", "title", "desc", "style", "rect", "g", "line", "path", "polygon", "circle", "text"];
        assert!(known.contains(&name.as_str()), "{name}");
        for (key, value) in attributes {
            assert!(!key.starts_with("on") && key != "href", "{key}");
            let is_number = ["x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "d", "points"].contains(&key.as_str());
            assert!(!is_number || (!value.contains("NaN") && !value.contains("inf")), "{name} {key} {value}");
        }
    }
    let areas: Vec<(&str, TextArea)> = picture.texts.iter().map(|(text, at)| (text.as_str(), area(text, at))).collect();
    for (place, (text, area)) in areas.iter().enumerate() {
        let inside = area.0 >= -0.5 && area.1 >= -0.5 && area.2 <= view[2] + 0.5 && area.3 <= view[3] + 0.5;
        assert!(inside, "{text:?} {area:?} is outside of {view:?}");
        for (other, taken) in &areas[..place] {
            let apart = area.2 <= taken.0 || taken.2 <= area.0 || area.3 <= taken.1 || taken.3 <= area.1;
            assert!(apart, "{text:?} {area:?} covers {other:?} {taken:?}");
        }
    }
    picture
}

fn area(text: &str, attributes: &BTreeMap<String, String>) -> TextArea {
    let class = attributes["class"].split(' ').next().unwrap_or_default();
    let size = match class {
        "title" => 16.0,
        "label" => 13.0,
        "small" => 11.0,
        other => panic!("{other} has no size"),
    };
    let width = text_width(text, size);
    let before = match attributes["text-anchor"].as_str() {
        "start" => 0.0,
        "middle" => width / 2.0,
        _ => width,
    };
    let (above, below) = (0.75 * size, 0.2 * size);
    if let Some(place) = attributes.get("transform") {
        let place = place.strip_prefix("translate(").unwrap().strip_suffix(") rotate(-90)").unwrap();
        let (x, y) = place.split_once(' ').unwrap();
        let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
        return (x - above, y + before - width, x + below, y + before);
    }
    let (x, y): (f64, f64) = (attributes["x"].parse().unwrap(), attributes["y"].parse().unwrap());
    (x - before, y - above, x - before + width, y + below)
}

/// Reads a document and checks that it is well-formed.
fn read(svg: &str) -> Picture {
    let allowed = |ch: char| matches!(ch, '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(svg.chars().all(allowed), "XML does not allow a character");
    let mut picture = Picture::default();
    let mut open: Vec<(String, BTreeMap<String, String>)> = Vec::new();
    let mut rest = svg;
    while let Some(start) = rest.find('<') {
        let text = unescape(&rest[..start]);
        match open.last() {
            Some((name, attributes)) if name == "text" && !rest[..start].trim().is_empty() => {
                picture.texts.push((text, attributes.clone()));
            }
            Some((name, _)) if name == "title" => picture.titles.push(text),
            Some(_) | None => {}
        }
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().map(|(open, _)| open).as_deref(), Some(name));
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let element = (name.to_owned(), read_attributes(attributes));
        picture.elements.push(element.clone());
        if !is_empty {
            open.push(element);
        }
    }
    assert!(open.is_empty(), "{open:?} is not closed");
    assert_eq!(rest, "\n");
    picture
}

fn read_attributes(mut text: &str) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::new();
    while let Some((name, rest)) = text.trim_start().split_once("=\"") {
        let (value, rest) = rest.split_once('"').expect("a value ends");
        assert!(attributes.insert(name.to_owned(), unescape(value)).is_none(), "{name} is there twice");
        text = rest;
    }
    assert!(text.trim().is_empty(), "{text}");
    attributes
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        out.push_str(&rest[..start]);
        let end = start + rest[start..].find(';').expect("an entity ends");
        out.push_str(match &rest[start + 1..end] {
            "amp" => "&",
            "lt" => "<",
            "gt" => ">",
            "quot" => "\"",
            "#39" => "'",
            other => panic!("{other} is no entity"),
        });
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    out
}
