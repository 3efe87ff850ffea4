-- Every statement of the PostgreSQL store, by name. Tables and functions: see 0001_streams_jobs_rows.sql.

-- name: clock
SELECT clock_ms(NULL);
-- name: enter
INSERT INTO sessions (name) VALUES (%s) RETURNING id, epoch;
-- name: leave
DELETE FROM sessions WHERE id = %s;
-- name: fence
UPDATE sessions SET epoch = epoch + 1, seen = now() WHERE id = %s RETURNING epoch, batch, answer;
-- name: sweep_sessions
DELETE FROM sessions WHERE seen < now() - interval '7 days';
-- name: add_partitions
SELECT add_partitions(3);

-- name: apply
SELECT apply_commits(
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: apply_hop
SELECT apply_hop(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: forget
SELECT forget_stream(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: load
WITH q AS MATERIALIZED (
    SELECT u.n, u.tenant, u.after, s.id, s.month, coalesce(s.version, 0) AS version
    FROM unnest(%(tenants)s::text[], %(kinds)s::text[], %(keys)s::text[], %(afters)s::bigint[])
        WITH ORDINALITY u(tenant, kind, key, after, n)
    LEFT JOIN streams s ON s.kind = u.kind AND s.tenant = u.tenant AND s.key = u.key
), t AS MATERIALIZED (
    SELECT q.n, q.id, q.month, q.version, coalesce(p.version, q.after) AS after, p.version AS snapshot, p.body
    FROM q LEFT JOIN snapshots p ON %(snapshots)s::boolean AND p.stream = q.id AND p.version > q.after
)
SELECT t.n, 0, t.version, t.snapshot, t.body FROM t
UNION ALL
SELECT t.n, 1, r.version, NULL, r.body FROM t CROSS JOIN LATERAL (
    SELECT f.version, f.body FROM records f
    WHERE f.month = t.month AND f.stream = t.id AND f.version > t.after ORDER BY f.version LIMIT %(limit)s::bigint
) r WHERE t.version > t.after
ORDER BY 1, 2, 3;
-- name: version
SELECT version FROM streams WHERE kind = %s AND tenant = %s AND key = %s;
-- name: streams
SELECT tenant, key FROM streams
    WHERE kind = %s AND version > 0 AND (tenant, key) > (%s, %s) ORDER BY tenant, key LIMIT %s;
-- name: first_streams
SELECT tenant, key FROM streams WHERE kind = %s AND version > 0 ORDER BY tenant, key LIMIT %s;

-- name: add_lanes
INSERT INTO lanes (queue, tenant, caps, priority)
    SELECT a.queue, %(tenant)s, ARRAY (SELECT jsonb_array_elements_text(a.caps::jsonb)), a.priority
    FROM unnest(%(queues)s::text[], %(caps)s::text[], %(priorities)s::bigint[]) a(queue, caps, priority)
    ON CONFLICT DO NOTHING;
-- name: lanes
SELECT a.number, l.id
    FROM unnest(%(queues)s::text[], %(caps)s::text[], %(priorities)s::bigint[]) WITH ORDINALITY
        a(queue, caps, priority, number)
    JOIN lanes l ON l.queue = a.queue AND l.tenant = %(tenant)s AND l.priority = a.priority
        AND l.caps = ARRAY (SELECT jsonb_array_elements_text(a.caps::jsonb));
-- name: lanes_called
SELECT id, queue, tenant, caps, priority FROM lanes WHERE id = ANY (%s);
-- name: claim
SELECT * FROM claim_jobs(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: one_capped_claim
SELECT pg_advisory_xact_lock(hashtext(current_schema() || '.caps'));
-- name: one_statement_commit
SELECT pg_advisory_xact_lock(hashtext(current_schema() || '.statements'));
-- name: expire
SELECT n.now_ms, expire_leases(n.now_ms) FROM (SELECT clock_ms(%s) AS now_ms OFFSET 0) n;
-- name: next_jobs
SELECT job_stream, job_key, job_lane FROM next_jobs(%s, %s, %s, %s, %s, %s, lanes_in_line(%s, %s));
-- name: lease
SELECT * FROM lease_jobs(%s, %s, %s, %s, %s, %s, %s, %s, %s);
-- name: next_due
SELECT next_due(%s, %s);
-- name: live_caps
SELECT c.cap, count(*) FROM jobs j JOIN lanes l ON l.id = j.lane CROSS JOIN LATERAL unnest(l.caps) c(cap)
    WHERE j.state = 2 AND j.due_ms > %s AND j.capped GROUP BY c.cap;
-- name: renew
WITH now AS MATERIALIZED (SELECT clock_ms(%(now)s) AS ms), held AS MATERIALIZED (
    SELECT l.n, j.stream, j.key
    FROM unnest(%(tenants)s::text[], %(kinds)s::text[], %(streams)s::text[], %(keys)s::text[], %(tokens)s::bigint[])
        WITH ORDINALITY l(tenant, kind, stream, key, token, n)
    JOIN streams s ON s.kind = l.kind AND s.tenant = l.tenant AND s.key = l.stream
    JOIN jobs j ON j.stream = s.id AND j.key = l.key
    WHERE j.token = l.token AND l.token <> 0 ORDER BY l.n FOR UPDATE OF j
), renewed AS (
    UPDATE jobs j SET state = 2, due_ms = greatest(j.due_ms, now.ms + %(lease)s)
    FROM (SELECT DISTINCT stream, key FROM held) h, now WHERE j.stream = h.stream AND j.key = h.key
)
SELECT n FROM held;
-- name: release
WITH now AS MATERIALIZED (SELECT clock_ms(%(now)s) AS ms), held AS MATERIALIZED (
    SELECT j.stream, j.key, j.lane
    FROM unnest(%(tenants)s::text[], %(kinds)s::text[], %(streams)s::text[], %(keys)s::text[], %(tokens)s::bigint[])
        WITH ORDINALITY l(tenant, kind, stream, key, token, n)
    JOIN streams s ON s.kind = l.kind AND s.tenant = l.tenant AND s.key = l.stream
    JOIN jobs j ON j.stream = s.id AND j.key = l.key
    WHERE j.token = l.token AND l.token <> 0 ORDER BY l.n FOR UPDATE OF j
)
UPDATE jobs j SET token = 0, state = 1, due_ms = 0, owner = '',
    ready_at_ms = CASE WHEN %(delay)s > 0 THEN now.ms + %(delay)s ELSE j.ready_at_ms END
    FROM (SELECT DISTINCT stream, key FROM held) h, now WHERE j.stream = h.stream AND j.key = h.key;
-- name: give_back
UPDATE jobs SET token = 0, state = 1, due_ms = 0, owner = '' WHERE state = 2 AND session = %s AND batch = %s;
-- name: jobs_of
SELECT g.number, j.key, l.queue, j.body, j.ready_at_ms, l.priority, l.caps, j.token, j.due_ms, j.owner, j.expired
    FROM unnest(%(tenants)s::text[], %(kinds)s::text[], %(keys)s::text[])
        WITH ORDINALITY AS g (tenant, kind, key, number)
    JOIN streams s ON s.kind = g.kind AND s.tenant = g.tenant AND s.key = g.key
    JOIN jobs j ON j.stream = s.id JOIN lanes l ON l.id = j.lane ORDER BY g.number, j.key;
-- name: backlog
WITH now AS MATERIALIZED (SELECT clock_ms(%s) AS ms), j AS (
    SELECT j.lane, j.state = 2 AND j.due_ms > now.ms AS leased, j.ready_at_ms > now.ms AS later, j.ready_at_ms
    FROM jobs j, now
)
SELECT l.tenant, l.queue, count(*) FILTER (WHERE NOT j.leased AND NOT j.later), count(*) FILTER (WHERE j.leased),
       count(*) FILTER (WHERE NOT j.leased AND j.later), min(j.ready_at_ms) FILTER (WHERE NOT j.leased AND NOT j.later)
    FROM j JOIN lanes l ON l.id = j.lane GROUP BY l.tenant, l.queue ORDER BY l.tenant, l.queue;

-- name: count_terms
SELECT u.term, (SELECT count(*) FROM (SELECT 1 FROM terms t WHERE t.term = u.term LIMIT %s) c)
    FROM unnest(%s::bigint[]) u(term);
-- name: walk
SELECT t.sort, t.key, r.sort, r.terms, r.body
    FROM (SELECT sort, key FROM terms WHERE term = %s AND (sort, key) < (%s, %s) ORDER BY sort DESC, key DESC LIMIT %s) t
    LEFT JOIN rows r ON r.tenant = %s AND r.kind = %s AND r.key = t.key
    ORDER BY t.sort DESC, t.key DESC;
-- name: walk_all
WITH w AS MATERIALIZED (
    SELECT sort, key FROM terms WHERE term = %(along)s AND (sort, key) < (%(sort)s, %(key)s)
    ORDER BY sort DESC, key DESC LIMIT %(walked)s
), m AS MATERIALIZED (
    SELECT w.sort, w.key FROM w WHERE NOT EXISTS (
        SELECT 1 FROM unnest(%(others)s::bigint[]) o(term) WHERE NOT EXISTS (
            SELECT 1 FROM terms t WHERE t.term = o.term AND t.sort = w.sort AND t.key = w.key))
    ORDER BY w.sort DESC, w.key DESC LIMIT %(limit)s
)
SELECT m.sort, m.key, r.sort, r.terms, r.body, 1 FROM m
    LEFT JOIN rows r ON r.tenant = %(tenant)s AND r.kind = %(kind)s AND r.key = m.key
UNION ALL
(SELECT w.sort, w.key, NULL, NULL, NULL, 0 FROM w ORDER BY w.sort DESC, w.key DESC OFFSET %(walked)s - 1)
ORDER BY 6 DESC, 1 DESC, 2 DESC;
-- name: count_all
WITH w AS MATERIALIZED (
    SELECT sort, key FROM terms WHERE term = %(along)s AND (sort, key) < (%(sort)s, %(key)s)
    ORDER BY sort DESC, key DESC LIMIT %(walked)s
)
SELECT (SELECT count(*) FROM w WHERE NOT EXISTS (
        SELECT 1 FROM unnest(%(others)s::bigint[]) o(term) WHERE NOT EXISTS (
            SELECT 1 FROM terms t WHERE t.term = o.term AND t.sort = w.sort AND t.key = w.key))),
    (SELECT count(*) FROM w), e.sort, e.key
    FROM (SELECT 1) one LEFT JOIN (SELECT sort, key FROM w ORDER BY sort, key LIMIT 1) e ON true;

-- name: hint
SELECT pg_notify(%s, %s);
-- name: publish
SELECT pg_notify(%(channel)s, u.head || coalesce((
        SELECT s.version FROM streams s WHERE s.kind = %(kind)s AND s.tenant = %(tenant)s AND s.key = %(key)s
    ), 0) || u.tail)
    FROM unnest(%(heads)s::text[], %(tails)s::text[]) WITH ORDINALITY u(head, tail, n) ORDER BY u.n;
