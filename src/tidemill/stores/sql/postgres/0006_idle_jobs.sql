-- Commits that need a job to be idle: not leased, and with no expired lease that was taken over. A job that does not exist
-- is idle.

-- Apply commits on distinct streams, which come in the order of their names so that no two calls wait for each other.
-- c_*: commits. s_*: snapshots. l_*: leases that must be held; a token of 0: the job must be idle. r_*: jobs to remove,
-- `spare` 1: unless leased. j_*: jobs to insert, those to keep first. w_*: rows. A number in *_commit is a place in c_*.
-- Answers [now, codes, versions before, lost leases, kept jobs, their tokens, whether a job with caps was removed];
-- codes: 0 committed, 1 leases lost, 2 version conflict.
CREATE OR REPLACE FUNCTION apply_commits(
    me bigint, my_epoch bigint, my_batch bigint, at_ms bigint,
    c_tenant text[], c_kind text[], c_key text[], c_expected bigint[], c_new bigint[], c_count bigint[], c_body bytea[],
    c_lease_ms bigint[], c_owner text[],
    s_commit bigint[], s_version bigint[], s_body bytea[],
    l_commit bigint[], l_key text[], l_token bigint[],
    r_commit bigint[], r_key text[], r_spare bigint[],
    j_commit bigint[], j_tenant text[], j_key text[], j_lane bigint[], j_capped bigint[], j_ready bigint[],
    j_place bigint[], j_keep bigint[], j_body bytea[],
    w_commit bigint[], w_tenant text[], w_kind text[], w_key text[], w_sort bigint[], w_gone bigint[],
    w_terms bytea[], w_marks text[], w_body bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint;
    ids bigint[];
    versions bigint[];
    months bigint[];
    codes bigint[];
    lost bigint[] := '{}';
    losers bigint[] := '{}';
    first_place bigint;
    kept bigint[] := '{}';
    tokens bigint[] := '{}';
    freed boolean := false;
    reply text;
BEGIN
    IF 1 = ANY (c_new) THEN
        INSERT INTO streams (tenant, kind, key, version, month)
        SELECT c.tenant, c.kind, c.key, 0, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMM')::integer
        FROM unnest(c_tenant, c_kind, c_key, c_new) c(tenant, kind, key, new) WHERE c.new = 1
        ON CONFLICT DO NOTHING;
    END IF;
    SELECT array_agg(coalesce(s.id, 0)), array_agg(coalesce(s.version, 0)), array_agg(coalesce(s.month, 0))
    INTO ids, versions, months
    FROM unnest(c_tenant, c_kind, c_key) c(tenant, kind, key)
    LEFT JOIN LATERAL (
        SELECT t.id, t.version, t.month FROM streams t
        WHERE t.kind = c.kind AND t.tenant = c.tenant AND t.key = c.key FOR UPDATE
    ) s ON true;
    now_ms := clock_ms(at_ms);
    IF cardinality(l_key) > 0 THEN
        SELECT coalesce(array_agg(l.n), '{}'), coalesce(array_agg(l.commit), '{}') INTO lost, losers
        FROM unnest(l_commit, l_key, l_token) WITH ORDINALITY l(commit, key, token, n)
        LEFT JOIN LATERAL (
            SELECT j.token, j.expired FROM jobs j WHERE j.stream = ids[l.commit] AND j.key = l.key FOR UPDATE
        ) known ON true
        WHERE CASE WHEN l.token = 0 THEN known.token <> 0 OR known.expired <> 0
            ELSE known.token IS DISTINCT FROM l.token END;
    END IF;
    SELECT array_agg(CASE WHEN c.n = ANY (losers) THEN 1 WHEN c.expected >= 0 AND c.expected <> c.version THEN 2 ELSE 0
        END ORDER BY c.n)
    INTO codes FROM unnest(c_expected, versions) WITH ORDINALITY c(expected, version, n);

    WITH moved AS (
        UPDATE streams s SET version = c.version + c.count
        FROM unnest(ids, versions, c_count, codes) c(id, version, count, code)
        WHERE s.id = c.id AND c.code = 0 AND c.count > 0
    )
    INSERT INTO records (month, stream, version, tenant, body)
    SELECT c.month, c.id, c.version + c.count, c.tenant, c.body
    FROM unnest(months, ids, versions, c_count, codes, c_tenant, c_body) c(month, id, version, count, code, tenant, body)
    WHERE c.code = 0 AND c.count > 0;
    IF cardinality(s_commit) > 0 THEN
        INSERT INTO snapshots AS old (stream, tenant, version, body)
        SELECT ids[s.commit], c_tenant[s.commit], s.version, s.body
        FROM unnest(s_commit, s_version, s_body) s(commit, version, body) WHERE codes[s.commit] = 0
        ON CONFLICT (stream) DO UPDATE SET version = excluded.version, body = excluded.body
            WHERE excluded.version > old.version;
    END IF;
    IF cardinality(r_key) > 0 THEN
        WITH gone AS (
            DELETE FROM jobs j USING unnest(r_commit, r_key, r_spare) r(commit, key, spare)
            WHERE codes[r.commit] = 0 AND j.stream = ids[r.commit] AND j.key = r.key AND (r.spare = 0 OR j.token = 0)
            RETURNING j.capped
        )
        SELECT coalesce(bool_or(gone.capped), false) INTO freed FROM gone;
    END IF;
    IF cardinality(j_key) > 0 THEN
        first_place := nextval('places') << 20;
        WITH added AS (
            INSERT INTO jobs (stream, key, tenant, lane, capped, ready_at_ms, place, state, due_ms, token, owner,
                              session, batch, body)
            SELECT ids[j.commit], j.key, j.tenant, j.lane, j.capped = 1, greatest(j.ready, now_ms),
                   first_place + j.place,
                   CASE WHEN j.keep = 1 AND j.ready <= now_ms THEN 2 ELSE 1 END,
                   CASE WHEN j.keep = 1 AND j.ready <= now_ms THEN now_ms + c_lease_ms[j.commit] ELSE 0 END,
                   CASE WHEN j.keep = 1 AND j.ready <= now_ms THEN nextval('tokens') ELSE 0 END,
                   CASE WHEN j.keep = 1 AND j.ready <= now_ms THEN c_owner[j.commit] ELSE '' END,
                   me, my_batch, j.body
            FROM unnest(j_commit, j_tenant, j_key, j_lane, j_capped, j_ready, j_place, j_keep, j_body)
                j(commit, tenant, key, lane, capped, ready, place, keep, body)
            WHERE codes[j.commit] = 0
            ON CONFLICT DO NOTHING RETURNING place, token
        )
        SELECT coalesce(array_agg(a.place - first_place), '{}'), coalesce(array_agg(a.token), '{}')
        INTO kept, tokens FROM added a WHERE a.token <> 0;
    END IF;
    IF cardinality(w_key) > 0 THEN
        PERFORM write_rows(codes, w_commit, w_tenant, w_kind, w_key, w_sort, w_gone, w_terms, w_marks, w_body);
    END IF;
    reply := json_build_array(now_ms, codes, versions, lost, kept, tokens, freed)::text;
    -- Several calls of one transaction leave a line each. Who fences this call waits for it from here on.
    UPDATE sessions s SET batch = my_batch, seen = now(),
        answer = CASE WHEN s.batch = my_batch THEN s.answer || E'\n' || reply ELSE reply END
    WHERE s.id = me AND s.epoch = my_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the session is over' USING ERRCODE = 'TM001';
    END IF;
    RETURN reply;
END
$$;
