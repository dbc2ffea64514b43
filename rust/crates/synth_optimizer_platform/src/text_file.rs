//! Reads a text file that a configuration names.

use std::fs::File;
use std::io::Read as _;

use camino::Utf8Path;

/// Maximum size of such a file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the text of a file. An error is the rest of a sentence that starts with the path.
pub fn read_text_file(path: &Utf8Path) -> Result<String, String> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        std::io::ErrorKind::PermissionDenied => "is not readable".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    // Opening a named pipe would wait for a writer.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err("is larger than 1 MB".to_owned());
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count() + 1;
        format!("is not UTF-8 text: line {line} has other bytes")
    })
}

#[cfg(test)]
#[path = "text_file_tests.rs"]
mod tests;
