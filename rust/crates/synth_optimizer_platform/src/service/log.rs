//! What the service says about itself, one line each, for whoever looks after it.

use std::io::Write;

use crate::clock::unix_millis;
use crate::model::envelope::rfc3339;

/// Where the lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Log {
    Nowhere,
    Stderr,
}

impl Log {
    /// Writes a line. What runs and clients have written into it cannot break it or steer a terminal.
    pub(super) fn line(self, text: &str) {
        match self {
            Self::Nowhere => {}
            // Nobody may be reading any more.
            Self::Stderr => drop(writeln!(std::io::stderr(), "{} {}", rfc3339(unix_millis()), plain(text))),
        }
    }
}

/// The text without control characters.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            letter if letter.is_control() => out.extend(letter.escape_default()),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn nothing_breaks_a_line_or_steers_a_terminal() {
        assert_eq!(plain("run a ended: \u{1b}[31mno\r\nrun b"), "run a ended: \\u{1b}[31mno\\r\\nrun b");
        assert_eq!(plain("grün ✓"), "grün ✓");
    }
}
