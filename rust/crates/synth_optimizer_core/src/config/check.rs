//! Checks one layer against the shape: unknown keys, wrong types, wrong words and numbers out of range, all of them.

use super::findings::Code;
use super::report::{Part, Report};
use super::shape::{Field, Shape, root};
use super::suggest::{homes_of, nearest, refused_word, retired_field};
use super::tree::{Node, Tree, join};
use crate::secrets::{is_credential_name, redact};
use crate::words::fold;

/// The readable part of a layer; everything else is reported and left out.
pub(super) fn check(layer: Node, report: &mut Report<'_>) -> Node {
    let place = layer.place.clone();
    let root_path = Path { shown: String::new(), leaf: String::new() };
    Checker { report }.value(layer, root(), &root_path).unwrap_or_else(|| Node::empty(place))
}

/// A value as a message may show it: short, and hidden when it is or may be a secret.
fn show(path: &str, node: &Node) -> String {
    const LONGEST: usize = 60;
    if path.split('.').any(|name| is_credential_name(name.trim_matches('"'))) {
        return "the given value".to_owned();
    }
    if let Tree::Float(float) = node.tree {
        return format!("{float:?}");
    }
    let shown = super::write::inline(&redact("", &node.to_json()));
    match shown.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &shown[..end]),
        None => shown,
    }
}

/// Where we are, and the field that is spoilt when something below it is wrong.
struct Path {
    shown: String,
    leaf: String,
}

impl Path {
    fn field(&self, name: &str) -> Self {
        let shown = join(&self.shown, name);
        Self { leaf: shown.clone(), shown }
    }

    fn entry(&self, name: &str) -> Self {
        Self { shown: join(&self.shown, name), leaf: self.leaf.clone() }
    }

    fn item(&self, index: usize) -> Self {
        Self { shown: format!("{}[{index}]", self.shown), leaf: self.leaf.clone() }
    }
}

struct Checker<'c, 'a> {
    report: &'c mut Report<'a>,
}

impl Checker<'_, '_> {
    /// The value where it fits the shape, in its canonical spelling.
    fn value(&mut self, mut node: Node, shape: &Shape, path: &Path) -> Option<Node> {
        if let (Shape::Number { .. }, Tree::Integer(integer)) = (shape, &node.tree) {
            // Integers of any size a person writes are exact enough as a float.
            node.tree = Tree::Float(*integer as f64);
        }
        let Node { place, tree } = node;
        let tree = match (shape, tree) {
            (Shape::Table(fields), Tree::Table(entries)) => Tree::Table(self.table(entries, fields, shape, path)),
            (Shape::Map(_) | Shape::Anything, Tree::Table(entries)) => {
                let inner = if let Shape::Map(inner) = shape { inner } else { shape };
                let checked = entries.into_iter().map(|(name, node)| {
                    let path = path.entry(&name);
                    self.value(node, inner, &path).map(|node| (name, node))
                });
                // Every entry is looked at before one bad entry drops the map.
                Tree::Table(checked.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?)
            }
            (Shape::List(_) | Shape::Anything, Tree::Array(items)) => {
                let inner = if let Shape::List(inner) = shape { inner } else { shape };
                let checked = items.into_iter().enumerate().map(|(at, node)| self.value(node, inner, &path.item(at)));
                Tree::Array(checked.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?)
            }
            (shape, tree) => return self.plain(Node { place, tree }, shape, path),
        };
        Some(Node { place, tree })
    }

    /// A value that holds no others.
    fn plain(&mut self, node: Node, shape: &Shape, path: &Path) -> Option<Node> {
        match (shape, &node.tree) {
            (Shape::Word { words, aliases }, Tree::Text(text)) => match canonical(text, words, aliases) {
                Some(word) => return Some(Node { tree: Tree::Text(word.to_owned()), place: node.place }),
                None => return self.unknown_word(text, &node, words, aliases, path),
            },
            (Shape::Anything, tree) => {
                if let Some(what) = not_storable(tree) {
                    let message = format!("`{}` is {what}", path.shown);
                    return self.error(Code::WrongType, path, &node, message, "Leave it out, or write it as text.");
                }
            }
            (Shape::Text, Tree::Text(_)) | (Shape::Flag, Tree::Flag(_)) => {}
            (Shape::Integer { .. }, Tree::Integer(_)) | (Shape::Number { .. }, Tree::Float(_)) => {
                if let Some(bound) = broken_bound(shape, &node.tree) {
                    let message = format!("`{}` is {}; it must be {bound}", path.shown, show(&path.shown, &node));
                    return self.error(Code::OutOfRange, path, &node, message, format!("Give {bound}."));
                }
            }
            _ => return self.wrong_type(path, &node, shape),
        }
        Some(node)
    }

