-- Views: everything that users query and that need not be stored. A view always agrees with its tables.
-- Every row has its run id, so that rows of several workspaces can be combined. Times are RFC 3339 in UTC.

-- Events of every type except the two with one event per rollout. Most views read it, through the index on the type.
CREATE VIEW milestones AS
SELECT sequence, type, fields, strftime('%Y-%m-%dT%H:%M:%fZ', unix_millis / 1000.0, 'unixepoch') AS at
FROM events
WHERE type NOT IN ('rollout.finished', 'rollout.requested');

-- Rollouts that have an outcome, with the container's id and the usage as JSON.
CREATE VIEW settled_rollouts AS
SELECT r.call_id, 'sensor_' || r.call_id AS sensor_frame_id, r.candidate_id, c.rollout_id, r.example_id, r.split,
  r.evaluation_stage, r.attempt, r.replicate, r.status, r.reward, r.objectives_json, lower(hex(r.trace_digest)) AS trace_sha256,
  json_object('prompt_tokens', r.prompt_tokens, 'completion_tokens', r.completion_tokens,
    'total_tokens', r.total_tokens, 'cost_usd', r.cost_nano_usd / 1e9) AS usage_json,
  CASE WHEN r.failure_class IS NOT NULL
    THEN json_object('class', r.failure_class, 'message', r.failure_message) END AS failure_json,
  r.prompt_tokens, r.completion_tokens, r.total_tokens, r.cost_nano_usd, r.cached, r.failure_class, r.settled_sequence
FROM rollouts r LEFT JOIN calls c ON c.call_id = r.call_id
WHERE r.status <> 'requested';

-- ===== The run =====

-- The run and its state.
CREATE VIEW optimization_runs AS
SELECT run_id, state, config_json, cache_mode, cache_namespace, output_dir, run_dir,
  (SELECT manifest_path FROM manifests) AS manifest_path, best_candidate_id, cost_usd,
  usage_json,
  strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(started_at, created_at) / 1000.0, 'unixepoch') AS started_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', finished_at / 1000.0, 'unixepoch') AS completed_at,
  strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(updated_at, created_at) / 1000.0, 'unixepoch') AS updated_at
FROM run, run_state;

-- The effective config.
CREATE VIEW resolved_run_configs AS
SELECT run_id, config_digest AS resolved_config_id, algorithm AS algorithm_id, config_digest AS config_hash, cache_mode,
  cache_namespace, output_dir, config_json,
  strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS recorded_at
FROM run;

-- The limits of the config.
CREATE VIEW run_limits AS
SELECT run_id, 'limits' AS run_limits_id,
  config_json ->> '$.gepa.max_total_rollouts' AS max_total_rollouts,
  config_json ->> '$.gepa.max_train_rollouts' AS max_train_rollouts,
  config_json ->> '$.gepa.max_heldout_rollouts' AS max_heldout_rollouts,
  config_json ->> '$.gepa.max_generations' AS max_generations,
  nullif(config_json ->> '$.gepa.max_cost_usd', 0) AS max_cost_usd,
  config_json ->> '$.gepa.max_time_seconds' AS max_time_seconds,
  config_json ->> '$.gepa.max_prompt_tokens' AS max_prompt_tokens,
  config_json ->> '$.gepa.max_completion_tokens' AS max_completion_tokens,
  config_json ->> '$.gepa.max_total_tokens' AS max_total_tokens,
  1 AS hard_limit
FROM run;

-- The state transitions of the run.
CREATE VIEW optimizer_state_history AS
SELECT run_id, sequence AS sequence_number, fields ->> 'from' AS from_state, fields ->> 'to' AS to_state,
  fields ->> 'trigger' AS "trigger", at AS transition_at
FROM run, milestones WHERE type = 'optimizer.state.transitioned';

-- The log.
CREATE VIEW event_stream_events AS
SELECT run_id, sequence AS event_id, sequence AS sequence_number, type AS event_type,
  strftime('%Y-%m-%dT%H:%M:%fZ', unix_millis / 1000.0, 'unixepoch') AS timestamp, fields AS fields_json
FROM run, events;

