//! Collects findings with their place in the file and renders them for a terminal.

use std::collections::BTreeSet;

use super::diagnostics::{Diagnostic, Severity};
use super::secrets::scrub;
use super::tree::Place;

/// Which part of an entry a finding points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Key,
    Value,
}

/// What is wrong and what to do.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) code: &'static str,
    pub(super) field: String,
    pub(super) message: String,
    pub(super) hint: String,
}

/// Every finding so far, and the fields that are known to be unreadable.
#[derive(Debug)]
pub(super) struct Report<'a> {
    name: &'a str,
    text: &'a str,
    masked: String,
    found: Vec<(Order, Diagnostic)>,
    bad: BTreeSet<String>,
}

/// File order first, then what has no position, then the other sources.
type Order = (u8, usize);

impl<'a> Report<'a> {
    /// `masked` is the text with its secrets blanked, position by position.
    pub(super) fn new(name: &'a str, text: &'a str, masked: String) -> Self {
        Self { name, text, masked, found: Vec::new(), bad: BTreeSet::new() }
    }

    pub(super) fn push(&mut self, finding: Finding, place: Option<(&Place, Part)>) {
        let Finding { severity, code, field, message, hint } = finding;
        let (order, source, span) = match place {
            Some((Place::File { key, value }, part)) => {
                let span = if part == Part::Key { key } else { value };
                ((0, span.start), self.name.to_owned(), Some(span.clone()))
            }
            Some((Place::Inline, _)) | None => ((1, self.found.len()), self.name.to_owned(), None),
            Some((Place::Environment(_), _)) => ((2, self.found.len()), "environment".to_owned(), None),
            Some((Place::Set, _)) => ((3, self.found.len()), "--set".to_owned(), None),
        };
        let message = match place {
            Some((Place::Environment(variable), _)) if !message.contains(variable) => {
                format!("{message} (from {variable})")
            }
            _ => message,
        };
        let position = span.as_ref().map(|span| self.position(span.start));
        let diagnostic = Diagnostic {
            severity,
            code,
            field: scrub(&field),
            source,
            line: position.map(|(line, _)| line),
            column: position.map(|(_, column)| column),
            message: scrub(&message),
            hint: scrub(&hint),
            excerpt: span.map(|span| self.excerpt(span)),
        };
        self.found.push((order, diagnostic));
    }

    /// Marks a field as unreadable: rules that look at it are skipped.
    pub(super) fn spoil(&mut self, field: &str) {
        self.bad.insert(field.to_owned());
    }

    /// Whether the field and the sections around it could be read.
    pub(super) fn is_readable(&self, field: &str) -> bool {
        let field = field.split('[').next().unwrap_or(field);
        !self
            .bad
            .iter()
            .any(|bad| field.strip_prefix(bad.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
    }

    /// One-based line and column, in characters, of a byte offset.
    pub(super) fn position(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..floor(self.text, offset)];
        let start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[start..].chars().count() + 1)
    }

    /// All findings in the order in which a reader meets them.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|(order, _)| *order);
        self.found.into_iter().map(|(_, diagnostic)| diagnostic).collect()
    }

    fn excerpt(&self, span: std::ops::Range<usize>) -> String {
        const WIDTH: usize = 100;
        const BEFORE: usize = 40;
        let (line, column) = self.position(span.start);
        let content: Vec<char> =
            self.masked.split('\n').nth(line - 1).unwrap_or("").trim_end_matches('\r').chars().collect();
        let from = if content.len() > WIDTH { column.saturating_sub(BEFORE + 1) } else { 0 };
        let shown: String =
            content.iter().skip(from).take(WIDTH).map(|c| if c.is_control() { ' ' } else { *c }).collect();
        let end = floor(self.text, span.end.max(span.start));
        let length =
            self.text[floor(self.text, span.start)..end].split('\n').next().unwrap_or("").trim_end().chars().count();
        let space = column - 1 - from;
        let length = length.clamp(1, shown.chars().count().saturating_sub(space).max(1));
        let gutter = " ".repeat(line.to_string().len());
        let lead = if from > 0 { "..." } else { "" };
        let shown = shown.trim_end();
        format!("{line} | {lead}{shown}\n{gutter} | {}{}", " ".repeat(space + lead.len()), "^".repeat(length))
    }
}

/// The findings as a person reads them in a terminal.
pub fn render(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(render_one).collect::<Vec<_>>().join("\n")
}

fn render_one(diagnostic: &Diagnostic) -> String {
    let severity = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let gutter = " ".repeat(diagnostic.line.map_or(1, |line| line.to_string().len()));
    let mut text = format!("{severity}[{}]: {}\n", diagnostic.code, diagnostic.message);
    text.push_str(&format!("{gutter}--> {}", diagnostic.source));
    match (diagnostic.line, diagnostic.column) {
        (Some(line), Some(column)) => text.push_str(&format!(":{line}:{column}\n")),
        _ if diagnostic.field.is_empty() => text.push('\n'),
        _ => text.push_str(&format!(" ({})\n", diagnostic.field)),
    }
    if let Some(excerpt) = &diagnostic.excerpt {
        text.push_str(&format!("{gutter} |\n{excerpt}\n"));
    }
    if !diagnostic.hint.is_empty() {
        text.push_str(&format!("{gutter} = hint: {}\n", diagnostic.hint));
    }
    text
}

/// The nearest character boundary at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut at = offset.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