    fn table(
        &mut self,
        entries: Vec<(String, Node)>,
        fields: &[Field],
        shape: &Shape,
        path: &Path,
    ) -> Vec<(String, Node)> {
        let mut readable: Vec<(String, Node)> = Vec::new();
        for (name, node) in entries {
            let Some(field) = shape.field(&name) else {
                self.unknown_key(&name, &node, fields, path);
                continue;
            };
            let here = path.field(&field.name);
            if field.is_optional && node.tree == Tree::Null {
                continue;
            }
            if readable.iter().any(|(known, _)| *known == field.name) {
                let alias = field.alias.as_deref().unwrap_or(&field.name);
                let message = format!("`{alias}` and `{}` are two names of one field and both are given", field.name);
                self.error_at(Code::GivenTwice, &here, &node, Part::Key, message, format!("Keep `{}`.", field.name));
                continue;
            }
            if let Some(node) = self.value(node, &field.shape, &here) {
                readable.push((field.name.clone(), node));
            }
        }
        readable
    }

    fn unknown_key(&mut self, name: &str, node: &Node, fields: &[Field], path: &Path) {
        let here = path.field(name);
        if self.report.is_full() {
            return self.error_at(Code::UnknownKey, &here, node, Part::Key, String::new(), "");
        }
        let hint = match retired_field(&here.shown) {
            Some(sentence) => sentence.to_owned(),
            None => self.intended(name, path, fields),
        };
        let home = if path.shown.is_empty() { "a configuration".to_owned() } else { format!("[{}]", path.shown) };
        let is_section = path.shown.is_empty() && matches!(node.tree, Tree::Table(_));
        let what = if is_section { "a section" } else { "a field" };
        self.error_at(Code::UnknownKey, &here, node, Part::Key, format!("`{name}` is not {what} of {home}"), hint);
    }

    /// Says what an unknown key may have been meant to be, and spares those fields from rules about missing values.
    fn intended(&mut self, name: &str, path: &Path, fields: &[Field]) -> String {
        const MOST_HOMES: usize = 3;
        let names = || fields.iter().map(|field| field.name.as_str());
        let homes = homes_of(name);
        let mut sentences = Vec::new();
        if let Some(near) = nearest(name, names()) {
            self.report.spoil(&join(&path.shown, near));
            sentences.push(format!("Did you mean `{near}`?"));
        }
        homes.iter().for_each(|home| self.report.spoil(&join(home, name)));
        if homes.iter().any(String::is_empty) {
            sentences.push(format!("`{name}` is a section of its own: [{name}]."));
        } else if (1..=MOST_HOMES).contains(&homes.len()) {
            sentences.push(format!("`{name}` belongs to [{}].", homes.join("] or [")));
        }
        if sentences.is_empty() {
            sentences.push(format!("Known here: {}.", names().collect::<Vec<_>>().join(", ")));
        }
        sentences.join(" ")
    }

    fn unknown_word(
        &mut self,
        text: &str,
        node: &Node,
        words: &[String],
        aliases: &[(String, String)],
        path: &Path,
    ) -> Option<Node> {
        let shown = show(&path.shown, node);
        if let Some((reason, hint)) = refused_word(&path.shown, text) {
            let message = format!("{shown} is not available for `{}`: {reason}", path.shown);
            return self.error(Code::RefusedValue, path, node, message, hint);
        }
        let known = words.iter().chain(aliases.iter().map(|(alias, _)| alias));
        let hint = nearest(text, known.map(String::as_str)).map_or_else(
            || "Write one of them, or leave it out for the default.".to_owned(),
            |near| format!("Did you mean \"{near}\"?"),
        );
        let message = format!("{shown} is not a value of `{}`, which takes \"{}\"", path.shown, words.join("\", \""));
        self.error(Code::UnknownValue, path, node, message, hint)
    }

