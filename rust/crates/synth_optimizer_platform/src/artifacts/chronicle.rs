//! The log as files while the run goes on: the feed grows with every batch, and so does what the results are made of.

use super::feed::Feed;
use super::log::Each;
use super::normalized::NormalizedFeed;
use super::run_dir::RunPaths;
use crate::workspace::Stored;
use synth_optimizer_core::model::error::OptimizerError;
use synth_optimizer_core::model::event::message;
use synth_optimizer_core::model::run_view::RunView;

/// The feed of a run and what its log came to so far.
#[derive(Debug)]
pub struct Chronicle {
    feed: Feed,
    told: Told,
}

/// Everything that the result files say about a log. The log is not read again for them.
#[derive(Debug)]
pub struct Told {
    pub(super) view: RunView,
    pub(super) normalized: NormalizedFeed,
}

impl Chronicle {
    /// Opens the feed, makes it equal to the log and takes in the log; `log` shows the events from the first on.
    pub fn open(
        paths: &RunPaths,
        log: impl FnOnce(Each<'_>) -> Result<(), OptimizerError>,
    ) -> Result<Self, OptimizerError> {
        let mut told = Told::new(paths)?;
        let feed = Feed::open(paths, |each| {
            log(&mut |stored| {
                told.see(&stored, &message(&stored.event))?;
                each(stored)
            })
        })?;
        Ok(Self { feed, told })
    }

    /// Takes in the events that follow.
    pub fn append(&mut self, events: &[Stored]) -> Result<(), OptimizerError> {
        for stored in events {
            let message = message(&stored.event);
            self.feed.push(stored, &message)?;
            self.told.see(stored, &message)?;
        }
        self.feed.flush()
    }

    /// Closes the feed, to write the results.
    pub fn end(self) -> Told {
        self.told
    }
}

impl Told {
    /// Takes in a whole log; `log` shows the events from the first on.
    pub fn of(
        paths: &RunPaths,
        log: impl FnOnce(Each<'_>) -> Result<(), OptimizerError>,
    ) -> Result<Self, OptimizerError> {
        let mut told = Self::new(paths)?;
        log(&mut |stored| told.see(&stored, &message(&stored.event)))?;
        Ok(told)
    }

    fn new(paths: &RunPaths) -> Result<Self, OptimizerError> {
        Ok(Self { view: RunView::default(), normalized: NormalizedFeed::create(paths)? })
    }

    fn see(&mut self, stored: &Stored, message: &str) -> Result<(), OptimizerError> {
        self.view.apply(stored.sequence, stored.unix_millis, &stored.event);
        self.normalized.push(&stored.event, message)
    }
}
