CREATE VIEW milestones AS SELECT sequence, type, unix_millis, fields FROM events WHERE type NOT IN ('rollout.finished', 'rollout.requested');
