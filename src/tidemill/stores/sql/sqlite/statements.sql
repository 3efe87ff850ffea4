-- Every statement of the SQLite store, by name. Tables: see 0001_streams_jobs_rows.sql.

-- name: counters
SELECT streams, places, tokens, seal FROM counters WHERE id = 1;
-- name: set_counters
UPDATE counters SET streams = ?, places = ?, tokens = ?, seal = ? WHERE id = 1;

-- name: stream
SELECT id, version FROM streams WHERE kind = ? AND tenant = ? AND key = ?;
-- name: version
SELECT version FROM streams WHERE id = ?;
-- name: add_stream
INSERT INTO streams (id, kind, tenant, key, version) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: advance
UPDATE streams SET version = ? WHERE id = ? AND version = ?;
-- name: advance_held
UPDATE streams SET version = ? WHERE id = ? AND version = ?
    AND EXISTS (SELECT 1 FROM jobs WHERE stream = ? AND key = ? AND token = ?);
-- name: add_records
INSERT INTO records (stream, version, body) VALUES (?, ?, ?);
-- name: records
SELECT version, body FROM records WHERE stream = ? AND version > ? ORDER BY version LIMIT ?;
-- name: snapshot
SELECT version, body FROM snapshots WHERE stream = ?;
-- name: set_snapshot
INSERT INTO snapshots (stream, version, body) VALUES (?, ?, ?)
    ON CONFLICT (stream) DO UPDATE SET version = excluded.version, body = excluded.body
    WHERE excluded.version > snapshots.version;
-- name: first_streams
SELECT tenant, key FROM streams WHERE kind = ? AND version > 0 ORDER BY tenant, key LIMIT ?;
-- name: streams
SELECT tenant, key FROM streams
    WHERE kind = ? AND version > 0 AND (tenant, key) > (?, ?) ORDER BY tenant, key LIMIT ?;
-- name: forget_records
DELETE FROM records WHERE stream = ?;
-- name: forget_snapshot
DELETE FROM snapshots WHERE stream = ?;
-- name: forget_jobs
DELETE FROM jobs WHERE stream = ?;
-- name: forget_stream
DELETE FROM streams WHERE id = ?;

