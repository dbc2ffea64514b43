-- workspace.sqlite: everything about one run.
--
-- `events` is the source of truth. The tables below "Projections" are computed from it alone, in the transaction that adds
-- the event, and can be rebuilt from it at any time (`workspace rebuild`). Everything else that users query is a view.
-- In tables with a row per rollout, the CHECKs of enumerations use OR, because SQLite builds a table for each longer IN.
-- Times are milliseconds since 1970. Money is in billionths of a dollar, where NULL means unknown, not zero.

PRAGMA application_id = 1398361719; -- "SYNw"

-- The description of the run. One row.
CREATE TABLE run (
  one             INTEGER PRIMARY KEY CHECK (one = 1),
  record          TEXT NOT NULL,            -- JSON
  run_id          TEXT NOT NULL AS (record ->> 'run_id') STORED,
  algorithm       TEXT NOT NULL AS (record ->> 'algorithm') STORED,
  config_json     TEXT NOT NULL AS (record -> 'config') STORED, -- without secrets
  config_digest   TEXT NOT NULL AS (record ->> 'config_digest') STORED,
  container_url   TEXT NOT NULL AS (record ->> 'container_url') STORED,
  cache_mode      TEXT NOT NULL AS (record ->> 'cache_mode') STORED CHECK (cache_mode IN ('off', 'readwrite', 'readonly')),
  cache_namespace TEXT NOT NULL AS (record ->> 'cache_namespace') STORED,
  cache_path      TEXT AS (record ->> 'cache_path') STORED,
  output_dir      TEXT NOT NULL AS (record ->> 'output_dir') STORED,
  run_dir         TEXT NOT NULL AS (record ->> 'run_dir') STORED,
  created_at      INTEGER NOT NULL AS (record ->> 'created_at') STORED
) STRICT;

-- The event log. Rows are added, never changed.
CREATE TABLE events (
  sequence    INTEGER PRIMARY KEY,          -- without gaps
  type        TEXT NOT NULL,
  unix_millis INTEGER NOT NULL,
  fields      TEXT NOT NULL                 -- JSON
) STRICT;

-- Covers the events of every type except the two with one event per rollout, which are read from `rollouts` instead.
CREATE INDEX events_by_type ON events (type) WHERE type NOT IN ('rollout.finished', 'rollout.requested');

-- Outbound calls to the container and the proposer: when each was sent and answered.
CREATE TABLE calls (
  call_id      INTEGER PRIMARY KEY,
  kind         TEXT NOT NULL CHECK (kind IN ('rollout', 'proposer')),
  rollout_id   TEXT,                        -- the container's id of the rollout
  sent_at      INTEGER,                     -- NULL: answered from the cache, not sent
  sends        INTEGER NOT NULL DEFAULT 0,  -- more than one after a crash between sending and the answer
  answered_at  INTEGER,
  cache_action TEXT CHECK (cache_action = 'hit' OR cache_action = 'miss' OR cache_action = 'write'),
  cache_key    BLOB CHECK (length(cache_key) = 32),
  CHECK ((sent_at IS NULL) = (sends = 0)),
  CHECK (sent_at IS NOT NULL OR answered_at IS NOT NULL),
  CHECK ((cache_action IS NULL) = (cache_key IS NULL))
) STRICT;

-- Answers that were received and wait for their turn to become events.
CREATE TABLE inbox (
  call_id INTEGER PRIMARY KEY REFERENCES calls (call_id),
  answer  TEXT NOT NULL                     -- JSON
) STRICT;

-- Complete replies, by the call that they answer.
CREATE TABLE replies (
  call_id INTEGER PRIMARY KEY,
  size    INTEGER NOT NULL,                 -- of the reply, before compression
  data    BLOB NOT NULL                     -- zstd with checksum
) STRICT;

-- Calls that load the task before the search begins.
CREATE TABLE setup_calls (
  setup_call   INTEGER PRIMARY KEY,
  boundary     TEXT NOT NULL,               -- such as `container.program`
  called_at    INTEGER NOT NULL,
  cache_action TEXT CHECK (cache_action IN ('hit', 'miss', 'write')),
  cache_key    BLOB CHECK (length(cache_key) = 32),
  CHECK ((cache_action IS NULL) = (cache_key IS NULL))
) STRICT;

