-- Claims among thousands of lanes whose caps are full: such a lane costs an index entry, and the next due time is looked
-- for once.

-- Jobs that can be claimed, in the order of choice: tenants in turn, the one served longest ago first; within a tenant
-- by priority, ready time and insertion. A lane offers no more jobs than its caps have room for.
CREATE OR REPLACE FUNCTION next_jobs(
    now_ms bigint, queues text[], most bigint, cap_names text[], cap_bounds bigint[], tree text, among bigint[]
) RETURNS TABLE (job_stream bigint, job_key text, job_lane bigint, job_capped boolean) LANGUAGE plpgsql ROWS 100 AS $$
DECLARE
    live_caps text[];
    live_leases bigint[];
    full_caps text[];
BEGIN
    SELECT coalesce(array_agg(v.cap), '{}'), coalesce(array_agg(v.leases), '{}'),
        coalesce(array_agg(v.cap) FILTER (WHERE v.leases >= cap_bound(v.cap, cap_names, cap_bounds)), '{}')
    INTO live_caps, live_leases, full_caps
    FROM (
        SELECT c.cap, count(*) AS leases
        FROM jobs j JOIN lanes l ON l.id = j.lane CROSS JOIN LATERAL unnest(l.caps) c(cap)
        WHERE j.state = 2 AND j.due_ms > now_ms AND j.capped GROUP BY c.cap
    ) v;
    full_caps := full_caps || ARRAY (SELECT u.cap FROM unnest(cap_names, cap_bounds) u(cap, bound) WHERE u.bound <= 0);
    -- Functions in PL/pgSQL keep their plans; those in SQL are planned at every call.
    RETURN QUERY
    WITH line AS (
        SELECT a.lane, n.ready_at_ms, n.place FROM unnest(among) a(lane) CROSS JOIN LATERAL (
            SELECT j.ready_at_ms, j.place FROM jobs j WHERE j.state = 1 AND j.lane = a.lane
            ORDER BY j.ready_at_ms, j.place LIMIT 1
        ) n
    ), live AS MATERIALIZED (
        SELECT v.cap, v.leases FROM unnest(live_caps, live_leases) v(cap, leases)
    ), open AS (
        SELECT l.id, l.tenant, l.priority, line.ready_at_ms, line.place,
            cardinality(l.caps) > 0 AND EXISTS (
                SELECT 1 FROM unnest(l.caps) b(cap) WHERE cap_bound(b.cap, cap_names, cap_bounds) IS NOT NULL
            ) AS capped,
            CASE WHEN cardinality(l.caps) = 0 THEN most ELSE least(most, (
                SELECT min(
                    cap_bound(b.cap, cap_names, cap_bounds)
                    - coalesce((SELECT v.leases FROM live v WHERE v.cap = b.cap), 0)
                ) FROM unnest(l.caps) b(cap)
            )) END AS room
        FROM line JOIN lanes l ON l.id = line.lane
        -- Most lanes without room are told apart by names alone.
        WHERE line.ready_at_ms <= now_ms AND (cardinality(queues) = 0 OR l.queue = ANY (queues))
            AND NOT l.caps && full_caps
    ), ranked AS (
        SELECT o.*, row_number() OVER (PARTITION BY o.tenant ORDER BY o.priority DESC, o.ready_at_ms, o.place) AS rank
        FROM open o WHERE o.room > 0
    ), heads AS (
        SELECT o.tenant, coalesce(t.served, 0) AS served, o.capped, j.stream, j.key, o.id AS lane,
            row_number() OVER (PARTITION BY o.tenant ORDER BY o.priority DESC, j.ready_at_ms, j.place) AS turn
        FROM ranked o LEFT JOIN tenants t ON t.tenant = o.tenant CROSS JOIN LATERAL (
            SELECT h.stream, h.key, h.ready_at_ms, h.place FROM jobs h
            WHERE h.state = 1 AND h.lane = o.id AND h.ready_at_ms <= now_ms AND (tree = '' OR EXISTS (
                SELECT 1 FROM streams s
                WHERE s.id = h.stream AND (s.key = tree OR starts_with(s.key, tree || '.'))
            ))
            ORDER BY h.ready_at_ms, h.place LIMIT o.room
        ) j
        -- Lanes whose first job comes after the first jobs of as many others have no turn.
        WHERE o.rank <= most OR tree <> ''
    )
    SELECT h.stream, h.key, h.lane, h.capped FROM heads h ORDER BY h.turn, h.served, h.tenant LIMIT most;
END
$$;

-- Claim in one call, unless a job comes up whose caps are bounded. The last line has no key: its token is the clock,
-- its ready time the next moment at which there may be work, its lane the last one that was looked at if there may be
-- more, and `expired` is 1 if others were about to take what there was, 2 if caps must be counted first.
CREATE OR REPLACE FUNCTION claim_jobs(
    me bigint, my_epoch bigint, my_batch bigint, at_ms bigint, queues text[], most bigint, lease_ms bigint,
    by_owner text, tree text, cap_names text[], cap_bounds bigint[], after_lane bigint, lanes_most bigint
) RETURNS TABLE (
    key text, token bigint, body bytea, lane bigint, expired integer, ready_at_ms bigint, of_tenant text, of_kind text,
    of_key text
) LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint := clock_ms(at_ms);
    offered_streams bigint[];
    offered_keys text[];
    any_capped boolean;
    due bigint;
    why integer := 0;
    lanes bigint[];
BEGIN
    PERFORM expire_leases(now_ms);
    lanes := lanes_in_line(after_lane, lanes_most);
    -- More than wanted, because others may be about to take the first ones.
    SELECT array_agg(n.job_stream), array_agg(n.job_key), bool_or(n.job_capped) INTO offered_streams, offered_keys, any_capped
    FROM next_jobs(now_ms, queues, 4 * most, cap_names, cap_bounds, tree, lanes) n;
    IF any_capped THEN
        why := 2;
    ELSIF offered_streams IS NULL THEN
        -- Lanes that were not looked at may have ready jobs: the caller looks at them before it waits.
        due := CASE WHEN lanes[lanes_most] IS NULL THEN next_due(now_ms, queues) END;
    ELSE
        RETURN QUERY SELECT * FROM lease_jobs(
            me, my_epoch, my_batch, now_ms, offered_streams, offered_keys, most, lease_ms, by_owner);
        IF NOT FOUND THEN
            why := 1;
            due := next_due(now_ms, queues);
        END IF;
    END IF;
    RETURN QUERY SELECT NULL, now_ms, NULL::bytea, coalesce(lanes[lanes_most], 0), why, due, NULL, NULL, NULL;
END
$$;
