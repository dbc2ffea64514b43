//! What the values of a configuration must mean together; every rule runs and every problem is kept.

mod limits;
mod models;
mod places;
mod rows;
mod search;

use std::collections::BTreeMap;

use super::diagnostics::Severity;
use super::report::{Finding, Part, Report};
use super::sections::Config;
use super::tree::Place;

/// Runs every rule.
pub(super) fn validate(config: &Config, places: &BTreeMap<String, Place>, report: &mut Report<'_>) {
    let mut rules = Rules { config, places, report };
    places::check(&mut rules);
    rows::check(&mut rules);
    models::check(&mut rules);
    search::check(&mut rules);
    limits::check(&mut rules);
}

/// What a rule sees and where it puts its findings.
struct Rules<'r, 'a> {
    config: &'r Config,
    places: &'r BTreeMap<String, Place>,
    report: &'r mut Report<'a>,
}

impl Rules<'_, '_> {
    /// Whether all these fields could be read; a rule about an unreadable field would only add noise.
    fn can_read(&self, fields: &[&str]) -> bool {
        fields.iter().all(|field| self.report.is_readable(field))
    }

    /// Whether somebody wrote this field.
    fn is_given(&self, field: &str) -> bool {
        self.places.contains_key(field)
    }

    fn error(&mut self, code: &'static str, field: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.push(Severity::Error, code, field, message.into(), hint.into());
    }

    fn warn(&mut self, code: &'static str, field: &str, message: impl Into<String>, hint: impl Into<String>) {
        self.push(Severity::Warning, code, field, message.into(), hint.into());
    }

    fn push(&mut self, severity: Severity, code: &'static str, field: &str, message: String, hint: String) {
        if !self.report.is_readable(field) {
            return;
        }
        let place = match self.places.get(field) {
            Some(place @ Place::File { key, value }) => {
                // The span of a section covers its header only, and the header's name reads better marked.
                let is_section = value.start <= key.start;
                Some((place, if is_section { Part::Key } else { Part::Value }))
            }
            Some(place) => Some((place, Part::Value)),
            None => section_of(self.places, field).map(|place| (place, Part::Key)),
        };
        self.report.push(Finding { severity, code, field: field.to_owned(), message, hint }, place);
    }
}

/// The nearest section in the file that an absent field would be written in.
fn section_of<'p>(places: &'p BTreeMap<String, Place>, field: &str) -> Option<&'p Place> {
    let mut path = field;
    while let Some((parent, _)) = path.rsplit_once('.') {
        if let Some(place @ Place::File { .. }) = places.get(parent) {
            return Some(place);
        }
        path = parent;
    }
    None
}

/// The positions of values that have been there before.
fn repeated<T: PartialEq>(values: &[T]) -> Vec<usize> {
    (1..values.len()).filter(|index| values[..*index].contains(&values[*index])).collect()
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}
