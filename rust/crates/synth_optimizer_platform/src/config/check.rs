//! Checks one layer against the shape: unknown keys, wrong types, wrong words and numbers out of range, all of them.

use super::diagnostics::Severity;
use super::report::{Finding, Part, Report};
use super::secrets::{is_credential_name, redact};
use super::shape::{Field, Shape, root};
use super::suggest::{homes_of, nearest, refused_word, retired_field};
use super::tree::{Node, Tree, join};
use super::words::fold;

/// The readable part of a layer; everything else is reported and left out.
pub(super) fn check(layer: Node, report: &mut Report<'_>) -> Node {
    let place = layer.place.clone();
    Checker { report }.value(layer, root(), &Path::root()).unwrap_or_else(|| Node::empty(place))
}

/// A value as a message may show it: short, and hidden when it is or may be a secret.
pub(super) fn show(path: &str, node: &Node) -> String {
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
    fn root() -> Self {
        Self { shown: String::new(), leaf: String::new() }
    }

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
    fn value(&mut self, node: Node, shape: &Shape, path: &Path) -> Option<Node> {
        let Node { place, tree } = node;
        let tree = match (shape, tree) {
            (Shape::Table(fields), Tree::Table(entries)) => Tree::Table(self.table(entries, fields, shape, path)),
            (Shape::Map(inner), Tree::Table(entries)) => {
                let checked = entries.into_iter().map(|(name, node)| {
                    let path = path.entry(&name);
                    self.value(node, inner, &path).map(|node| (name, node))
                });
                // Every entry is looked at before one bad entry drops the map.
                Tree::Table(checked.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?)
            }
            (Shape::List(inner), Tree::Array(items)) => {
                let checked =
                    items.into_iter().enumerate().map(|(index, node)| self.value(node, inner, &path.item(index)));
                Tree::Array(checked.collect::<Vec<_>>().into_iter().collect::<Option<_>>()?)
            }
            (Shape::Text, Tree::Text(text)) => Tree::Text(text),
            (Shape::Flag, Tree::Flag(flag)) => Tree::Flag(flag),
            (Shape::Integer { least, most }, Tree::Integer(integer)) => {
                if integer < *least || integer > *most {
                    let bounds = if integer < *least { format!("at least {least}") } else { format!("at most {most}") };
                    return self.out_of_range(path, &Node { place, tree: Tree::Integer(integer) }, &bounds);
                }
                Tree::Integer(integer)
            }
            (Shape::Number { least, most }, Tree::Integer(integer)) => {
                // Integers of any size a person writes are exact enough as a float.
                let float = Node { place, tree: Tree::Float(integer as f64) };
                return self.value(float, &Shape::Number { least: *least, most: *most }, path);
            }
            (Shape::Number { least, most }, Tree::Float(float)) => {
                let node = Node { place: place.clone(), tree: Tree::Float(float) };
                if !float.is_finite() {
                    return self.out_of_range(path, &node, "a finite number");
                }
                if let Some(least) = least.filter(|least| float < *least) {
                    return self.out_of_range(path, &node, &format!("at least {least}"));
                }
                if let Some(most) = most.filter(|most| float > *most) {
                    return self.out_of_range(path, &node, &format!("at most {most}"));
                }
                Tree::Float(float)
            }
            (Shape::Word { words, aliases }, Tree::Text(text)) => {
                return self.word(Node { place, tree: Tree::Text(text) }, words, aliases, path);
            }
            (Shape::Anything, tree) => return self.anything(Node { place, tree }, path),
            (shape, tree) => return self.wrong_type(path, &Node { place, tree }, shape),
        };
        Some(Node { place, tree })
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
                self.error("given_twice", &here, &node, Part::Key, message, format!("Keep `{}`.", field.name));
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
        let home = if path.shown.is_empty() { "a configuration".to_owned() } else { format!("[{}]", path.shown) };
        if self.report.is_full() {
            return self.error("unknown_key", &here, node, Part::Key, String::new(), String::new());
        }
        let near = nearest(name, fields.iter().map(|field| field.name.as_str()));
        let hint = match retired_field(&here.shown) {
            Some(sentence) => sentence.to_owned(),
            None => self.intended(name, near, path, fields),
        };
        let what = match (&node.tree, path.shown.is_empty()) {
            (Tree::Table(_), true) => "a section",
            _ => "a field",
        };
        self.error("unknown_key", &here, node, Part::Key, format!("`{name}` is not {what} of {home}"), hint);
    }

    /// Says what an unknown key may have been meant to be, and spares those fields from rules about missing values.
    fn intended(&mut self, name: &str, near: Option<&str>, path: &Path, fields: &[Field]) -> String {
        const MOST_HOMES: usize = 3;
        let homes = homes_of(name);
        let mut sentences = Vec::new();
        if let Some(near) = near {
            self.report.spoil(&join(&path.shown, near));
            sentences.push(format!("Did you mean `{near}`?"));
        }
        for home in &homes {
            self.report.spoil(&join(home, name));
        }
        if homes.iter().any(String::is_empty) {
            sentences.push(format!("`{name}` is a section of its own: [{name}]."));
        } else if (1..=MOST_HOMES).contains(&homes.len()) {
            let homes: Vec<_> = homes.iter().map(|home| format!("[{home}]")).collect();
            sentences.push(format!("`{name}` belongs to {}.", homes.join(" or ")));
        }
        if sentences.is_empty() {
            let names: Vec<_> = fields.iter().map(|field| field.name.as_str()).collect();
            sentences.push(format!("Known here: {}.", names.join(", ")));
        }
        sentences.join(" ")
    }

    fn word(&mut self, node: Node, words: &[String], aliases: &[(String, String)], path: &Path) -> Option<Node> {
        let Tree::Text(text) = &node.tree else { return Some(node) };
        let folded = fold(text);
        let known = words.iter().find(|word| **word == folded);
        let canonical = known.or_else(|| aliases.iter().find(|(alias, _)| *alias == folded).map(|(_, word)| word));
        if let Some(word) = canonical {
            return Some(Node { tree: Tree::Text(word.clone()), place: node.place });
        }
        let shown = show(&path.shown, &node);
        if let Some((reason, hint)) = refused_word(&path.shown, text) {
            let message = format!("{shown} is not available for `{}`: {reason}", path.shown);
            self.error("refused_value", path, &node, Part::Value, message, hint.to_owned());
            return None;
        }
        let near =
            nearest(text, words.iter().map(String::as_str).chain(aliases.iter().map(|(alias, _)| alias.as_str())));
        let all = words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let hint = near.map_or_else(
            || "Write one of them, or leave it out for the default.".to_owned(),
            |near| format!("Did you mean \"{near}\"?"),
        );
        let message = format!("{shown} is not a value of `{}`, which takes {all}", path.shown);
        self.error("unknown_value", path, &node, Part::Value, message, hint);
        None
    }

    fn anything(&mut self, node: Node, path: &Path) -> Option<Node> {
        let readable = match &node.tree {
            Tree::Null => Err("null, which a configuration file cannot hold"),
            Tree::Float(float) if !float.is_finite() => Err("a number that JSON cannot hold"),
            Tree::Integer(integer) if i64::try_from(*integer).is_err() => Err("an integer beyond 64 bits"),
            Tree::Flag(_) | Tree::Integer(_) | Tree::Float(_) | Tree::Text(_) => Ok(()),
            Tree::Array(items) => {
                let checked: Vec<_> = items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| self.anything(item.clone(), &path.item(index)))
                    .collect();
                return checked.into_iter().all(|item| item.is_some()).then_some(node);
            }
            Tree::Table(entries) => {
                let checked: Vec<_> =
                    entries.iter().map(|(name, entry)| self.anything(entry.clone(), &path.entry(name))).collect();
                return checked.into_iter().all(|entry| entry.is_some()).then_some(node);
            }
        };
        match readable {
            Ok(()) => Some(node),
            Err(what) => {
                let message = format!("`{}` is {what}", path.shown);
                self.error(
                    "wrong_type",
                    path,
                    &node,
                    Part::Value,
                    message,
                    "Leave it out, or write it as text.".to_owned(),
                );
                None
            }
        }
    }

    fn wrong_type(&mut self, path: &Path, node: &Node, shape: &Shape) -> Option<Node> {
        let wanted = kind_of_shape(shape);
        let message = match &node.tree {
            Tree::Null | Tree::Array(_) | Tree::Table(_) => {
                format!("`{}` must be {wanted}, not {}", path.shown, kind_of(&node.tree))
            }
            Tree::Flag(_) | Tree::Integer(_) | Tree::Float(_) | Tree::Text(_) => {
                format!("`{}` must be {wanted}, not {} {}", path.shown, kind_of(&node.tree), show(&path.shown, node))
            }
        };
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
            (Tree::Integer(integer), Shape::Word { .. } | Shape::Text) => {
                format!("Write it in quotes: \"{integer}\"")
            }
            (_, Shape::Table(_)) => format!("Write it as a section: [{}]", path.shown),
            (Tree::Null, _) => "Leave it out to keep the default.".to_owned(),
            _ => format!("Give {wanted}."),
        };
        self.error("wrong_type", path, node, Part::Value, message, hint);
        None
    }

    fn out_of_range(&mut self, path: &Path, node: &Node, bounds: &str) -> Option<Node> {
        let message = format!("`{}` is {}; it must be {bounds}", path.shown, show(&path.shown, node));
        self.error("out_of_range", path, node, Part::Value, message, format!("Give {bounds}."));
        None
    }

    fn error(&mut self, code: &'static str, path: &Path, node: &Node, part: Part, message: String, hint: String) {
        self.report.spoil(&path.leaf);
        let finding = Finding { severity: Severity::Error, code, field: path.shown.clone(), message, hint };
        self.report.push(finding, Some((&node.place, part)));
    }
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