-- name: token
SELECT token, expired FROM jobs WHERE stream = ? AND key = ?;
-- name: remove_job
DELETE FROM jobs WHERE stream = ? AND key = ?;
-- name: withdraw_job
DELETE FROM jobs WHERE stream = ? AND key = ? AND token = 0;
-- name: add_job
INSERT INTO jobs (stream, key, lane, ready_at_ms, place, state, due_ms, token, holder, owner, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: drop_jobs_in_line
DELETE FROM jobs WHERE state = 1 AND lane = ?;
-- name: jobs_as_bytes
SELECT j.stream, CAST(j.key AS BLOB), CAST(s.kind || s.tenant || s.key AS BLOB)
    FROM jobs j JOIN streams s ON s.id = j.stream;
-- name: remove_job_by_bytes
DELETE FROM jobs WHERE stream = ? AND CAST(key AS BLOB) = ?;
-- name: drop_misshapen_jobs
DELETE FROM jobs WHERE NOT (
    typeof(key) = 'text' AND typeof(lane) = 'integer' AND typeof(ready_at_ms) = 'integer' AND typeof(place) = 'integer'
    AND typeof(state) = 'integer' AND typeof(due_ms) = 'integer' AND typeof(token) = 'integer'
    AND typeof(expired) = 'integer'
);
-- name: lane
SELECT id FROM lanes WHERE queue = ? AND tenant = ? AND caps = ? AND priority = ?;
-- name: add_lane
INSERT INTO lanes (queue, tenant, caps, priority) VALUES (?, ?, ?, ?);
-- name: lane_called
SELECT queue, tenant, caps, priority FROM lanes WHERE id = ?;

-- name: fall_due
UPDATE jobs SET state = 1 WHERE state IN (0, 2) AND due_ms <= ?;
-- name: next_due
SELECT (SELECT min(due_ms) FROM jobs WHERE state = 0), (SELECT min(due_ms) FROM jobs WHERE state = 2);
-- name: lanes_in_line
WITH RECURSIVE line (lane) AS (
    SELECT min(lane) FROM jobs WHERE state = 1 AND lane > ?
    UNION ALL
    SELECT (SELECT min(lane) FROM jobs WHERE state = 1 AND lane > line.lane) FROM line WHERE line.lane IS NOT NULL
    LIMIT ?
)
SELECT lane,
    (SELECT ready_at_ms FROM jobs WHERE state = 1 AND jobs.lane = line.lane ORDER BY ready_at_ms, place LIMIT 1),
    (SELECT place FROM jobs WHERE state = 1 AND jobs.lane = line.lane ORDER BY ready_at_ms, place LIMIT 1)
    FROM line WHERE lane IS NOT NULL;
-- name: line
SELECT j.ready_at_ms, j.place, j.stream, j.key, j.token, j.expired, j.body, s.kind, s.tenant, s.key
    FROM jobs j INDEXED BY jobs_in_line JOIN streams s ON s.id = j.stream
    WHERE j.state = 1 AND j.lane = ? ORDER BY j.ready_at_ms, j.place LIMIT ?;
-- name: line_of_family
SELECT j.ready_at_ms, j.place, j.stream, j.key, j.token, j.expired, j.body, s.kind, s.tenant, s.key
    FROM jobs j INDEXED BY jobs_in_line JOIN streams s ON s.id = j.stream
    WHERE j.state = 1 AND j.lane = ?1 AND (s.key = ?3 OR (s.key >= ?3 || '.' AND s.key < ?3 || '/'))
    ORDER BY j.ready_at_ms, j.place LIMIT ?2;
-- name: lease
UPDATE jobs SET state = 2, due_ms = ?, token = ?, expired = ?, holder = ?, owner = ? WHERE stream = ? AND key = ?;
-- name: served
SELECT tenant, served FROM tenants;
-- name: serve
INSERT INTO tenants (tenant, served) VALUES (?, ?) ON CONFLICT (tenant) DO UPDATE SET served = excluded.served;
-- name: leases_alive
SELECT lane, count(*) FROM jobs WHERE state = 2 AND due_ms > ? GROUP BY lane;
-- name: prolong
UPDATE jobs SET state = 2, due_ms = max(due_ms, ?) WHERE stream = ? AND key = ? AND token = ?;
-- name: release
UPDATE jobs SET token = 0, owner = '', holder = 0, ready_at_ms = ?, due_ms = ?, state = ?
    WHERE stream = ? AND key = ?;
-- name: held
SELECT ready_at_ms FROM jobs WHERE stream = ? AND key = ? AND token = ?;
-- name: void
UPDATE jobs SET state = 1, due_ms = min(due_ms, ?) WHERE state = 2 AND holder = ?;
-- name: jobs_of
SELECT j.key, j.lane, j.body, j.ready_at_ms, j.token, j.due_ms, j.owner, j.expired, j.holder
    FROM jobs j WHERE j.stream = ?
    ORDER BY j.key;
-- name: backlog
SELECT l.tenant, l.queue,
       sum(CASE WHEN j.state = 2 AND j.due_ms > ?1 THEN 0 WHEN j.ready_at_ms > ?1 THEN 0 ELSE 1 END),
       sum(j.state = 2 AND j.due_ms > ?1),
       sum(NOT (j.state = 2 AND j.due_ms > ?1) AND j.ready_at_ms > ?1),
       min(CASE WHEN j.state = 2 AND j.due_ms > ?1 THEN NULL WHEN j.ready_at_ms > ?1 THEN NULL ELSE j.ready_at_ms END)
    FROM jobs j JOIN lanes l ON l.id = j.lane GROUP BY l.tenant, l.queue ORDER BY l.tenant, l.queue;

-- name: row
SELECT sort, terms FROM rows WHERE tenant = ? AND kind = ? AND key = ?;
-- name: add_row
INSERT INTO rows (tenant, kind, key, sort, terms, body) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;
-- name: set_row
INSERT INTO rows (tenant, kind, key, sort, terms, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (tenant, kind, key) DO UPDATE SET sort = excluded.sort, terms = excluded.terms, body = excluded.body;
-- name: set_body
UPDATE rows SET body = ? WHERE tenant = ? AND kind = ? AND key = ?;
-- name: remove_row
DELETE FROM rows WHERE tenant = ? AND kind = ? AND key = ?;
-- name: add_term
INSERT INTO terms (term, sort, key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;
-- name: remove_term
DELETE FROM terms WHERE term = ? AND sort = ? AND key = ?;
-- name: count_term
SELECT count(*) FROM (SELECT 1 FROM terms WHERE term = ? LIMIT ?);
-- name: walk
SELECT t.sort, t.key, r.sort, r.terms, r.body
    FROM terms t LEFT JOIN rows r ON r.tenant = ?5 AND r.kind = ?6 AND r.key = t.key
    WHERE t.term = ?1 AND (t.sort, t.key) < (?2, ?3) ORDER BY t.sort DESC, t.key DESC LIMIT ?4;
-- name: walk_both
SELECT t.sort, t.key, r.sort, r.terms, r.body
    FROM (SELECT sort, key FROM terms WHERE term = ?1 AND (sort, key) < (?2, ?3)
        ORDER BY sort DESC, key DESC LIMIT ?4) t
    LEFT JOIN rows r ON r.tenant = ?7 AND r.kind = ?8 AND r.key = t.key
    WHERE EXISTS (SELECT 1 FROM terms o WHERE o.term = ?5 AND o.sort = t.sort AND o.key = t.key)
    ORDER BY t.sort DESC, t.key DESC LIMIT ?6;
-- name: walk_places
SELECT t.sort, t.key
    FROM (SELECT sort, key FROM terms WHERE term = ? AND (sort, key) < (?, ?) ORDER BY sort DESC, key DESC LIMIT ?) t
    WHERE EXISTS (SELECT 1 FROM terms o WHERE o.term = ? AND o.sort = t.sort AND o.key = t.key)
    ORDER BY t.sort DESC, t.key DESC LIMIT ?;
-- name: walk_end
SELECT sort, key FROM terms WHERE term = ? AND (sort, key) < (?, ?)
    ORDER BY sort DESC, key DESC LIMIT 1 OFFSET ?;
-- name: has_term
SELECT 1 FROM terms WHERE term = ? AND sort = ? AND key = ?;

-- name: table
SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?;
-- name: make_expected
CREATE TEMP TABLE IF NOT EXISTS expected (
    term INTEGER, sort INTEGER, key TEXT, tenant TEXT, kind TEXT, PRIMARY KEY (term, sort, key)
) WITHOUT ROWID;
-- name: add_expected
INSERT OR IGNORE INTO temp.expected (term, sort, key, tenant, kind) VALUES (?, ?, ?, ?, ?);
-- name: every_row
SELECT tenant, kind, key, sort, terms FROM rows ORDER BY tenant, kind, key;
-- name: missing_places
SELECT DISTINCT tenant, kind, key FROM temp.expected e
    WHERE NOT EXISTS (SELECT 1 FROM main.terms t WHERE t.term = e.term AND t.sort = e.sort AND t.key = e.key)
    LIMIT ?;
-- name: stray_places
SELECT term, sort, key FROM main.terms t
    WHERE NOT EXISTS (SELECT 1 FROM temp.expected e WHERE e.term = t.term AND e.sort = t.sort AND e.key = t.key)
    LIMIT ?;
-- name: kinds_of_rows
SELECT DISTINCT tenant, kind FROM temp.expected;
-- name: rows_aside_up
SELECT tenant, kind, key, sort, terms, body FROM rows_aside
    WHERE (tenant, kind, key) > (?, ?, ?) ORDER BY tenant, kind, key LIMIT ?;
-- name: rows_aside_down
SELECT tenant, kind, key, sort, terms, body FROM rows_aside
    WHERE (tenant, kind, key) < (?, ?, ?) ORDER BY tenant DESC, kind DESC, key DESC LIMIT ?;

-- name: add_holder
INSERT INTO holders (name, opened_ms) VALUES (?, ?) RETURNING id;
-- name: holders
SELECT id, name FROM holders;
-- name: remove_holder
DELETE FROM holders WHERE id = ?;