-- Stop rules: the limits with their use, then every stop, budget refusal and control request that ends the run.
CREATE VIEW stopper_states AS
SELECT run_id, 'current' AS stopper_state_id, last_sequence AS sequence_number,
  CASE WHEN finished_at IS NOT NULL THEN 'ended' WHEN stopped_by_json IS NOT NULL THEN 'stopping' ELSE 'running' END AS status,
  stopped_by_json ->> 'kind' AS reason, usage_json ->> 'rollout_calls' AS rollout_count,
  config_json ->> '$.gepa.max_total_rollouts' AS max_total_rollouts, cost_usd,
  nullif(config_json ->> '$.gepa.max_cost_usd', 0) AS max_cost_usd, stopped_by_json AS state_json,
  strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(updated_at, created_at) / 1000.0, 'unixepoch') AS checked_at
FROM run, run_state
UNION ALL
SELECT run_id, 'event_' || sequence, sequence, type,
  coalesce(fields ->> '$.stopped_by.kind', fields ->> 'reason', fields ->> 'dimension', fields ->> 'code'),
  NULL, NULL, NULL, NULL, fields, at
FROM run, milestones
WHERE type IN ('budget.refused', 'rollout.circuit_breaker.tripped', 'gepa.stop', 'gepa.stop.requested',
  'gepa.cancel.requested', 'gepa.failure.raised');

-- Checkpoints to resume from. A checkpoint is a sequence number of the log, because the log is the state.
CREATE VIEW checkpoints AS
SELECT run_id, 'checkpoint_' || sequence AS checkpoint_id, sequence AS sequence_number,
  CASE type WHEN 'objective_set.declared' THEN 'inputs_loaded' WHEN 'generation.completed' THEN 'generation_boundary'
    WHEN 'gepa.stop' THEN 'stop' WHEN 'run.interrupted' THEN 'interrupted' ELSE 'terminal' END AS checkpoint_kind,
  'completed' AS status, fields ->> 'reason' AS reason, fields ->> 'generation' AS generation,
  fields ->> 'best_candidate_id' AS best_candidate_id, fields ->> 'candidates' AS candidate_count,
  fields ->> 'frontier_size' AS frontier_count, at AS created_at
FROM run, milestones
WHERE type IN ('objective_set.declared', 'generation.completed', 'gepa.stop', 'run.interrupted', 'gepa.run.finished',
  'gepa.run.failed', 'gepa.run.cancelled');

-- ===== Documents of the container =====

CREATE VIEW container_contract_snapshots AS
SELECT run_id, 'contract_' || sequence AS contract_snapshot_id, container_url, fields ->> 'dialects' AS contract_kind,
  fields ->> 'version' AS contract_version, 'verified' AS validation_status,
  (SELECT document FROM snapshots WHERE kind = 'contract' ORDER BY taken_at DESC LIMIT 1) AS metadata_response_json,
  (SELECT document FROM snapshots WHERE kind = 'health' ORDER BY taken_at DESC LIMIT 1) AS health_response_json,
  fields AS record_json, at AS recorded_at
FROM run, milestones WHERE type = 'container.contract.verified';

CREATE VIEW prompt_program_snapshots AS
SELECT run_id, 'program_' || sequence AS program_snapshot_id, fields ->> 'program_id' AS program_id,
  fields ->> 'program_digest' AS program_hash, fields ->> 'target_fields' AS target_modules_json,
  fields ->> 'mutable_fields' AS mutable_field_ids_json, 'verified' AS validation_status,
  (SELECT document FROM snapshots WHERE kind = 'program' ORDER BY taken_at DESC LIMIT 1) AS program_json,
  fields AS record_json, at AS recorded_at
FROM run, milestones WHERE type = 'container.program.loaded';

-- One row per split. `rows_json` is NULL if the rows are large; `snapshots` then has them compressed.
CREATE VIEW dataset_snapshots AS
SELECT run_id, 'dataset_' || split || '_' || sequence AS dataset_snapshot_id, split,
  fields ->> (split || '_rows') AS row_count, fields ->> 'rows_digest' AS rows_hash,
  (SELECT document FROM snapshots WHERE kind = split || '_rows' ORDER BY taken_at DESC LIMIT 1) AS rows_json,
  (SELECT document FROM snapshots WHERE kind = 'dataset' ORDER BY taken_at DESC LIMIT 1) AS dataset_metadata_json,
  fields AS record_json, at AS recorded_at
FROM run, milestones, (SELECT 'train' AS split UNION ALL SELECT 'heldout') WHERE type = 'dataset.rows.loaded';

-- ===== Candidates =====

CREATE VIEW candidate_payloads AS
SELECT run_id, 'payload_' || candidate_id AS candidate_payload_id, candidate_id, parent_id, source, status, payload_json
FROM run, candidates;

