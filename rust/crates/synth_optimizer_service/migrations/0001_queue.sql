-- service.sqlite: the run requests, the holder of each, and their history.
--
-- A request changes state only along the lifecycle table of requests. `request_history` has one row per transition, written
-- in the same transaction. CHECKs and unique indexes enforce the invariants, independent of the code.
-- Times for display are milliseconds since 1970. Deadlines are milliseconds of the boot clock, with the id of their boot.

PRAGMA application_id = 1398361713; -- "SYNq"

CREATE TABLE run_requests (
  seq                   INTEGER PRIMARY KEY AUTOINCREMENT, -- age: the order of submission, independent of any clock
  request_id            TEXT NOT NULL UNIQUE,
  run_id                TEXT NOT NULL,
  status                TEXT NOT NULL
    CHECK (status IN ('queued', 'leased', 'running', 'paused', 'completed', 'failed', 'cancelled')),
  priority              INTEGER NOT NULL,
  auto_start            INTEGER NOT NULL CHECK (auto_start IN (0, 1)),
  manual_step           INTEGER NOT NULL CHECK (manual_step IN (0, 1)),
  config_path           TEXT,
  config_digest         TEXT NOT NULL,
  container_url         TEXT NOT NULL,
  cache_mode            TEXT NOT NULL CHECK (cache_mode IN ('off', 'readwrite', 'readonly')),
  cache_namespace       TEXT NOT NULL,
  output_dir            TEXT NOT NULL,
  run_dir               TEXT NOT NULL,
  idempotency_key       TEXT UNIQUE,
  request_body_sha256   TEXT NOT NULL,
  container_lane        TEXT NOT NULL,
  cache_lane            TEXT CHECK (cache_lane IS NULL OR cache_mode <> 'off'),
  submitted_at          INTEGER NOT NULL,
  leased_at             INTEGER,            -- time of the latest claim
  started_at            INTEGER,            -- time of the first start
  finished_at           INTEGER,
  updated_at            INTEGER NOT NULL,

  -- The lease. `fencing_token` stays after the lease has ended; the next token is higher.
  fencing_token         INTEGER NOT NULL DEFAULT 0 CHECK (fencing_token >= 0),
  lease_id              TEXT,
  worker_id             TEXT,
  lease_expires_at      INTEGER,
  lease_deadline_boot   INTEGER,
  lease_boot_id         TEXT,
  holder_kind           TEXT CHECK (holder_kind IN ('service', 'worker', 'caller')),
  holder_instance       TEXT,
  holder_pid            INTEGER,
  holder_started        INTEGER,            -- clock ticks since the boot; with the pid, identifies one process
  holder_pid_namespace  TEXT,
  last_holder_pid       INTEGER,              -- of the previous lease; its lock on the run may be replaced
  attempts              INTEGER NOT NULL DEFAULT 0,
  recoveries            INTEGER NOT NULL DEFAULT 0,
  recoveries_without_progress                INTEGER NOT NULL DEFAULT 0,   -- recoveries since the run last made progress

  -- The control request that the holder has not obeyed yet.
  control               TEXT CHECK (control IN ('cancel', 'pause', 'stop')),
  control_reason        TEXT,
  control_pause_ms      INTEGER,
  control_at            INTEGER,
  -- Whether the request ended or was paused without its holder, so that the run and its processes need cleanup.
  needs_cleanup         INTEGER NOT NULL DEFAULT 0 CHECK (needs_cleanup IN (0, 1)),
  progress_mark         INTEGER,
  progress_at           INTEGER,

  -- Set while a queued request waits for the end of an outage: when it may be claimed again, and why it waits.
  retry_at              INTEGER,
  retry_boot            INTEGER,
  retry_boot_id         TEXT,
  retry_reason          TEXT,

  -- Set if the pause has a timeout.
  pause_expires_at      INTEGER,
  pause_deadline_boot   INTEGER,
  pause_boot_id         TEXT,
  pause_ms              INTEGER,

  run_workspace_db_path TEXT,
  result_manifest_path  TEXT,
  best_candidate_id     TEXT,
  cost_usd              REAL,

  -- Large columns come last, because SQLite reads a row from its start.
  error_json            TEXT,
  usage_json            TEXT,
  result_json           TEXT,
  config_json           TEXT NOT NULL,      -- resolved, complete, without secrets
  values_json           TEXT NOT NULL,      -- every field with its value and origin

  CHECK ((status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
  CHECK ((status IN ('leased', 'running')) = (lease_id IS NOT NULL)),
  CHECK ((status IN ('leased', 'running')) = (lease_deadline_boot IS NOT NULL)),
  CHECK ((lease_id IS NULL) = (lease_expires_at IS NULL)),
  CHECK ((lease_id IS NULL) = (lease_boot_id IS NULL)),
  CHECK ((lease_id IS NULL) = (holder_kind IS NULL)),
  CHECK (lease_id IS NULL OR fencing_token > 0),
  CHECK (lease_id IS NOT NULL OR (worker_id IS NULL AND holder_instance IS NULL AND holder_pid IS NULL)),
  CHECK ((holder_pid IS NULL) = (holder_started IS NULL)),
  CHECK ((holder_pid IS NULL) = (holder_pid_namespace IS NULL)),
  CHECK (status = 'paused' OR pause_deadline_boot IS NULL),
  CHECK ((pause_deadline_boot IS NULL) = (pause_expires_at IS NULL)),
  CHECK ((pause_deadline_boot IS NULL) = (pause_boot_id IS NULL)),
  CHECK ((pause_deadline_boot IS NULL) = (pause_ms IS NULL)),
  CHECK (retry_at IS NULL OR status = 'queued'),
  CHECK ((retry_at IS NULL) = (retry_boot IS NULL)),
  CHECK ((retry_at IS NULL) = (retry_boot_id IS NULL)),
  CHECK ((retry_at IS NULL) = (retry_reason IS NULL)),
  CHECK (control IS NULL OR status IN ('queued', 'leased', 'running')),
  CHECK ((control IS NULL) = (control_at IS NULL)),
  CHECK (status <> 'failed' OR error_json IS NOT NULL)
) STRICT;

-- One active request per container and per cache, even when claims race.
CREATE UNIQUE INDEX one_active_per_container ON run_requests (container_lane) WHERE status IN ('leased', 'running');
CREATE UNIQUE INDEX one_active_per_cache ON run_requests (cache_lane)
  WHERE status IN ('leased', 'running') AND cache_lane IS NOT NULL;
CREATE UNIQUE INDEX one_unfinished_per_run ON run_requests (run_id)
  WHERE status NOT IN ('completed', 'failed', 'cancelled');
CREATE INDEX requests_by_status ON run_requests (status, priority DESC, seq);
CREATE INDEX requests_by_run ON run_requests (run_id, seq);
CREATE INDEX requests_that_need_cleanup ON run_requests (seq) WHERE needs_cleanup = 1;
CREATE INDEX requests_with_lease ON run_requests (lease_id) WHERE lease_id IS NOT NULL;

-- The history of requests: every transition, and every control request for a holder (with `to_state` = `from_state`).
CREATE TABLE request_history (
  sequence      INTEGER PRIMARY KEY AUTOINCREMENT,
  request_seq   INTEGER NOT NULL REFERENCES run_requests (seq) ON DELETE CASCADE,
  at            INTEGER NOT NULL,
  from_state    TEXT,                       -- NULL for the submission
  to_state      TEXT NOT NULL,
  "trigger"     TEXT NOT NULL,
  worker_id     TEXT,
  fencing_token INTEGER NOT NULL,
  detail_json   TEXT NOT NULL
) STRICT;

CREATE INDEX history_by_request ON request_history (request_seq, fencing_token, "trigger");

CREATE TRIGGER history_is_never_changed BEFORE UPDATE ON request_history
BEGIN
  SELECT raise(ABORT, 'request_history is never changed');
END;

CREATE TRIGGER history_goes_with_its_request BEFORE DELETE ON request_history
WHEN EXISTS (SELECT 1 FROM run_requests WHERE seq = old.request_seq)
BEGIN
  SELECT raise(ABORT, 'request_history is deleted with its request only');
END;

-- The latest fencing token. It only grows, also after requests are deleted.
CREATE TABLE fencing (
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  token INTEGER NOT NULL
) STRICT;

INSERT INTO fencing (one, token) VALUES (1, 0);

CREATE TRIGGER fencing_only_grows BEFORE UPDATE ON fencing
WHEN new.token <= old.token
BEGIN
  SELECT raise(ABORT, 'a fencing token only grows');
END;

-- Every operation on a request.
CREATE VIEW operations AS
SELECT
  h.sequence AS operation_id,
  h."trigger" || '_run_request' AS operation_type,
  'run_request' AS subject_type,
  r.request_id AS subject_id,
  r.run_id AS run_id,
  CASE h."trigger" WHEN 'submit' THEN r.idempotency_key END AS idempotency_key,
  CASE WHEN h."trigger" IN ('request_cancel', 'request_pause', 'request_stop') THEN 'accepted' ELSE 'completed' END AS status,
  h.fencing_token AS attempt,
  h.detail_json AS metadata_json,
  json_object('from', h.from_state, 'to', h.to_state, 'worker_id', h.worker_id, 'fencing_token', h.fencing_token)
    AS operation_json,
  strftime('%Y-%m-%dT%H:%M:%fZ', h.at / 1000.0, 'unixepoch') AS updated_at
FROM request_history AS h JOIN run_requests AS r ON r.seq = h.request_seq;

-- The resources of every lease, past and present: the container and the cache of its request.
CREATE VIEW resource_leases AS
SELECT
  h.sequence * 2 + lane.number AS resource_lease_id,
  json_extract(h.detail_json, '$.lease_id') AS lease_id,
  lane.kind AS resource_kind,
  CASE lane.number WHEN 0 THEN r.container_lane ELSE r.cache_lane END AS resource_id,
  'run_request' AS subject_type,
  r.request_id AS subject_id,
  r.run_id AS run_id,
  CASE
    WHEN r.fencing_token = h.fencing_token AND r.status IN ('leased', 'running') THEN 'active'
    WHEN EXISTS (SELECT 1 FROM request_history AS e WHERE e.request_seq = h.request_seq
      AND e.fencing_token = h.fencing_token AND e."trigger" = 'lease_expired') THEN 'expired'
    ELSE 'released'
  END AS status,
  CASE WHEN r.fencing_token = h.fencing_token THEN
    strftime('%Y-%m-%dT%H:%M:%fZ', r.lease_expires_at / 1000.0, 'unixepoch') END AS lease_expires_at,
  h.detail_json AS metadata_json,
  json_object('worker_id', h.worker_id, 'fencing_token', h.fencing_token) AS lease_json,
  strftime('%Y-%m-%dT%H:%M:%fZ', h.at / 1000.0, 'unixepoch') AS updated_at
FROM request_history AS h
  JOIN run_requests AS r ON r.seq = h.request_seq
  JOIN (SELECT 0 AS number, 'container_url' AS kind UNION ALL SELECT 1, 'cache_namespace') AS lane
WHERE h."trigger" = 'claim' AND (lane.number = 0 OR r.cache_lane IS NOT NULL);
