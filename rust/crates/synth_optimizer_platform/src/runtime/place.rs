//! Where a run is or would be, looked at before it begins: its directory, what is in it already, and its cache.

use camino::Utf8PathBuf;

use super::findings::{CheckReport, CheckStage, Finding};
use super::probe::try_directory;
use super::request::Request;
use super::resume::check_same_search;
use crate::artifacts::{DiskWatch, RunPaths};
use crate::cache::{Cache, CacheSettings};
use crate::container::{Holder, has_orphans};
use crate::workspace::Reader;
use synth_optimizer_core::config::Config;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// Where the run is, or would be; one without a name gets a new one.
#[derive(Debug)]
pub(super) struct Place {
    paths: Result<Option<RunPaths>, OptimizerError>,
    pub(super) cache: CacheSettings,
}

impl Place {
    pub(super) fn of(config: &Config) -> Self {
        let root = &config.run.output_dir;
        let run_id = config.run.run_id.as_deref();
        let dir: Utf8PathBuf = run_id.map_or_else(|| root.join("new"), |run_id| root.join(run_id));
        Self {
            paths: run_id.map(|run_id| RunPaths::new(root, run_id)).transpose(),
            cache: CacheSettings::of(&config.cache, &dir, run_id.unwrap_or("new")),
        }
    }

    /// A container whose run goes on is not left behind.
    pub(super) fn left(&self) -> Left {
        let Ok(Some(paths)) = &self.paths else { return Left::Nothing };
        let is_left = paths.check_free().is_ok() && has_orphans(paths.dir(), Holder::Container);
        if is_left { Left::Container } else { Left::Nothing }
    }

    /// The output directory, the run in it, and the room on the disk.
    pub(super) fn look_at_output(&self, request: &Request, report: &mut CheckReport) {
        let config = &request.config;
        if let Err(error) = try_directory(&config.run.output_dir) {
            report.block(Finding::of(CheckStage::Output, &error).at("run.output_dir"));
            if !config.run.output_dir.is_dir() {
                // There is no run in it and nothing to measure.
                return;
            }
        }
        let is_new = match &self.paths {
            Ok(Some(paths)) => !look_at_run(request, paths, report),
            Ok(None) => true,
            Err(error) => {
                report.block(Finding::of(CheckStage::Output, error).at("run.run_id"));
                true
            }
        };
        if is_new && let Err(error) = DiskWatch::new(&config.disk_budget, &config.run.output_dir).check_start() {
            report.block(Finding::of(CheckStage::Output, &error));
        }
    }

    /// The file of the cache, or the place for a new one.
    pub(super) fn look_at_cache(&self, config: &Config, report: &mut CheckReport) {
        let settings = &self.cache;
        let is_there = settings.path.exists();
        let checked = match settings.mode {
            CacheMode::Off => Ok(()),
            CacheMode::Readonly if !is_there => {
                let message = format!("cache.mode is \"readonly\", and the cache {} does not exist", settings.path);
                Err(OptimizerError::new(ErrorCode::CacheMiss, message))
            }
            CacheMode::Readonly => Cache::check_file(settings),
            // A cache in the run directory is as writable as that.
            CacheMode::Readwrite if !is_there && config.cache.path.is_none() => Ok(()),
            CacheMode::Readwrite => Cache::check_file(settings).and_then(|()| {
                settings.path.parent().filter(|dir| !dir.as_str().is_empty()).map_or(Ok(()), try_directory)
            }),
        };
        if let Err(error) = checked {
            let finding = Finding::of(CheckStage::Cache, &error).at("cache.path");
            report.block(if error.code == ErrorCode::Sqlite { finding.passing() } else { finding });
        }
    }
}

/// Whether the run has begun.
fn look_at_run(request: &Request, paths: &RunPaths, report: &mut CheckReport) -> bool {
    let run_id = paths.run_id();
    if paths.dir().exists()
        && let Err(error) = try_directory(paths.dir())
    {
        report.block(Finding::of(CheckStage::Output, &error).at("run.output_dir"));
    }
    if let Err(error) = paths.check_own() {
        report.block(Finding::of(CheckStage::Output, &error).at("run.run_id"));
    }
    let held = paths.check_free();
    if let Err(error) = &held {
        report.block(Finding::of(CheckStage::Output, error).at("run.run_id").passing());
    }
    if !paths.workspace_db().exists() {
        return false;
    }
    let stored = Reader::open(paths.workspace_db().as_std_path())
        .and_then(|reader| Ok((reader.run_row()?, reader.totals()?.is_over())));
    let (row, is_over) = match stored {
        Ok(stored) => stored,
        Err(error) => {
            report.block(Finding::of(CheckStage::Output, &error).at("run.run_id"));
            return true;
        }
    };
    if let Err(error) = check_same_search(&row, &request.config, &request.algorithm) {
        report.block(Finding::of(CheckStage::Output, &error).at("run.run_id"));
    } else if is_over {
        let message = format!("run {run_id} is over, and the same command gives its result again");
        let hint = "Choose another run.run_id to search again.";
        report.warn(Finding::new(CheckStage::Output, "run_is_over", message, hint).at("run.run_id"));
    } else if held.is_ok() {
        let message = format!("run {run_id} has begun, and the same command goes on with it");
        let hint = "Choose another run.run_id to begin anew.";
        report.warn(Finding::new(CheckStage::Output, "run_is_resumed", message, hint).at("run.run_id"));
    }
    true
}

/// What there is of the container already, such as what a crashed process of this run has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    /// It runs on; the run will end it and start its own.
    Container,
    /// Nothing is left behind: another run has it.
    InUse,
}