-- The changes of a candidate, one row per parent.
CREATE VIEW candidate_deltas AS
SELECT run_id, 'delta_' || c.candidate_id || '_' || p.candidate_id AS candidate_delta_id, c.candidate_id,
  p.candidate_id AS parent_candidate_id, c.operation AS operation_kind, c.source, c.status, c.changed_fields_json,
  p.payload_json AS before_json, c.payload_json AS after_json, c.rationale
FROM run, candidates c, json_each(c.parent_ids_json) parent, candidates p WHERE p.candidate_id = parent.value;

-- Every decision about a candidate, with the comparison that it is based on.
CREATE VIEW acceptance_decisions AS
SELECT run_id, 'decision_' || sequence AS acceptance_decision_id, sequence AS sequence_number,
  fields ->> 'candidate_id' AS candidate_id, substr(type, length('candidate.') + 1) AS decision, fields ->> 'stage' AS stage,
  fields ->> 'reason' AS reason, fields ->> '$.comparison.candidate_score' AS candidate_score,
  fields ->> '$.comparison.incumbent_score' AS incumbent_score, fields ->> '$.comparison.primary_delta' AS primary_delta,
  fields -> 'comparison' AS score_json, at AS updated_at
FROM run, milestones
WHERE type IN ('candidate.promoted', 'candidate.accepted', 'candidate.rejected', 'candidate.deferred');

-- The candidates that hold each cell of the frontier. A candidate that wins a cell alone replaces its earlier holders.
CREATE VIEW frontier_cells AS
SELECT objective, example_id, candidate_id, score, won_sequence
FROM (
  SELECT *, max(CASE WHEN alone THEN won_sequence END) OVER (PARTITION BY objective, example_id) AS taken,
    max(won_sequence) OVER (PARTITION BY objective, example_id, candidate_id) AS latest
  FROM (
    SELECT value ->> 'objective' AS objective,
      coalesce(value ->> 'row_id', '') AS example_id, -- empty if the cell is an objective over all rows
      fields ->> 'candidate_id' AS candidate_id, value ->> 'value' AS score, value ->> 'alone' AS alone,
      sequence AS won_sequence                        -- the event in which the candidate won the cell
    FROM milestones, json_each(fields, '$.cells') WHERE milestones.type = 'frontier.updated'))
WHERE won_sequence = latest AND won_sequence >= coalesce(taken, won_sequence);

-- Links between candidates, payloads, decisions, frontier cells and rollouts.
CREATE VIEW plan_links AS
SELECT run_id, 'candidate' AS source_type, candidate_id AS source_id, 'candidate_payload' AS target_type,
  'payload_' || candidate_id AS target_id, 'candidate_payload' AS relation FROM run, candidates
UNION ALL
SELECT run_id, 'candidate', value, 'candidate', candidate_id, 'candidate_lineage'
FROM run, candidates, json_each(parent_ids_json)
UNION ALL
SELECT run_id, 'candidate', candidate_id, 'acceptance_decision', acceptance_decision_id, 'acceptance_decision'
FROM acceptance_decisions
UNION ALL
SELECT DISTINCT run_id, 'candidate', candidate_id, 'frontier', 'frontier', 'frontier_membership' FROM run, frontier_cells
UNION ALL
SELECT run_id, 'candidate', candidate_id, 'sensor_frame', 'sensor_' || call_id, 'rollout_observation'
FROM run, rollouts WHERE status <> 'requested';

-- ===== Rollouts =====

-- Every rollout as a job: requested, then its outcome.
CREATE VIEW rollout_jobs AS
SELECT run_id, 'job_' || r.call_id AS job_id, r.call_id, r.candidate_id, 'sensor_' || r.call_id AS sensor_frame_id,
  c.rollout_id, r.example_id, r.split, r.evaluation_stage, r.attempt, r.replicate,
  CASE WHEN r.status = 'requested' AND c.answered_at IS NOT NULL THEN 'answered'
    WHEN r.status = 'requested' AND c.sent_at IS NOT NULL THEN 'running' ELSE r.status END AS status, r.reward
FROM run, rollouts r LEFT JOIN calls c ON c.call_id = r.call_id;

-- Observations: one frame per rollout that has an outcome.
CREATE VIEW sensor_frames AS
SELECT run_id, sensor_frame_id, candidate_id, rollout_id, example_id, split, evaluation_stage, reward, status, trace_sha256,
  usage_json, failure_json, cached, settled_sequence AS sequence_number
FROM run, settled_rollouts;

