//! Decides whether two names denote the same model.

/// Tags that select how a model is served, not which model.
const SERVING_TAGS: [&str; 6] = [":latest", ":free", ":nitro", ":floor", ":online", ":extended"];

/// Minimum number of digits in a suffix that is a date or a build: `-0613`, `-001`, `-2025-04-14`. `-32k` and `-5`
/// denote other models.
const MIN_DATE_DIGITS: usize = 3;

/// Returns whether both names denote the same model. Servers answer with the dated name of an alias, omit the provider
/// prefix, or add a tag.
pub(crate) fn is_same_model(requested: &str, effective: &str) -> bool {
    let (requested, effective) = (base_name(requested), base_name(effective));
    let alias = requested.strip_suffix("-latest").unwrap_or(&requested);
    ends_alike(&requested, &effective) || without_date(&effective).any(|without_date| ends_alike(alias, without_date))
}

fn base_name(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let name = SERVING_TAGS.iter().find_map(|tag| name.strip_suffix(tag)).unwrap_or(&name);
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

/// Returns whether both names are equal, except for a prefix with a provider or directory.
fn ends_alike(one: &str, other: &str) -> bool {
    let is_behind = |long: &str, short: &str| long.strip_suffix(short).is_some_and(|before| before.ends_with('/'));
    !one.is_empty() && !other.is_empty() && (one == other || is_behind(one, other) || is_behind(other, one))
}

/// Returns the possible names without a trailing date or build. There may be several: without its date, `gpt-4-0613`
/// still ends in a digit.
fn without_date(name: &str) -> impl Iterator<Item = &str> {
    let is_date = |suffix: &str| {
        suffix.chars().all(|c| c.is_ascii_digit() || c == '-')
            && suffix.chars().filter(char::is_ascii_digit).count() >= MIN_DATE_DIGITS
    };
    name.match_indices('-').filter(move |(at, _)| is_date(&name[*at..])).map(|(at, _)| &name[..at])
}
