//! The runs of a directory, for the page.

use camino::{Utf8Component, Utf8Path, Utf8PathBuf};

use super::super::context::ReaderCache;
use super::{files_of, invalid_cursor};
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::artifacts::RunPaths;
use synth_optimizer_platform::views::{
    ListedRun, RunControls, RunFilesRead, RunList, RunListQuery, RunSource, ServiceHealth, ShownRun,
};
use synth_optimizer_platform::workspace::models::{ReadError, Refusal};

/// Runs per page of the list.
const PAGE: usize = 50;
/// How many runs a search by state reads at most. The list is read again every few seconds.
const MAX_SEARCHED: usize = 200;

/// The runs of an output directory, or a single run directory.
#[derive(Debug)]
pub struct DirectoryRuns {
    root: Utf8PathBuf,
    /// The only run that is shown.
    only: Option<RunPaths>,
    pub(in crate::service) readers: ReaderCache,
}

impl DirectoryRuns {
    /// Opens an output directory or a run directory.
    pub fn open(dir: &Utf8Path) -> Result<Self, OptimizerError> {
        if let Ok(paths) = RunPaths::of_dir(dir) {
            let root = paths.output_dir().to_owned();
            return Ok(Self { root, only: Some(paths), readers: ReaderCache::default() });
        }
        let found = Self { root: dir.to_owned(), only: None, readers: ReaderCache::default() };
        if found.names()?.is_empty() {
            // The error of a run directory says what is missing.
            RunPaths::of_dir(dir)?;
        }
        Ok(found)
    }

    /// Returns the names of the run directories, the last changed first.
    fn names(&self) -> Result<Vec<String>, OptimizerError> {
        if let Some(only) = &self.only {
            return Ok(vec![only.run_id().to_owned()]);
        }
        let failed = |error| {
            let message = format!("listing {} failed", self.root);
            OptimizerError::from_cause(synth_optimizer_core::model::error::ErrorCode::Io, message, error)
        };
        let mut found = Vec::new();
        for entry in self.root.read_dir_utf8().map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_owned();
            let Some(paths) = self.dir_of(&name) else { continue };
            let changed = [paths.events(), paths.manifest(), paths.workspace_db()]
                .iter()
                .filter_map(|path| std::fs::metadata(path).ok()?.modified().ok())
                .max();
            found.push((changed, name));
        }
        found.sort_by(|left, right| right.cmp(left));
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    /// Returns the paths of a run directory in the output directory. Links such as `latest` name runs that are listed anyway.
    fn dir_of(&self, name: &str) -> Option<RunPaths> {
        let is_name = Utf8Path::new(name).components().eq([Utf8Component::Normal(name)]);
        let dir = is_name.then(|| self.root.join(name))?;
        let is_dir = std::fs::symlink_metadata(&dir).is_ok_and(|found| found.is_dir());
        is_dir.then(|| RunPaths::of_dir(&dir).ok()).flatten()
    }

    /// Returns the paths of a run of this directory.
    fn paths(&self, run_id: &str) -> Result<RunPaths, ReadError> {
        let found = match &self.only {
            Some(only) => Some(only.clone()).filter(|only| only.run_id() == run_id),
            None => self.dir_of(run_id),
        };
        found.ok_or_else(|| {
            ReadError::NotFound(Refusal {
                code: "run_not_found",
                field: "run_id",
                message: format!("there is no run {run_id:?} in {}", self.root),
                hint: "List the runs; it may have been deleted.".to_owned(),
            })
        })
    }

    /// Reads what a run directory has of its run.
    fn read(&self, run_id: &str) -> Result<(RunPaths, RunFilesRead), ReadError> {
        let paths = self.paths(run_id)?;
        let read = RunFilesRead::read(&paths, |path| self.readers.open(path))?;
        Ok((paths, read))
    }

    fn listed(&self, name: &str) -> Result<ListedRun, ReadError> {
        let (_, read) = self.read(name)?;
        let (state, is_terminal) = state_of(&read);
        let listed = ListedRun { state, is_terminal, ..unread(name) };
        files_of(listed, read)
    }
}

/// Returns the state of a run in one word, and whether it no longer changes by itself.
fn state_of(read: &RunFilesRead) -> (String, bool) {
    let Some(overview) = &read.overview else { return (UNREADABLE.to_owned(), true) };
    let has_ended = ["completed", "failed", "cancelled"].contains(&overview.state.as_str());
    match &overview.holder {
        _ if overview.is_terminal || has_ended => (overview.state.clone(), true),
        Some(_) => ("running".to_owned(), false),
        None if read.problem.is_some() => (UNREADABLE.to_owned(), true),
        None => ("interrupted".to_owned(), true),
    }
}

/// The state of a run of which neither workspace nor manifest can be read.
const UNREADABLE: &str = "unreadable";

/// Returns the entry of a run before its files are read.
fn unread(name: &str) -> ListedRun {
    ListedRun {
        run_id: name.to_owned(),
        state: UNREADABLE.to_owned(),
        is_terminal: true,
        waiting: None,
        submitted_at: None,
        overview: None,
        limits: Vec::new(),
        steps: Vec::new(),
        problem: None,
    }
}

/// Parses the cursor of a page: the number of runs before it.
fn place_of(cursor: &str) -> Result<usize, ReadError> {
    cursor.parse().map_err(|_| invalid_cursor(format!("{cursor:?} is not a cursor of this list")))
}

impl RunSource for DirectoryRuns {
    fn runs(&self, query: &RunListQuery) -> Result<RunList, ReadError> {
        let names = self.names()?;
        let is_named = |name: &&String| query.name.as_ref().is_none_or(|part| name.contains(part.as_str()));
        let first = query.cursor.as_deref().map_or(Ok(0), place_of)?;
        let (mut runs, mut next_cursor) = (Vec::new(), None);
        for (place, name) in names.iter().filter(is_named).enumerate().skip(first) {
            if runs.len() == PAGE || place - first == MAX_SEARCHED {
                next_cursor = Some(place.to_string());
                break;
            }
            let damaged = |error: ReadError| ListedRun { problem: Some(error.to_string()), ..unread(name) };
            let listed = self.listed(name).unwrap_or_else(damaged);
            if query.state.as_ref().is_none_or(|state| *state == listed.state) {
                runs.push(listed);
            }
        }
        Ok(RunList { runs, next_cursor, controls: RunControls::ReadOnly })
    }

    fn run_ids(&self) -> Result<Vec<String>, ReadError> {
        let mut names = self.names()?;
        names.truncate(PAGE);
        Ok(names)
    }

    fn run(&self, run_id: &str) -> Result<ShownRun, ReadError> {
        let (paths, read) = self.read(run_id)?;
        let (state, is_terminal) = state_of(&read);
        let RunFilesRead { reader, problem, .. } = read;
        Ok(ShownRun {
            paths,
            state,
            is_terminal,
            waiting: None,
            submitted_at: None,
            controls: RunControls::ReadOnly,
            reader,
            problem,
            error: None,
        })
    }

    fn health(&self) -> Result<Option<ServiceHealth>, ReadError> {
        Ok(None)
    }

    fn place(&self) -> String {
        self.root.to_string()
    }
}