-- The events of each rollout.
CREATE VIEW rollout_events AS
SELECT run_id, call_id, candidate_id, 0 AS sequence_number, 'rollout.requested' AS event_type FROM run, rollouts
UNION ALL
SELECT run_id, call_id, NULL, 1, 'rollout.sent' FROM run, calls WHERE kind = 'rollout' AND sent_at IS NOT NULL
UNION ALL
SELECT run_id, call_id, NULL, 2, 'rollout.answered' FROM run, calls WHERE kind = 'rollout' AND answered_at IS NOT NULL
UNION ALL
SELECT run_id, call_id, candidate_id, 3, 'rollout.' || status FROM run, rollouts WHERE status <> 'requested';

-- A summary of each trace.
CREATE VIEW trace_annotations AS
SELECT run_id, 'annotation_' || call_id AS annotation_id, sensor_frame_id, candidate_id, rollout_id, example_id,
  evaluation_stage, 'inline_deterministic' AS backend, 'completed' AS status,
  CASE status WHEN 'finished' THEN 'reward ' || reward ELSE failure_class END AS summary, trace_sha256
FROM run, settled_rollouts;

-- Evidence: the outcome of each rollout, its trace, and the output of proposer turns.
CREATE VIEW evidence_frames AS
SELECT run_id, 'evidence_' || call_id AS evidence_frame_id, 'rollout' AS subject_type, sensor_frame_id AS subject_id,
  candidate_id, sensor_frame_id, 'rollout_outcome' AS kind, 'container' AS source,
  CASE status WHEN 'finished' THEN 'reward ' || reward ELSE failure_class END AS summary, reward AS score,
  CASE WHEN failure_class IS NOT NULL THEN 'error' WHEN reward <= 0 THEN 'warning' ELSE 'info' END AS severity
FROM run, settled_rollouts
UNION ALL
SELECT run_id, 'trace_' || call_id, 'trace', lower(hex(trace_digest)), candidate_id, 'sensor_' || call_id, 'trace_summary',
  'container', 'reply ' || lower(hex(trace_digest)), reward, 'info'
FROM run, rollouts WHERE trace_digest IS NOT NULL
UNION ALL
SELECT run_id, 'proposals_' || call_id, 'proposer_call', call_id, NULL, NULL, 'gepa_proposer_output', 'proposer',
  proposal_count || ' proposals', NULL, 'info'
FROM run, proposer_calls WHERE status = 'completed';

-- The container's own verification of each rollout.
CREATE VIEW verifier_jobs AS
SELECT run_id, 'verifier_' || call_id AS verifier_job_id, 'container_reward_verifier' AS verifier_id, candidate_id,
  sensor_frame_id, 'rollout' AS target_type, sensor_frame_id AS target_id,
  CASE status WHEN 'finished' THEN 'completed' ELSE 'failed' END AS status, reward AS score,
  CASE WHEN failure_class IS NOT NULL THEN 'error' WHEN reward <= 0 THEN 'warning' ELSE 'info' END AS severity, failure_json
FROM run, settled_rollouts;

-- Proposer turns.
CREATE VIEW subagent_invocations AS
SELECT run_id, 'proposer_' || p.call_id AS invocation_id, 'proposer' AS role,
  config_json ->> '$.proposer.backend' AS backend, 'generation_' || p.generation AS "trigger", p.generation, p.attempt,
  p.status, p.requested_model, p.effective_model, p.proposal_count,
  (SELECT size FROM replies WHERE replies.call_id = p.call_id) AS result_bytes,
  json_object('prompt_tokens', p.prompt_tokens, 'completion_tokens', p.completion_tokens,
    'total_tokens', p.total_tokens, 'cost_usd', p.cost_nano_usd / 1e9) AS usage_json,
  p.cost_nano_usd / 1e9 AS cost_usd,
  CASE WHEN p.failure_class IS NOT NULL THEN json_object('class', p.failure_class, 'message', p.failure_message) END AS failure_json
FROM run, proposer_calls p;

-- ===== Scores =====

CREATE VIEW objective_sets AS
SELECT run_id, 'objectives_' || sequence AS objective_set_id, fields ->> 'selection_objective' AS selection_objective,
  fields ->> 'frontier_type' AS frontier_type, fields -> 'objectives' AS objectives_json, at AS updated_at
FROM run, milestones WHERE type = 'objective_set.declared';

CREATE VIEW objectives AS
SELECT run_id, value ->> 'name' AS objective_id, value ->> 'name' AS name, value ->> 'direction' AS direction,
  value AS objective_json
