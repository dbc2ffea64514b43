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

/// Findings that are told one by one; what is beyond them is counted.
const MOST: usize = 200;

/// Every finding so far, and the fields that are known to be unreadable.
#[derive(Debug)]
pub(super) struct Report<'a> {
    name: &'a str,
    text: &'a str,
    masked: String,
    /// Where the lines of the text begin, and those of the masked one.
    lines: Vec<usize>,
    masked_lines: Vec<usize>,
    found: Vec<(Order, Diagnostic)>,
    /// Errors and warnings beyond the most that are told.
    uncounted: (usize, usize),
    bad: BTreeSet<String>,
}

/// File order first, then what has no position, then the other sources.
type Order = (u8, usize);

impl<'a> Report<'a> {
    /// `masked` is the text with its secrets blanked, position by position.
    pub(super) fn new(name: &'a str, text: &'a str, masked: String) -> Self {
        let (lines, masked_lines) = (line_starts(text), line_starts(&masked));
        Self { name, text, masked, lines, masked_lines, found: Vec::new(), uncounted: (0, 0), bad: BTreeSet::new() }
    }

    /// Whether no more findings are told: whoever has one need not find words for it.
    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MOST
    }

    pub(super) fn push(&mut self, finding: Finding, place: Option<(&Place, Part)>) {
        let Finding { severity, code, field, message, hint } = finding;
        if self.is_full() {
            match severity {
                Severity::Error => self.uncounted.0 += 1,
                Severity::Warning => self.uncounted.1 += 1,
            }
            return;
        }
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
        let sections = field.match_indices('.').map(|(at, _)| &field[..at]);
        !sections.chain([field]).any(|known| self.bad.contains(known))
    }

    /// One-based line and column, in characters, of a byte offset.
    pub(super) fn position(&self, offset: usize) -> (usize, usize) {
        let offset = floor(self.text, offset);
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = line.checked_sub(1).and_then(|before| self.lines.get(before)).copied().unwrap_or(0);
        (line.max(1), self.text[start..offset].chars().count() + 1)
    }

    /// All findings in the order in which a reader meets them.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|(order, _)| *order);
        let rest = self.rest();
        self.found.into_iter().map(|(_, diagnostic)| diagnostic).chain(rest).collect()
    }

    /// What is said of the findings that are not told.
    fn rest(&self) -> Option<Diagnostic> {
        let (errors, warnings) = self.uncounted;
        if errors + warnings == 0 {
            return None;
        }
        let finding = Finding {
            severity: Severity::Error,
            code: "too_many",
            field: String::new(),
            message: format!("{errors} more errors and {warnings} more warnings were found and are not listed"),
            hint: "Mend those that are listed, then look again.".to_owned(),
        };
        Some(Diagnostic {
            severity: if errors > 0 { finding.severity } else { Severity::Warning },
            code: finding.code,
            field: finding.field,
            source: self.name.to_owned(),
            line: None,
            column: None,
            message: finding.message,
            hint: finding.hint,
            excerpt: None,
        })
    }

    fn excerpt(&self, span: std::ops::Range<usize>) -> String {
        const WIDTH: usize = 100;
        const BEFORE: usize = 40;
        let (line, column) = self.position(span.start);
        let start = self.masked_lines.get(line - 1).copied().unwrap_or(self.masked.len());
        let content = self.masked[start..].split('\n').next().unwrap_or("");
        let content: Vec<char> = content.trim_end_matches('\r').chars().collect();
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

fn line_starts(text: &str) -> Vec<usize> {
    std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect()
}

/// The nearest character boundary at or before an offset.
fn floor(text: &str, offset: usize) -> usize {
    let mut at = offset.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
