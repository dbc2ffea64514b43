//! Leaves paths of this machine out of what clients are told.

use std::path::Path;

use synth_optimizer_platform::runtime::Finding;

/// The same for a finding.
pub(super) fn hide_in_finding(finding: &mut Finding) {
    finding.message = hide_paths(&finding.message);
    finding.hint = hide_paths(&finding.hint);
    finding.place = finding.place.as_deref().map(hide_paths);
}

/// The text with every path of this machine cut down to its last part.
pub(super) fn hide_paths(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('/') {
        let before = rest[..at].chars().next_back();
        out.push_str(&rest[..at]);
        let token = &rest[at..at + path_length(&rest[at..])];
        let begins = before.is_none_or(|letter| !letter.is_alphanumeric() && !matches!(letter, '/' | '.' | '-' | '_'));
        match if begins { last_part(token) } else { None } {
            Some(name) => {
                out.push_str("…/");
                out.push_str(name);
            }
            None => out.push_str(token),
        }
        rest = &rest[at + token.len()..];
    }
    out.push_str(rest);
    out
}

fn path_length(text: &str) -> usize {
    let ends = |letter: char| letter.is_whitespace() || "\"'`,;()<>[]{}|".contains(letter);
    text.find(ends).unwrap_or(text.len())
}

/// The last part of a path of this machine. Routes begin with a slash as well, but no directory has their name.
fn last_part(token: &str) -> Option<&str> {
    let trimmed = token.trim_end_matches(['.', ':', '/']);
    let mut parts = trimmed.trim_start_matches('/').split('/');
    let first = parts.next().filter(|first| !first.is_empty())?;
    let is_path = parts.next().is_some() && Path::new("/").join(first).exists();
    if !is_path {
        return None;
    }
    // What follows the path, such as the colon after a file, belongs to the sentence.
    token.rfind('/').and_then(|_| trimmed.rfind('/').map(|slash| &token[slash + 1..]))
}

#[cfg(test)]
mod tests {
    use super::hide_paths;

    #[test]
    fn paths_are_cut_and_routes_are_kept() {
        for (text, shown) in [
            ("cannot read /tmp/secret/gepa.toml: no such file", "cannot read …/gepa.toml: no such file"),
            ("(/etc/passwd)", "(…/passwd)"),
            ("GET /health and /runs/{run_id}/events", "GET /health and /runs/{run_id}/events"),
            ("http://127.0.0.1:9100/metadata", "http://127.0.0.1:9100/metadata"),
            ("\"/tmp/a b\" is /usr/lib/x.", "\"…/a b\" is …/x."),
            ("input/output", "input/output"),
            ("/tmp", "/tmp"),
        ] {
            assert_eq!(hide_paths(text), shown);
        }
    }
}