FROM run, milestones, json_each(fields, '$.objectives') WHERE milestones.type = 'objective_set.declared';

-- Every score of every rollout: its reward and the other objectives that the container returned.
CREATE VIEW scores AS
SELECT run_id, 'outcome_reward' AS objective, candidate_id, 'sensor_' || call_id AS sensor_frame_id, example_id, split,
  evaluation_stage, 'container' AS source, reward AS value
FROM run, rollouts WHERE status = 'finished'
UNION ALL
SELECT run_id, key, candidate_id, 'sensor_' || call_id, example_id, split, evaluation_stage, 'container', value
FROM run, rollouts, json_each(objectives_json)
WHERE status = 'finished' AND objectives_json IS NOT NULL AND key <> 'outcome_reward';

-- Mean scores by candidate and stage.
CREATE VIEW score_vectors AS
SELECT run_id, candidate_id, split, evaluation_stage, max(n) AS score_count,
  max(CASE objective WHEN 'outcome_reward' THEN mean END) AS mean_reward,
  json_group_object(objective, mean) AS objective_values_json
FROM (
  SELECT run_id, candidate_id, split, evaluation_stage, objective, avg(value) AS mean, count(*) AS n
  FROM scores GROUP BY candidate_id, split, evaluation_stage, objective)
GROUP BY candidate_id, split, evaluation_stage;

-- ===== Calls, cache, files =====

-- Usage and cost of every call: one row per rollout and per proposer turn that has an outcome, and one per call that was
-- lost and sent again. A cached answer and a call that was never sent cost nothing.
CREATE VIEW usage_ledger AS
SELECT run_id, 'rollout_' || call_id AS usage_ledger_id, 'rollout' AS boundary, 'sensor_frame' AS source_type,
  'sensor_' || call_id AS source_id, candidate_id, evaluation_stage, config_json ->> '$.policy.model' AS model,
  billing <> 'unsent' AS call_count, cached,
  prompt_tokens, completion_tokens, total_tokens,
  CASE billing WHEN 'sent' THEN cost_nano_usd / 1e9 WHEN 'unknown' THEN NULL ELSE 0.0 END AS cost_usd,
  settled_sequence AS sequence_number
FROM run, rollouts WHERE status <> 'requested'
UNION ALL
SELECT run_id, 'proposer_' || call_id, 'proposer', 'proposer_call', 'proposer_' || call_id, NULL, NULL,
  coalesce(effective_model, config_json ->> '$.proposer.model'),
  billing <> 'unsent', cached,
  prompt_tokens, completion_tokens, total_tokens,
  CASE billing WHEN 'sent' THEN cost_nano_usd / 1e9 WHEN 'unknown' THEN NULL ELSE 0.0 END,
  settled_sequence
FROM run, proposer_calls WHERE status <> 'started'
UNION ALL
SELECT run_id, 'lost_' || sequence, fields ->> 'kind', 'event', 'event_' || sequence, NULL, fields ->> 'stage', NULL,
  1, 0, NULL, NULL, NULL, NULL, sequence
FROM run, events WHERE type = 'call.outcome_unknown';

-- Every use of the cache.
CREATE VIEW cache_accesses AS
SELECT run_id, 'call_' || call_id AS cache_access_id, cache_mode AS mode, cache_namespace AS namespace, kind AS boundary,
  lower(hex(cache_key)) AS cache_key, cache_action AS action, 'completed' AS status
FROM run, calls WHERE cache_action IS NOT NULL
UNION ALL
SELECT run_id, 'setup_' || setup_call, cache_mode, cache_namespace, boundary, lower(hex(cache_key)), cache_action, 'completed'
FROM run, setup_calls WHERE cache_action IS NOT NULL;

-- Cache statistics. Every written entry was a miss before.
CREATE VIEW cache_profiles AS
SELECT run_id, 'cache' AS cache_profile_id, cache_mode AS mode, cache_path AS path,
  (SELECT count(*) FROM cache_accesses WHERE action = 'hit') AS hits,
  (SELECT count(*) FROM cache_accesses WHERE action <> 'hit') AS misses,
  (SELECT count(*) FROM cache_accesses WHERE action = 'write') AS writes,
  (SELECT count(*) FROM cache_accesses) AS total_accesses
FROM run;

-- Files of the run directory.
CREATE VIEW artifact_refs AS SELECT run_id, path, kind, sha256, bytes, retention FROM run, artifacts;

CREATE VIEW workspace_metadata AS SELECT 'schema_version' AS key, 'synth_optimizers.workspace.v1' AS value;
