//! The files that a run leaves behind.

use camino::Utf8Path;
use schemars::JsonSchema;
use serde::Serialize;

use super::super::reader::Reader;
use super::artifact_files::{all, open};
use super::refusal::ReadError;

/// The files of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Artifacts {
    /// Those that are there now.
    pub items: Vec<ArtifactEntry>,
}

/// A file of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ArtifactEntry {
    /// Its name; that of a transcript begins with its directory.
    pub name: String,
    /// What it is, such as `frontier` or `events_jsonl`.
    pub kind: String,
    /// Its media type.
    pub media_type: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its content; null while it still grows.
    pub sha256: Option<String>,
}

/// The artifacts in a run directory; a run that failed before it had a workspace has some too.
pub fn artifacts(dir: &Utf8Path, reader: Option<&Reader>) -> Result<Artifacts, ReadError> {
    let mut items = Vec::new();
    for known in all(dir)? {
        items.extend(open(dir, reader, &known)?.map(|opened| opened.entry));
    }
    Ok(Artifacts { items })
}
