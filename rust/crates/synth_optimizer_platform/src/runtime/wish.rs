//! What another process asks of a run: a file in its directory, read by the process that runs it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::control::Signal;
use crate::artifacts::{RunLock, RunPaths, write_atomic};
use crate::config::words::words;
use crate::model::error::{ErrorCode, OptimizerError};
use crate::workspace::Reader;

/// How often the process of a run looks for wishes.
const GLANCE: Duration = Duration::from_millis(200);

words! {
    /// What may be asked of a run.
    WishKind { Interrupt = "interrupt", Stop = "stop", Cancel = "cancel", }
}

words! {
    /// Whether somebody was there to be asked.
    Acknowledgement { Accepted = "accepted", Noop = "noop", }
}

/// What became of a wish.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Asked {
    pub run_id: String,
    pub acknowledgement: Acknowledgement,
    /// The run's state when it was asked.
    pub state: Option<String>,
    /// Why nothing will happen, or who will hear it.
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
struct Wish {
    /// The process that is meant: its note in the lock. Another one that comes later must not hear it.
    holder: String,
    kind: WishKind,
    reason: String,
}

impl WishKind {
    /// The same as a signal to a run of this process.
    pub fn signal(self, reason: String) -> Signal {
        match self {
            Self::Interrupt => Signal::interrupt(reason),
            Self::Stop => Signal::stop(reason),
            Self::Cancel => Signal::cancel(reason),
        }
    }
}

/// Asks something of the process that runs a run.
pub fn ask(paths: &RunPaths, kind: WishKind, reason: &str) -> Result<Asked, OptimizerError> {
    let state = match paths.workspace_db().is_file() {
        true => Some(Reader::open(paths.workspace_db().as_std_path())?.totals()?.state.word().to_owned()),
        false => None,
    };
    let asked = |acknowledgement, reason| Asked { run_id: paths.run_id().to_owned(), acknowledgement, state, reason };
    let Some(holder) = RunLock::holder(&paths.lock())? else {
        return Ok(asked(Acknowledgement::Noop, "no process works on this run".to_owned()));
    };
    let wish = Wish { holder: holder.clone(), kind, reason: reason.to_owned() };
    let text = serde_json::to_vec(&wish)
        .map_err(|error| OptimizerError::new(ErrorCode::Json, format!("the wish cannot be written: {error}")))?;
    write_atomic(&paths.wish(), &text)?;
    Ok(asked(Acknowledgement::Accepted, format!("{holder} was asked")))
}

/// Waits for the next wish for the run of this process.
pub async fn next_wish(paths: &RunPaths) -> (WishKind, String) {
    loop {
        tokio::time::sleep(GLANCE).await;
        let Ok(text) = std::fs::read(paths.wish()) else { continue };
        // A wish is heard once. One for a process that is gone is dropped.
        let _ = std::fs::remove_file(paths.wish());
        let Ok(wish) = serde_json::from_slice::<Wish>(&text) else { continue };
        let own = format!("pid {} since ", std::process::id());
        if wish.holder.starts_with(&own)
            && std::fs::read_to_string(paths.lock()).is_ok_and(|note| note.trim() == wish.holder)
        {
            return (wish.kind, wish.reason);
        }
    }
}

/// A wish as people spell it.
pub fn wish_kind(word: &str) -> Result<WishKind, OptimizerError> {
    WishKind::from_word(word).ok_or_else(|| {
        OptimizerError::new(ErrorCode::Config, format!("{word:?} cannot be asked of a run"))
            .with_hint(format!("Use one of {}.", WishKind::WORDS.join(", ")))
    })
}
