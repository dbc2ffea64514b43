//! Finds the secrets of a TOML text without trusting it to be valid.

use std::ops::Range;

use super::secrets::{hidden_ranges, is_credential_flag, is_credential_name};

/// A forgiving reading of TOML that only follows names, strings and brackets.
pub(super) struct Scan<'t> {
    text: &'t str,
    at: usize,
    ranges: Vec<Range<usize>>,
    /// The words since the last separator: the name, when `=` comes next.
    name: String,
    depth: usize,
    /// Set while the value of a credential is read: the depth at which it began.
    secret_since: Option<usize>,
    section_is_secret: bool,
    /// Set after `"--api-key"` in a list: the next entry is the key.
    after_flag: bool,
    /// Set after the name of a credential until its `=`: what stands there instead is its value.
    after_name: bool,
}

impl<'t> Scan<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            at: 0,
            ranges: Vec::new(),
            name: String::new(),
            depth: 0,
            secret_since: None,
            section_is_secret: false,
            after_flag: false,
            after_name: false,
        }
    }

    /// The ranges that hold secrets, in no particular order.
    pub(super) fn run(mut self) -> Vec<Range<usize>> {
        let mut line_start = true;
        while let Some(c) = self.text[self.at..].chars().next() {
            let begins_line = line_start;
            line_start = c == '\n' || (line_start && c.is_whitespace());
            match c {
                '\n' => {
                    if self.depth == 0 {
                        self.end_value();
                    }
                    self.next_name();
                    self.at += 1;
                }
                '[' if begins_line && self.depth == 0 && self.secret_since.is_none() => self.header(),
                '"' | '\'' => self.string(c),
                '#' => self.comment(),
                '=' => {
                    if self.secret_since.is_none()
                        && (self.section_is_secret || self.name.split('.').any(may_name_credential))
                    {
                        self.secret_since = Some(self.depth);
                    }
                    self.next_name();
                    self.at += 1;
                }
                '[' | '{' => {
                    if c == '[' && begins_line {
                        // After an unclosed bracket a header reads like a list; its name counts all the same.
                        let line = &self.text[self.at..self.line_end()];
                        self.section_is_secret |= names_credential(line);
                    }
                    if self.after_name && self.secret_since.is_none() {
                        self.secret_since = Some(self.depth);
                    }
                    self.depth += 1;
                    self.next_name();
                    self.at += 1;
                }
                ']' | '}' => {
                    if self.depth > 0 && self.secret_since.is_some_and(|since| self.depth <= since) {
                        self.end_value();
                    }
                    self.depth = self.depth.saturating_sub(1);
                    self.next_name();
                    self.at += 1;
                }
                ',' => {
                    if self.secret_since == Some(self.depth) && self.depth > 0 {
                        self.end_value();
                    }
                    self.next_name();
                    self.at += 1;
                }
                c if c.is_whitespace() => self.at += c.len_utf8(),
                _ => self.word(),
            }
        }
        self.ranges
    }

    fn end_value(&mut self) {
        self.secret_since = None;
        self.after_flag = false;
        self.next_name();
    }

    fn next_name(&mut self) {
        self.name.clear();
        self.after_name = false;
    }

    fn header(&mut self) {
        let line = self.line_end();
        let header = &self.text[self.at..line];
        self.section_is_secret = names_credential(header);
        self.hide_known(self.at..line);
        if self.section_is_secret
            && let Some(end) = header.find(']')
        {
            self.ranges.push(self.at + end + 1..line);
        }
        self.at = line;
    }

    fn comment(&mut self) {
        let line = self.line_end();
        let comment = &self.text[self.at..line];
        let names = comment.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'));
        if self.secret_since.is_some() || self.section_is_secret || names.into_iter().any(is_credential_name) {
            self.ranges.push(self.at..line);
        } else {
            self.hide_known(self.at..line);
        }
        self.at = line;
    }

    fn word(&mut self) {
        let rest = &self.text[self.at..];
        let length = rest.find(|c: char| c.is_whitespace() || "\"'#=[]{},".contains(c)).unwrap_or(rest.len());
        let range = self.at..self.at + length.max(1);
        self.hide(range.clone(), range.clone());
        self.add_name(range.clone());
        self.at = range.end;
    }

    fn string(&mut self, quote: char) {
        let rest = &self.text[self.at..];
        let triple = if quote == '"' { "\"\"\"" } else { "'''" };
        let fence = if rest.starts_with(triple) { 3 } else { 1 };
        let (length, closed) = string_length(rest, quote, fence);
        let whole = self.at..self.at + length;
        let inner_end = if closed { whole.end - fence } else { whole.end };
        let inner = (whole.start + fence).min(inner_end)..inner_end;
        let after_flag = std::mem::replace(&mut self.after_flag, is_credential_flag(&self.text[inner.clone()]));
        if after_flag {
            self.ranges.push(inner.clone());
        }
        self.hide(whole.clone(), inner.clone());
        self.at = whole.end;
        let is_secret = self.secret_since.is_some();
        self.add_name(inner);
        if !closed && is_secret {
            // Nothing tells where an unclosed secret ends.
            self.ranges.push(self.at..self.text.len());
            self.at = self.text.len();
        }
    }

    fn add_name(&mut self, range: Range<usize>) {
        let part = &self.text[range];
        self.name.push('.');
        self.name.push_str(part);
        self.after_name |= self.section_is_secret || may_name_credential(part);
    }

    fn hide(&mut self, whole: Range<usize>, inner: Range<usize>) {
        if self.after_name {
            self.secret_since.get_or_insert(self.depth);
        }
        if self.secret_since.is_some() {
            self.ranges.push(whole);
            return;
        }
        let value = &self.text[inner.clone()];
        if let (Some(scheme), Some(user)) = (value.find("://"), value.rfind('@'))
            && scheme < user
            && !value.contains('\n')
        {
            self.ranges.push(inner.start + scheme + 3..inner.start + user);
        }
        self.hide_known(inner);
    }

    fn hide_known(&mut self, range: Range<usize>) {
        let start = range.start;
        let found = hidden_ranges(&self.text[range]);
        self.ranges.extend(found.into_iter().map(|found| start + found.start..start + found.end));
    }

    fn line_end(&self) -> usize {
        self.text[self.at..].find('\n').map_or(self.text.len(), |length| self.at + length)
    }
}

fn names_credential(header: &str) -> bool {
    header.split(['[', ']', '.', '"', '\'', ' ']).any(may_name_credential)
}

/// An escaped name is taken for a credential, since the scan does not decode it.
pub(super) fn may_name_credential(name: &str) -> bool {
    name.contains('\\') || is_credential_name(name.trim_end_matches(':'))
}

/// The length of the string that starts here with its quotes, and whether it is closed.
fn string_length(rest: &str, quote: char, fence: usize) -> (usize, bool) {
    let bytes = rest.as_bytes();
    let mut at = fence;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quote == '"' => at += 1,
            b'\n' if fence == 1 => return (at, false),
            byte if byte == quote as u8 => {
                if fence == 1 {
                    return (at + 1, true);
                }
                if bytes[at..].iter().take(3).filter(|byte| **byte == quote as u8).count() == 3 {
                    // Up to two quotes of the content may touch the closing fence.
                    let run = bytes[at..].iter().take_while(|byte| **byte == quote as u8).count().min(5);
                    return (at + run, true);
                }
            }
            _ => {}
        }
        at += 1;
    }
    (rest.len(), false)
}
