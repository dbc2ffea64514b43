//! What the values of a configuration must mean together; every rule runs and every problem is kept.

mod limits;
mod models;
mod places;
mod rows;
mod search;
mod texts;

use std::collections::BTreeMap;

use super::findings::Code;
use super::report::{Part, Report};
use super::sections::Config;
use super::tree::Place;

/// Runs every rule.
pub(super) fn validate(config: &Config, places: &BTreeMap<String, Place>, report: &mut Report<'_>) {
    let mut rules = Rules { config, places, report };
    texts::check(&mut rules);
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

    /// Whether a layer sets this field.
    fn is_given(&self, field: &str) -> bool {
        self.places.contains_key(field)
    }

    /// Reports a field, unless it could not be read anyway.
    fn add(&mut self, code: Code, field: &str, message: impl Into<String>, hint: impl Into<String>) {
        if !self.report.is_readable(field) {
            return;
        }
        let place = match self.places.get(field) {
            // The span of a section covers its header only, and the header's name reads better marked.
            Some(place @ Place::File { key, value }) if value.start <= key.start => Some((place, Part::Key)),
            Some(place) => Some((place, Part::Value)),
            None => section_of(self.places, field).map(|place| (place, Part::Key)),
        };
        self.report.push(code, field, message, hint, place);
    }

    /// The same where something is wrong.
    fn add_if(&mut self, is_wrong: bool, code: Code, field: &str, message: impl Into<String>, hint: impl Into<String>) {
        if is_wrong {
            self.add(code, field, message, hint);
        }
    }
}

/// The nearest section in the file that an absent field would be written in.
fn section_of<'p>(places: &'p BTreeMap<String, Place>, field: &str) -> Option<&'p Place> {
    let parents = field.rmatch_indices('.').map(|(at, _)| &field[..at]);
    parents.filter_map(|parent| places.get(parent)).find(|place| matches!(place, Place::File { .. }))
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}
