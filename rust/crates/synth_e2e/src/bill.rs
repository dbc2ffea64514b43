//! Reads the bill of a stub container: its log of executed rollouts.

use std::io;

use camino::Utf8Path;

/// One rollout that the container started.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BillLine {
    pub rollout_id: String,
    pub row: String,
    pub candidate_id: String,
}

/// Reads all rollouts in the order of their start. A missing file is an empty bill; an incomplete line is an error.
pub fn read_bill(path: &Utf8Path) -> io::Result<Vec<BillLine>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let broken = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not a line of a bill: {line:?}"));
    text.lines()
        .map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            [rollout_id, row, candidate_id] => Ok(BillLine {
                rollout_id: rollout_id.to_owned(),
                row: row.to_owned(),
                candidate_id: candidate_id.to_owned(),
            }),
            _ => Err(broken(line)),
        })
        .collect()
}
