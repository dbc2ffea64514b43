//! What the container tells before the search begins: always asked anew, kept for replays, and taken from the cache
//! where nothing may be called.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cache::{Cache, Lookup};
use crate::container::{Client, SetupCall, SetupCalls};
use crate::workspace::{CacheAction, CacheUse, Reader, SnapshotKind};
use synth_optimizer_core::config::redacted;
use synth_optimizer_core::config::sections::CacheMode;
use synth_optimizer_core::model::cache_key::{Boundary, cache_key};
use synth_optimizer_core::model::error::{ErrorCode, OptimizerError};

/// One call of the setup and what the cache did for it.
#[derive(Debug, Clone)]
pub(super) struct SetupAccess {
    pub(super) boundary: &'static str,
    pub(super) cache: CacheUse,
}

/// What is kept of a setup call. A failure is kept too: a replay must meet it again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Answered(Value),
    Failed(String),
}

/// Setup calls through the cache.
#[derive(Debug)]
pub(super) struct CachedSetup<'a> {
    pub(super) cache: &'a Cache,
    /// None where nothing may be called.
    pub(super) client: Option<&'a Client>,
    pub(super) accesses: Mutex<Vec<SetupAccess>>,
}

impl<'a> CachedSetup<'a> {
    pub(super) fn new(cache: &'a Cache, client: Option<&'a Client>) -> Self {
        Self { cache, client, accesses: Mutex::default() }
    }

    pub(super) fn accesses(&self) -> Vec<SetupAccess> {
        self.accesses.lock().clone()
    }

    async fn answer(&self, call: SetupCall<'_>) -> Result<Value, OptimizerError> {
        let (boundary, route) = (call.boundary, call.route);
        let request = json!({ "method": call.method.as_str(), "route": route, "body": call.body });
        let key = cache_key(self.cache.namespace(), boundary, &request);
        let seen = |action| {
            let cache = CacheUse { key: key.clone(), action };
            let access = SetupAccess { boundary: boundary.word(), cache };
            self.accesses.lock().push(access);
        };
        let Some(client) = self.client else {
            let Lookup::Hit(bytes) = self.cache.get(boundary, &key)? else {
                return Err(self.cache.miss_error(boundary, &key, &format!("the answer of {route}")));
            };
            seen(CacheAction::Hit);
            let told: Told = serde_json::from_slice(&bytes).map_err(|error| {
                OptimizerError::from_cause(ErrorCode::CacheCorrupt, format!("the cached answer of {route}"), error)
            })?;
            return match told {
                Told::Answered(value) => Ok(value),
                Told::Failed(reason) => Err(OptimizerError::new(ErrorCode::Container, reason)),
            };
        };
        let answer =
            client.call(call).await.map(|value| if is_only_shown(boundary) { redacted(&value) } else { value });
        if self.cache.mode() == CacheMode::Readwrite {
            let told = match &answer {
                Ok(value) => Told::Answered(value.clone()),
                // Only what may be missing is remembered as missing: anything else fails here and now.
                Err(error) if boundary == Boundary::TaskInfo => Told::Failed(error.message.clone()),
                // Returned with the answer.
                Err(_) => return answer,
            };
            let bytes =
                serde_json::to_vec(&told).map_err(|error| OptimizerError::from_cause(ErrorCode::Json, route, error))?;
            self.cache.put(boundary, &key, bytes.into())?;
            seen(CacheAction::Write);
        }
        answer
    }
}

/// Documents that people and proposers read, and nothing is computed from: they are kept without what looks like a key.
fn is_only_shown(boundary: Boundary) -> bool {
    match boundary {
        Boundary::Metadata | Boundary::TaskInfo | Boundary::Dataset => true,
        Boundary::Program | Boundary::DatasetRows | Boundary::Rollout | Boundary::Proposer => false,
    }
}

impl SetupCalls for CachedSetup<'_> {
    fn call<'a>(
        &'a self,
        call: SetupCall<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Value, OptimizerError>> + Send + 'a>> {
        Box::pin(self.answer(call))
    }
}

/// Setup calls that are answered with what the container told when the run began.
#[derive(Debug)]
pub(super) struct StoredSetup<'a> {
    stored: &'a Reader,
    /// Rows of the train split are asked for first.
    has_train: AtomicBool,
}

impl<'a> StoredSetup<'a> {
    pub(super) fn new(stored: &'a Reader) -> Self {
        Self { stored, has_train: AtomicBool::new(false) }
    }

    fn answer(&self, boundary: Boundary) -> Result<Value, OptimizerError> {
        let kind = match boundary {
            Boundary::Metadata => SnapshotKind::Contract,
            Boundary::Program => SnapshotKind::Program,
            Boundary::TaskInfo => SnapshotKind::TaskInfo,
            Boundary::Dataset => SnapshotKind::Dataset,
            Boundary::DatasetRows if self.has_train.swap(true, Ordering::Relaxed) => SnapshotKind::HeldoutRows,
            Boundary::DatasetRows => SnapshotKind::TrainRows,
            Boundary::Rollout | Boundary::Proposer => {
                return Err(OptimizerError::new(ErrorCode::Invariant, "a run that only ends calls nobody"));
            }
        };
        let told = self.stored.snapshot(kind)?.ok_or_else(|| {
            let message = format!("the run has not stored what its container told ({})", kind.word());
            OptimizerError::new(ErrorCode::Container, message)
        })?;
        Ok(match boundary {
            Boundary::DatasetRows => json!({ "rows": told, "tasks": told }),
            _ => told,
        })
    }
}

impl SetupCalls for StoredSetup<'_> {
    fn call<'a>(
        &'a self,
        call: SetupCall<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Value, OptimizerError>> + Send + 'a>> {
        Box::pin(std::future::ready(self.answer(call.boundary)))
    }
}
