//! The runs of a directory, for the page.

use camino::{Utf8Path, Utf8PathBuf};

use super::super::context::ReaderCache;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_platform::artifacts::{RunOverview, RunPaths, run_status};
use synth_optimizer_platform::views::{
    ListedRun, RunControls, RunList, RunListQuery, RunSource, ServiceHealth, ShownRun,
};
use synth_optimizer_platform::workspace::models::{ReadError, Refusal};

/// Runs per page of the list.
const PAGE: usize = 50;

/// The runs of an output directory, or a single run directory.
#[derive(Debug)]
pub struct DirectoryRuns {
    root: Utf8PathBuf,
    /// The only run that is shown.
    only: Option<String>,
    pub(in crate::service) readers: ReaderCache,
}

impl DirectoryRuns {
    /// Opens an output directory or a run directory.
    pub fn open(dir: &Utf8Path) -> Result<Self, OptimizerError> {
        if let Ok(paths) = RunPaths::of_dir(dir) {
            let (root, only) = (paths.output_dir().to_owned(), Some(paths.run_id().to_owned()));
            return Ok(Self { root, only, readers: ReaderCache::default() });
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
            return Ok(vec![only.clone()]);
        }
        let failed = |error| {
            let message = format!("listing {} failed", self.root);
            OptimizerError::from_cause(synth_optimizer_core::model::error::ErrorCode::Io, message, error)
        };
        let mut found = Vec::new();
        for entry in self.root.read_dir_utf8().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // Links such as `latest` name runs that are listed anyway.
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let Some(paths) = is_dir.then(|| RunPaths::of_dir(entry.path()).ok()).flatten() else { continue };
            let changed = [paths.events(), paths.manifest(), paths.workspace_db()]
                .iter()
                .filter_map(|path| std::fs::metadata(path).ok()?.modified().ok())
                .max();
            found.push((changed, entry.file_name().to_owned()));
        }
        found.sort_by(|left, right| right.cmp(left));
        Ok(found.into_iter().map(|(_, name)| name).collect())
    }

    /// Returns the paths of a run of this directory.
    pub(in crate::service) fn paths(&self, run_id: &str) -> Result<RunPaths, ReadError> {
        let unknown = || {
            ReadError::NotFound(Refusal {
                code: "run_not_found",
                field: "run_id",
                message: format!("there is no run {run_id:?} in {}", self.root),
                hint: "List the runs; it may have been deleted.".to_owned(),
            })
        };
        if self.only.as_deref().is_some_and(|only| only != run_id) {
            return Err(unknown());
        }
        let paths = RunPaths::new(&self.root, run_id).map_err(|_| unknown())?;
        if paths.workspace_db().is_file() || paths.manifest().is_file() { Ok(paths) } else { Err(unknown()) }
    }

    fn listed(&self, name: &str) -> Result<ListedRun, ReadError> {
        let run = self.run(name)?;
        let overview = run_status(&run.paths)?;
        let steps = run.reader.as_ref().map(|reader| reader.score_steps()).transpose()?.unwrap_or_default();
        Ok(ListedRun {
            run_id: name.to_owned(),
            state: run.state,
            is_terminal: run.is_terminal,
            waiting: None,
            submitted_at: None,
            overview: Some(overview),
            steps,
            problem: None,
        })
    }
}

/// Returns the state of a run in one word, and whether it can still change by itself.
fn state_of(overview: &RunOverview) -> (String, bool) {
    match (overview.is_terminal, &overview.holder) {
        (true, _) => (overview.state.clone(), true),
        (false, Some(_)) => ("running".to_owned(), false),
        (false, None) if ["failed", "cancelled"].contains(&overview.state.as_str()) => (overview.state.clone(), true),
        (false, None) => ("interrupted".to_owned(), true),
    }
}

/// Returns the entry of a run whose files cannot be read.
fn damaged(name: &str, error: &ReadError) -> ListedRun {
    ListedRun {
        run_id: name.to_owned(),
        state: "unreadable".to_owned(),
        is_terminal: true,
        waiting: None,
        submitted_at: None,
        overview: None,
        steps: Vec::new(),
        problem: Some(error.to_string()),
    }
}

impl RunSource for DirectoryRuns {
    fn runs(&self, query: &RunListQuery) -> Result<RunList, ReadError> {
        let names = self.names()?;
        let is_named = |name: &&String| query.name.as_ref().is_none_or(|part| name.contains(part.as_str()));
        let first = query.cursor.as_deref().and_then(|cursor| cursor.parse::<usize>().ok()).unwrap_or(0);
        let (mut runs, mut next_cursor) = (Vec::new(), None);
        for (place, name) in names.iter().filter(is_named).enumerate().skip(first) {
            if runs.len() == PAGE {
                next_cursor = Some(place.to_string());
                break;
            }
            let listed = self.listed(name).unwrap_or_else(|error| damaged(name, &error));
            if query.state.as_ref().is_none_or(|state| *state == listed.state) {
                runs.push(listed);
            }
        }
        Ok(RunList { runs, next_cursor, controls: RunControls::ReadOnly })
    }

    fn run(&self, run_id: &str) -> Result<ShownRun, ReadError> {
        let paths = self.paths(run_id)?;
        let path = paths.workspace_db();
        let reader = if path.is_file() { Some(self.readers.open(&path)?) } else { None };
        let (state, is_terminal) = state_of(&run_status(&paths)?);
        let controls = RunControls::ReadOnly;
        Ok(ShownRun { paths, state, is_terminal, waiting: None, submitted_at: None, controls, reader })
    }

    fn health(&self) -> Result<Option<ServiceHealth>, ReadError> {
        Ok(None)
    }

    fn place(&self) -> String {
        self.root.to_string()
    }
}
