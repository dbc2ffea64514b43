//! Collects findings with their location in the file, and renders them for a terminal. Also the table of all finding codes.

use std::collections::BTreeSet;
use std::ops::Range;

use super::tree::SourceLocation;
use crate::model::error::{ConfigFinding, Severity};
use crate::secrets::scrub;

/// The part of an entry that a finding points at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryPart {
    Key,
    Value,
}

/// Maximum number of listed findings. Further findings are only counted.
const MAX_LISTED: usize = 200;

/// The findings so far, and the fields that could not be read.
#[derive(Debug)]
pub(super) struct Report<'a> {
    name: &'a str,
    text: &'a str,
    masked: String,
    found: Vec<(SortKey, ConfigFinding)>,
    /// Number of errors and warnings that are not listed.
    unlisted: (usize, usize),
    unreadable: BTreeSet<String>,
}

/// Sorts findings by file position, then those without a position, then those of other sources.
type SortKey = (u8, usize);

impl<'a> Report<'a> {
    /// Returns an empty report. `masked` is the text as excerpts show it, with the same positions as `text`.
    pub(super) fn new(name: &'a str, text: &'a str, masked: String) -> Self {
        Self { name, text, masked, found: Vec::new(), unlisted: (0, 0), unreadable: BTreeSet::new() }
    }

    /// Returns whether the list is full, so that callers can skip formatting.
    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MAX_LISTED
    }

    pub(super) fn push(
        &mut self,
        code: Code,
        field: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
        location: Option<(&SourceLocation, EntryPart)>,
    ) {
        let severity = code.row().severity.unwrap_or(Severity::Error);
        if self.is_full() {
            let count = if severity == Severity::Error { &mut self.unlisted.0 } else { &mut self.unlisted.1 };
            *count += 1;
            return;
        }
        let mut message = message.into();
        let (rank, source, span) = match location {
            Some((SourceLocation::File { key, .. }, EntryPart::Key)) => (0, self.name, Some(key.clone())),
            Some((SourceLocation::File { value, .. }, EntryPart::Value)) => (0, self.name, Some(value.clone())),
            Some((SourceLocation::Inline, _)) | None => (1, self.name, None),
            Some((SourceLocation::Environment(variable), _)) => {
                if !message.contains(variable) {
                    message.push_str(&format!(" (from {variable})"));
                }
                (2, "environment", None)
            }
            Some((SourceLocation::Set, _)) => (3, "--set", None),
        };
        let position = span.as_ref().map(|span| self.position(span.start));
        let diagnostic = ConfigFinding {
            severity,
            code: code.row().code,
            field: scrub(field),
            source: source.to_owned(),
            line: position.map(|(line, _)| line),
            column: position.map(|(_, column)| column),
            message: scrub(&message),
            hint: scrub(&hint.into()),
            excerpt: span.clone().and_then(|span| self.excerpt(span)),
        };
        self.found.push(((rank, span.map_or(self.found.len(), |span| span.start)), diagnostic));
    }

    /// Marks a field as unreadable, so that rules about it are skipped.
    pub(super) fn mark_unreadable(&mut self, field: &str) {
        self.unreadable.insert(field.to_owned());
    }

    /// Returns whether the field and its enclosing sections could be read.
    pub(super) fn is_readable(&self, field: &str) -> bool {
        let field = field.split('[').next().unwrap_or(field);
        let sections = field.match_indices('.').map(|(at, _)| &field[..at]);
        !sections.chain([field]).any(|known| self.unreadable.contains(known))
    }

    /// Returns the one-based line and column, in characters, of a byte offset.
    pub(super) fn position(&self, offset: usize) -> (usize, usize) {
        let before = &self.text[..self.text.floor_char_boundary(offset)];
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }

    /// Returns all findings in the order of the file.
    pub(super) fn finish(mut self) -> Vec<ConfigFinding> {
        let (errors, warnings) = std::mem::take(&mut self.unlisted);
        self.found.sort_by_key(|(order, _)| *order);
        let mut found: Vec<_> = self.found.into_iter().map(|(_, diagnostic)| diagnostic).collect();
        if errors + warnings > 0 {
            found.push(ConfigFinding {
                severity: if errors > 0 { Severity::Error } else { Severity::Warning },
                code: Code::ListTruncated.row().code,
                field: String::new(),
                source: self.name.to_owned(),
                line: None,
                column: None,
                message: format!("{errors} more errors and {warnings} more warnings are not listed"),
                hint: "Fix the listed problems, then check again.".to_owned(),
                excerpt: None,
            });
        }
        found
    }

    /// Returns the line with a marker below the span; `None` if the whole line is hidden.
    fn excerpt(&self, span: Range<usize>) -> Option<String> {
        const WIDTH: usize = 100;
        const BEFORE: usize = 40;
        let (line, column) = self.position(span.start);
        let content = self.masked.split('\n').nth(line - 1).filter(|line| line.contains(char::is_alphanumeric))?;
        let content: Vec<char> = content.trim_end().chars().collect();
        let from = if content.len() > WIDTH { column.saturating_sub(BEFORE + 1) } else { 0 };
        let shown: String =
            content.iter().skip(from).take(WIDTH).map(|c| if c.is_control() { ' ' } else { *c }).collect();
        let start = self.text.floor_char_boundary(span.start);
        let marked = &self.text[start..self.text.floor_char_boundary(span.end).max(start)];
        let length = marked.split('\n').next().unwrap_or_default().trim_end().chars().count();
        let space = column - 1 - from;
        let length = length.clamp(1, shown.chars().count().saturating_sub(space).max(1));
        let gutter = " ".repeat(line.to_string().len());
        let lead = if from > 0 { "..." } else { "" };
        let shown = shown.trim_end();
        Some(format!("{line} | {lead}{shown}\n{gutter} | {}{}", " ".repeat(space + lead.len()), "^".repeat(length)))
    }
}