    fn wrong_type(&mut self, path: &Path, node: &Node, shape: &Shape) -> Option<Node> {
        let (wanted, given) = (kind_of_shape(shape), kind_of(&node.tree));
        let value = match &node.tree {
            Tree::Null | Tree::Array(_) | Tree::Table(_) => String::new(),
            _ => format!(" {}", show(&path.shown, node)),
        };
        let message = format!("`{}` must be {wanted}, not {given}{value}", path.shown);
        let name = path.shown.rsplit('.').next().unwrap_or_default();
        let hint = match (&node.tree, shape) {
            (Tree::Text(text), Shape::Integer { .. }) if text.trim().parse::<i64>().is_ok() => {
                format!("Write it without quotes: {}", text.trim())
            }
            (Tree::Text(text), Shape::Number { .. }) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
                format!("Write it without quotes: {}", text.trim())
            }
            (Tree::Text(text), Shape::Flag) if matches!(fold(text).as_str(), "true" | "false") => {
                format!("Write it without quotes: {}", fold(text))
            }
            (Tree::Text(_), Shape::List(_)) => format!("Write it in brackets: {name} = [...]"),
            (Tree::Float(float), Shape::Integer { .. }) if float.fract() == 0.0 && float.abs() < 1e15 => {
                format!("Write it as {float:.0}")
            }
            (Tree::Flag(flag), Shape::Word { .. } | Shape::Text) => format!("Write it in quotes: \"{flag}\""),
            (Tree::Integer(number), Shape::Word { .. } | Shape::Text) => format!("Write it in quotes: \"{number}\""),
            (_, Shape::Table(_)) => format!("Write it as a section: [{}]", path.shown),
            (Tree::Null, _) => "Leave it out to keep the default.".to_owned(),
            _ => format!("Give {wanted}."),
        };
        self.error(Code::WrongType, path, node, message, hint)
    }

    /// Reports a value, which is then left out.
    fn error(
        &mut self,
        code: Code,
        path: &Path,
        node: &Node,
        message: String,
        hint: impl Into<String>,
    ) -> Option<Node> {
        self.error_at(code, path, node, Part::Value, message, hint);
        None
    }

    fn error_at(&mut self, code: Code, path: &Path, node: &Node, part: Part, message: String, hint: impl Into<String>) {
        self.report.spoil(&path.leaf);
        self.report.push(code, &path.shown, message, hint, Some((&node.place, part)));
    }
}

fn broken_bound(shape: &Shape, tree: &Tree) -> Option<String> {
    match (shape, tree) {
        (Shape::Integer { least, .. }, Tree::Integer(value)) if value < least => Some(format!("at least {least}")),
        (Shape::Integer { most, .. }, Tree::Integer(value)) if value > most => Some(format!("at most {most}")),
        (Shape::Number { .. }, Tree::Float(value)) if !value.is_finite() => Some("a finite number".to_owned()),
        (Shape::Number { least: Some(least), .. }, Tree::Float(value)) if value < least => {
            Some(format!("at least {least}"))
        }
        (Shape::Number { most: Some(most), .. }, Tree::Float(value)) if value > most => Some(format!("at most {most}")),
        _ => None,
    }
}

/// Why a table that takes anything cannot hold the value.
fn not_storable(tree: &Tree) -> Option<&'static str> {
    match tree {
        Tree::Null => Some("null, which a configuration file cannot hold"),
        Tree::Float(float) if !float.is_finite() => Some("a number that JSON cannot hold"),
        Tree::Integer(integer) if i64::try_from(*integer).is_err() => Some("an integer beyond 64 bits"),
        _ => None,
    }
}

/// The canonical spelling of a word.
fn canonical<'s>(text: &str, words: &'s [String], aliases: &'s [(String, String)]) -> Option<&'s str> {
    let folded = fold(text);
    let known = words.iter().find(|word| **word == folded);
    known.or_else(|| aliases.iter().find(|(alias, _)| *alias == folded).map(|(_, word)| word)).map(String::as_str)
}

fn kind_of(tree: &Tree) -> &'static str {
    match tree {
        Tree::Null => "null",
        Tree::Flag(_) => "the boolean",
        Tree::Integer(_) => "the integer",
        Tree::Float(_) => "the float",
        Tree::Text(_) => "the text",
        Tree::Array(_) => "a list",
        Tree::Table(_) => "a table",
    }
}

fn kind_of_shape(shape: &Shape) -> &'static str {
    match shape {
        Shape::Table(_) => "a section",
        Shape::Map(_) => "a table",
        Shape::List(_) => "a list",
        Shape::Text => "text",
        Shape::Flag => "true or false",
        Shape::Integer { .. } => "a whole number",
        Shape::Number { .. } => "a number",
        Shape::Word { .. } => "one of its words, in quotes",
        Shape::Anything => "a value",
    }
}