-- Documents that the container returned about itself and its task, each stored once.
CREATE TABLE snapshots (
  kind     TEXT NOT NULL CHECK (kind IN ('contract', 'health', 'program', 'task_info', 'dataset', 'train_rows', 'heldout_rows')),
  digest   BLOB NOT NULL CHECK (length(digest) = 32),
  document TEXT,                            -- JSON
  data     BLOB,                            -- the same document as zstd, if it is large
  taken_at INTEGER NOT NULL,
  CHECK ((document IS NULL) <> (data IS NULL)),
  PRIMARY KEY (kind, digest)
) STRICT, WITHOUT ROWID;

-- Files of the run directory.
CREATE TABLE artifacts (
  path       TEXT PRIMARY KEY,
  kind       TEXT NOT NULL,
  sha256     TEXT NOT NULL,
  bytes      INTEGER NOT NULL,
  retention  TEXT NOT NULL,
  written_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The manifest, once the run has ended.
CREATE TABLE manifests (
  manifest_path     TEXT PRIMARY KEY,
  manifest_json     TEXT NOT NULL,
  updated_at        INTEGER NOT NULL,
  best_candidate_id TEXT AS (coalesce(manifest_json ->> '$.best_candidate.candidate_id', manifest_json ->> '$.best_candidate_id')) VIRTUAL,
  cost_usd          REAL AS (manifest_json ->> '$.cost_usd') VIRTUAL,
  usage_json        TEXT AS (manifest_json -> '$.usage') VIRTUAL
) STRICT;

-- Operations on the run that users and services requested: start, resume, stop, cancel.
CREATE TABLE operations (
  operation_id   INTEGER PRIMARY KEY,
  operation_type TEXT NOT NULL,
  subject_id     TEXT NOT NULL,             -- the process
  status         TEXT NOT NULL CHECK (status IN ('accepted', 'completed', 'failed')),
  updated_at     INTEGER NOT NULL,
  metadata_json  TEXT NOT NULL
) STRICT;

-- Leases of the run's processes: on the run directory, on a container.
CREATE TABLE resource_leases (
  resource_lease_id INTEGER PRIMARY KEY,
  resource_kind     TEXT NOT NULL,
  resource_id       TEXT NOT NULL,
  subject_id        TEXT NOT NULL,          -- the process
  status            TEXT NOT NULL CHECK (status IN ('active', 'released', 'expired')),
  acquired_at       INTEGER NOT NULL,
  released_at       INTEGER,
  CHECK ((status = 'active') = (released_at IS NULL))
) STRICT;

CREATE UNIQUE INDEX one_holder_per_resource ON resource_leases (resource_kind, resource_id) WHERE status = 'active';

-- Freshness of the projections, as the last `workspace status` found it. Only that command writes here.
CREATE TABLE projection_freshness (
  projection_name TEXT PRIMARY KEY,
  status          TEXT NOT NULL CHECK (status IN ('fresh', 'stale')),
  source_table    TEXT NOT NULL,
  source_count    INTEGER NOT NULL,
  projected_table TEXT NOT NULL,
  projected_count INTEGER NOT NULL,
  lag_count       INTEGER NOT NULL,
  rule            TEXT NOT NULL,
  checked_at      INTEGER NOT NULL,
  CHECK ((status = 'fresh') = (lag_count = 0))
) STRICT;

-- Whether the invariants hold, as the last `workspace status` found it. Only that command writes here.
CREATE TABLE invariant_reports (
  report_id       TEXT PRIMARY KEY,
  status          TEXT NOT NULL CHECK (status IN ('pass', 'fail')),
  violation_count INTEGER NOT NULL,
  checked_at      INTEGER NOT NULL,
  CHECK ((status = 'pass') = (violation_count = 0))
) STRICT;

-- Each violated invariant, and how to repair it.
CREATE TABLE invariant_violations (
  report_id    TEXT NOT NULL REFERENCES invariant_reports (report_id) ON DELETE CASCADE,
  invariant_id TEXT NOT NULL,
  severity     TEXT NOT NULL CHECK (severity = 'error'),
  subject_type TEXT NOT NULL,
  subject_id   TEXT NOT NULL,
  message      TEXT NOT NULL,
  repair_hint  TEXT NOT NULL,
  PRIMARY KEY (report_id, invariant_id)
) STRICT, WITHOUT ROWID;

-- ===== Projections: computed from `events`. =====

-- The state and totals of the run, folded from the log. One row.
CREATE TABLE run_state (
  one                 INTEGER PRIMARY KEY CHECK (one = 1),
  totals              TEXT NOT NULL,            -- JSON
  usage_json          TEXT NOT NULL,            -- calls, tokens and cost, as in every document
  state               TEXT AS (totals ->> 'state') VIRTUAL CHECK (state IN ('created', 'initializing', 'ready',
                        'proposing', 'rollout_queueing', 'rollout_running', 'evaluating', 'paused', 'completed',
                        'failed', 'cancelled')),
  best_candidate_id   TEXT AS (totals ->> '$.best.candidate_id') VIRTUAL,
  last_sequence       INTEGER AS (totals ->> 'last_sequence') VIRTUAL,
  started_at          INTEGER AS (totals ->> 'started_at') VIRTUAL,
  updated_at          INTEGER AS (totals ->> 'updated_at') VIRTUAL,
  finished_at         INTEGER AS (totals ->> 'finished_at') VIRTUAL,
  stopped_by_json     TEXT AS (nullif(totals -> 'stopped_by', 'null')) VIRTUAL,
  generations         INTEGER AS (totals ->> 'generations') VIRTUAL,
  candidates          INTEGER AS (totals ->> 'candidates') VIRTUAL,
  rollouts_requested  INTEGER AS (totals ->> 'rollouts_requested') VIRTUAL,
  rollouts_finished   INTEGER AS (totals ->> 'rollouts_finished') VIRTUAL,
  rollouts_failed     INTEGER AS (totals ->> 'rollouts_failed') VIRTUAL, -- sent, without a score
  rollouts_unsent     INTEGER AS (totals ->> 'rollouts_unsent') VIRTUAL, -- withdrawn, or never left the process
  proposer_turns      INTEGER AS (totals ->> 'proposer_turns') VIRTUAL,
  sent_calls          INTEGER AS (usage_json ->> 'sent_calls') VIRTUAL,
  cached_calls        INTEGER AS (usage_json ->> 'cached_calls') VIRTUAL,
  unpriced_calls      INTEGER AS (usage_json ->> 'unpriced_calls') VIRTUAL,   -- sent calls of unknown cost
  unknown_outcomes    INTEGER AS (usage_json ->> 'unknown_outcomes') VIRTUAL, -- sent, with an unknown outcome
  prompt_tokens       INTEGER AS (usage_json ->> 'prompt_tokens') VIRTUAL,    -- of sent calls, as far as known
  completion_tokens   INTEGER AS (usage_json ->> 'completion_tokens') VIRTUAL,
  total_tokens        INTEGER AS (usage_json ->> 'total_tokens') VIRTUAL,
  cost_usd            REAL AS (usage_json ->> 'cost_usd') VIRTUAL,
  CHECK ((finished_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled'))),
  CHECK (rollouts_finished + rollouts_failed + rollouts_unsent <= rollouts_requested),
  CHECK (unpriced_calls <= sent_calls)
) STRICT;

-- Every requested rollout and its outcome.
CREATE TABLE rollouts (
  call_id           INTEGER PRIMARY KEY,
  evaluation        INTEGER NOT NULL,       -- the first call of its evaluation
  candidate_id      TEXT NOT NULL REFERENCES candidates (candidate_id),
  example_id        TEXT NOT NULL,          -- the container's id of the row
  evaluation_stage  TEXT NOT NULL CHECK (evaluation_stage = 'candidate_minibatch' OR evaluation_stage = 'candidate_full_train'
                      OR evaluation_stage = 'parent_minibatch_reference' OR evaluation_stage = 'seed_full_train'
                      OR evaluation_stage = 'heldout' OR evaluation_stage = 'check' OR evaluation_stage = 'repeat'
                      OR evaluation_stage = 'glance'),
  generation        INTEGER,
  attempt           INTEGER NOT NULL,
  replicate         INTEGER NOT NULL,
  status            TEXT NOT NULL CHECK (status = 'requested' OR status = 'finished' OR status = 'failed' OR status = 'retried'),
  settled_sequence  INTEGER,                -- the event that settled it
  reward            REAL,
  objectives_json   TEXT,                   -- scores by name, if the container returned more than a reward
  prompt_tokens     INTEGER,
  completion_tokens INTEGER,
  total_tokens      INTEGER,
  cost_nano_usd     INTEGER,
  billing           TEXT CHECK (billing = 'sent' OR billing = 'cached' OR billing = 'unsent' OR billing = 'unknown'),
  failure_class     TEXT,
  failure_message   TEXT,
  trace_digest      BLOB CHECK (length(trace_digest) = 32), -- digest of the reply
  cached            INTEGER AS (billing = 'cached') VIRTUAL,
  split             TEXT AS (CASE evaluation_stage WHEN 'heldout' THEN 'heldout' ELSE 'train' END) VIRTUAL,
  CHECK ((status = 'requested') = (settled_sequence IS NULL)),
  CHECK ((status = 'requested') = (billing IS NULL)),
  CHECK ((status = 'finished') = (reward IS NOT NULL)),
  CHECK ((status IN ('failed', 'retried')) = (failure_class IS NOT NULL)),
  CHECK ((failure_class IS NULL) = (failure_message IS NULL))
) STRICT;

CREATE INDEX rollouts_by_candidate ON rollouts (candidate_id, example_id);

-- Every candidate: its texts, parents, scores and decisions.
CREATE TABLE candidates (
  candidate_id        TEXT PRIMARY KEY,
  registered_sequence INTEGER NOT NULL,     -- the event that registered it
  updated_sequence    INTEGER NOT NULL,     -- the last event about it
  status              TEXT NOT NULL CHECK (status IN ('registered', 'minibatch_evaluated', 'rejected_minibatch',
                        'full_train_evaluated', 'accepted', 'rejected_full_train', 'deferred_budget',
                        'deferred_failures', 'deferred_stop', 'superseded')),
  on_frontier         INTEGER NOT NULL CHECK (on_frontier IN (0, 1)),
  record              TEXT NOT NULL,        -- JSON: the candidate as in every document
  operation           TEXT NOT NULL CHECK (operation IN ('seed', 'mutate', 'merge', 'rebase')),
  parent_ids_json     TEXT NOT NULL,
  generation          INTEGER,
  source              TEXT AS (operation) VIRTUAL,
  parent_id           TEXT AS (parent_ids_json ->> '$[0]') VIRTUAL,
  payload_json        TEXT AS (record -> 'payload') VIRTUAL,
  changed_fields_json TEXT AS (record -> 'changed_fields') VIRTUAL,
  rationale           TEXT AS (record ->> 'rationale') VIRTUAL,
  minibatch_score     TEXT AS (nullif(record -> 'minibatch_score', 'null')) VIRTUAL, -- mean, n, standard_error, low, high
  train_score         TEXT AS (nullif(record -> 'train_score', 'null')) VIRTUAL,
  heldout_score       TEXT AS (nullif(record -> 'heldout_score', 'null')) VIRTUAL,
  minibatch_reward    REAL AS (record ->> 'minibatch_reward') VIRTUAL,
  train_reward        REAL AS (record ->> 'train_reward') VIRTUAL,
  heldout_reward      REAL AS (record ->> 'heldout_reward') VIRTUAL,
  CHECK ((operation = 'seed') = (json_array_length(parent_ids_json) = 0)),
  CHECK (updated_sequence >= registered_sequence)
) STRICT;

CREATE UNIQUE INDEX candidates_in_order ON candidates (registered_sequence);
CREATE INDEX candidates_on_frontier ON candidates (candidate_id) WHERE on_frontier;

-- Every proposer turn and its outcome.
CREATE TABLE proposer_calls (
  call_id           INTEGER PRIMARY KEY,
  generation        INTEGER NOT NULL,
  attempt           INTEGER NOT NULL,
  proposal_count    INTEGER NOT NULL,       -- requested; once completed, returned
  ignored           INTEGER NOT NULL DEFAULT 0,
  status            TEXT NOT NULL CHECK (status IN ('started', 'completed', 'failed', 'retried')),
  started_sequence  INTEGER NOT NULL,       -- the event that requested it
  settled_sequence  INTEGER,                -- the event that settled it
  requested_model   TEXT,
  effective_model   TEXT,
  prompt_tokens     INTEGER,
  completion_tokens INTEGER,
  total_tokens      INTEGER,
  cost_nano_usd     INTEGER,
  billing           TEXT CHECK (billing IN ('sent', 'cached', 'unsent', 'unknown')),
  failure_class     TEXT,
  failure_message   TEXT,
  cached            INTEGER AS (billing = 'cached') VIRTUAL,
  CHECK ((status = 'started') = (settled_sequence IS NULL)),
  CHECK ((status = 'started') = (billing IS NULL)),
  CHECK ((status = 'completed') = (effective_model IS NOT NULL)),
  CHECK ((status IN ('failed', 'retried')) = (failure_class IS NOT NULL))
) STRICT;