/// Formats findings for a terminal.
pub fn render(diagnostics: &[ConfigFinding]) -> String {
    diagnostics.iter().map(render_one).collect::<Vec<_>>().join("\n")
}

fn render_one(diagnostic: &ConfigFinding) -> String {
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

/// One row of the table of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingCode {
    /// The stable code that users match on.
    pub code: &'static str,
    /// The severity; `None` if it depends on the case.
    pub severity: Option<Severity>,
    pub about: &'static str,
}

macro_rules! findings {
    ($($name:ident = $code:literal, $severity:expr, $about:literal;)+) => {
        /// The kind of a finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Code { $($name,)+ }

        /// The table of finding codes, one row per code.
        pub const FINDINGS: &[FindingCode] = &[$(FindingCode { code: $code, severity: $severity, about: $about },)+];

        impl Code {
            /// Returns the row of this code.
            pub(super) const fn row(self) -> &'static FindingCode {
                &FINDINGS[self as usize]
            }
        }
    };
}

const ERROR: Option<Severity> = Some(Severity::Error);
const WARNING: Option<Severity> = Some(Severity::Warning);

findings! {
    InvalidKeyVariable = "invalid_key_variable", ERROR, "A field must hold the name of an environment variable and holds something else, perhaps a key.";
    InvalidPrefix = "invalid_prefix", ERROR, "The prefix cannot begin a candidate id.";
    InvalidRows = "invalid_rows", ERROR, "The value names no rows: it is not `all`, a range or a list.";
    InvalidRunId = "invalid_run_id", ERROR, "The id cannot name a run and its directory.";
    InvalidOverride = "invalid_override", ERROR, "A `--set` does not have the form `key.path=value`.";
    InvalidUrl = "invalid_url", ERROR, "The URL is invalid.";
    Blank = "blank", ERROR, "A text is empty.";
    BudgetTooSmall = "budget_too_small", ERROR, "The rollout limit is too low to evaluate the initial candidate.";
    ConflictingFields = "conflicting_fields", ERROR, "The values of two fields exclude each other.";
    CredentialInConfig = "credential_in_config", ERROR, "The name or the value looks like a credential.";
    Duplicate = "duplicate", ERROR, "A list contains an entry twice.";
    ControlCharacter = "control_character", ERROR, "A text contains a control character, which a model cannot read.";
    EstimateRequired = "estimate_required", ERROR, "A time limit requires an estimate of the duration of one rollout.";
    ConflictingNames = "conflicting_names", ERROR, "A field is set under two names.";
    GuardRowUnknown = "guard_row_unknown", ERROR, "A guarded row is not a train row of this run.";
    HeldoutMetric = "heldout_metric", WARNING, "A stop rule names held-out rows, which are evaluated after the search; it uses train rows instead.";
    KeepSpanMissing = "keep_span_missing", ERROR, "A text to keep is not in the initial candidate, or its field is not a target.";
    LengthDecides = "length_decides", ERROR, "The length of a candidate would be the deciding objective.";
    TildePath = "tilde_path", ERROR, "A path begins with `~`, which only a shell expands.";
    MinibatchTooLarge = "minibatch_too_large", WARNING, "The minibatch is larger than the rows that it is drawn from.";
    MinibatchWithoutReflection = "minibatch_without_reflection", WARNING, "The proposer sees no traces of some rows of the minibatch pool.";
    WindowTooSmall = "window_too_small", WARNING, "The window is too small for generations to overlap.";
    OutOfRange = "out_of_range", ERROR, "A number is too small, too large or not finite.";
    PoolRowUnknown = "pool_row_unknown", ERROR, "A pool contains a row that the dataset section does not name.";
    ProxyNotEnforced = "proxy_not_enforced", WARNING, "The policy may bypass the proxy that holds its credentials.";
    ReadonlyNamespace = "readonly_namespace", WARNING, "A readonly run reads the namespace of its own id.";
    UnsupportedValue = "unsupported_value", ERROR, "The value is known and not supported.";
    Required = "required", ERROR, "A required field is missing.";
    Syntax = "syntax", ERROR, "The file is not valid TOML.";
    TextTooLong = "text_too_long", ERROR, "A text is longer than its limit.";
    TimeTooShort = "time_too_short", ERROR, "The time limit is shorter than one proposer turn.";
    ListTruncated = "list_truncated", None, "The list of findings is truncated.";
    TrainHeldoutOverlap = "train_heldout_overlap", ERROR, "A row is both a train row and a held-out row.";
    UnknownKey = "unknown_key", ERROR, "No field or section has this name.";
    UnknownObjective = "unknown_objective", ERROR, "The objective is not declared.";
    UnknownValue = "unknown_value", ERROR, "The field does not accept this value.";
    UnreadableFile = "unreadable_file", ERROR, "A file that the configuration names cannot be read.";
    UnusedOption = "unused_option", WARNING, "The option has no effect, because it belongs to a method that is not selected.";
    UnusedWorkers = "unused_workers", WARNING, "A limit is lower than a number of workers, so that some are never used.";
    VariableIgnored = "variable_ignored", WARNING, "The environment variable belongs to an older release and is ignored.";
    WrongType = "wrong_type", ERROR, "The value has the wrong type.";
}
