//! The stub's bill: one line per execution, appended before the execution starts.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use super::task::Row;

/// An append-only file, or none.
#[derive(Debug)]
pub(super) struct BillFile(Option<File>);

impl BillFile {
    pub(super) fn open(path: Option<&Path>) -> io::Result<Self> {
        Ok(Self(path.map(|path| OpenOptions::new().append(true).create(true).open(path)).transpose()?))
    }

    /// Appends a line with a single write, so that lines of several processes never mix.
    pub(super) fn add(&self, rollout_id: &str, row: Row, candidate: &str) -> io::Result<()> {
        match &self.0 {
            Some(file) => {
                (&*file).write_all(format!("{rollout_id}\t{}:{}\t{candidate}\n", row.split(), row.index).as_bytes())
            }
            None => Ok(()),
        }
    }
}
