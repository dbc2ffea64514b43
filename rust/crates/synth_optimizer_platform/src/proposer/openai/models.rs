//! Tells whether the model that answered is the one that was asked for.

/// Tags that choose how a model is served, not which one.
const SERVING: [&str; 6] = [":latest", ":free", ":nitro", ":floor", ":online", ":extended"];

/// Fewest digits of a suffix that is a date or a build: `-0613`, `-001`, `-2025-04-14`. `-32k` and `-5` are other models.
const FEWEST_DIGITS: usize = 3;

/// Whether both names are of one model. Servers answer with the dated name of an alias, leave out the name of the
/// provider before it, or add a tag.
pub(in crate::proposer) fn is_same(requested: &str, effective: &str) -> bool {
    let (requested, effective) = (bare(requested), bare(effective));
    let alias = requested.strip_suffix("-latest").unwrap_or(&requested);
    ends_alike(&requested, &effective) || undated(&effective).any(|undated| ends_alike(alias, undated))
}

fn bare(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let name = SERVING.iter().find_map(|tag| name.strip_suffix(tag)).unwrap_or(&name);
    name.strip_suffix(".gguf").unwrap_or(name).to_owned()
}

/// Equal, or one is the other behind the name of a provider or a directory.
fn ends_alike(one: &str, other: &str) -> bool {
    let is_behind = |long: &str, short: &str| long.strip_suffix(short).is_some_and(|before| before.ends_with('/'));
    !one.is_empty() && !other.is_empty() && (one == other || is_behind(one, other) || is_behind(other, one))
}

/// What the name may be without the date or build at its end. `gpt-4-0613` ends in a digit without it as well, so there
/// may be more than one reading.
fn undated(name: &str) -> impl Iterator<Item = &str> {
    let is_date = |suffix: &str| {
        suffix.chars().all(|c| c.is_ascii_digit() || c == '-')
            && suffix.chars().filter(char::is_ascii_digit).count() >= FEWEST_DIGITS
    };
    name.match_indices('-').filter(move |(at, _)| is_date(&name[*at..])).map(|(at, _)| &name[..at])
}

#[cfg(test)]
#[path = "models_tests.rs"]
mod tests;
