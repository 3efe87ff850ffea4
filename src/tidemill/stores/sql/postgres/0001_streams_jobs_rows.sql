-- Streams with their records and snapshots, jobs, rows: what the store contract is made of.
--
-- sessions   one row per writing connection of a process. `epoch` fences calls of a connection that was cut: a call with
--            an older one is refused. `batch` and `answer` are those of the last committed call, to be read back
-- streams    a name, the number of records behind it, and the month (YYYYMM) it was created in
-- records    what one commit appended to a stream, as one value; `version` is that of its last record. Partitioned by
--            the month of the stream, which is part of the key
-- snapshots  the newest one of a stream
-- lanes      the queue, tenant, caps and priority that jobs have in common, so that a job holds a number
-- jobs       state 1: may be claimed from `ready_at_ms` on, 2: leased until `due_ms`. A lease that expired keeps its
--            token until it is taken over. `session` and `batch` tell which call leased it
-- tenants    the fence token of the last job that was claimed for a tenant: whose turn is next
-- rows       index entries; `marks` are the hashes of their terms
-- terms      a place in the order of rows for each term of each row; `term` is a hash of tenant, kind and text

CREATE SEQUENCE tokens;
CREATE SEQUENCE places;

CREATE TABLE sessions (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text NOT NULL,
    epoch   integer NOT NULL DEFAULT 1,
    batch   bigint NOT NULL DEFAULT 0,
    answer  text NOT NULL DEFAULT '',
    seen    timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

CREATE TABLE streams (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant   text COLLATE "C" NOT NULL,
    kind     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL,
    version  bigint NOT NULL,
    month    integer NOT NULL,
    UNIQUE (kind, tenant, key)
) WITH (fillfactor = 70);

CREATE TABLE records (
    month    integer NOT NULL,
    stream   bigint NOT NULL,
    version  bigint NOT NULL,
    tenant   text COLLATE "C" NOT NULL,
    body     bytea NOT NULL,
    PRIMARY KEY (month, stream, version)
) PARTITION BY LIST (month);

CREATE TABLE snapshots (
    stream   bigint PRIMARY KEY,
    tenant   text COLLATE "C" NOT NULL,
    version  bigint NOT NULL,
    body     bytea NOT NULL
);

CREATE TABLE lanes (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue     text COLLATE "C" NOT NULL,
    tenant    text COLLATE "C" NOT NULL,
    caps      text[] COLLATE "C" NOT NULL,
    priority  integer NOT NULL,
    UNIQUE (queue, tenant, caps, priority)
);

CREATE TABLE jobs (
    stream       bigint NOT NULL,
    key          text COLLATE "C" NOT NULL,
    tenant       text COLLATE "C" NOT NULL,
    lane         bigint NOT NULL,
    capped       boolean NOT NULL,
    ready_at_ms  bigint NOT NULL,
    place        bigint NOT NULL,
    state        smallint NOT NULL,
    due_ms       bigint NOT NULL DEFAULT 0,
    token        bigint NOT NULL DEFAULT 0,
    expired      integer NOT NULL DEFAULT 0,
    owner        text NOT NULL DEFAULT '',
    session      bigint NOT NULL DEFAULT 0,
    batch        bigint NOT NULL DEFAULT 0,
    body         bytea NOT NULL,
    PRIMARY KEY (stream, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX jobs_in_line ON jobs (lane, ready_at_ms, place) WHERE state = 1;
CREATE INDEX jobs_leased ON jobs (due_ms) WHERE state = 2;

CREATE TABLE tenants (
    tenant  text COLLATE "C" PRIMARY KEY,
    served  bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE rows (
    tenant  text COLLATE "C" NOT NULL,
    kind    text COLLATE "C" NOT NULL,
    key     text COLLATE "C" NOT NULL,
    sort    bigint NOT NULL,
    terms   bytea NOT NULL,
    marks   bigint[] NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (tenant, kind, key)
) WITH (fillfactor = 80);

CREATE TABLE terms (
    term    bigint NOT NULL,
    sort    bigint NOT NULL,
    key     text COLLATE "C" NOT NULL,
    tenant  text COLLATE "C" NOT NULL,
    PRIMARY KEY (term, sort, key)
);

-- The server's clock in milliseconds, or the one that a test has set.
CREATE FUNCTION clock_ms(at_ms bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(at_ms, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
$$;

-- Attach partitions of records for this month and the next ones, where they are missing.
CREATE FUNCTION add_partitions(months integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    month_number integer;
    name text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext(current_schema() || '.records'));
    FOR ahead IN 0 .. months - 1 LOOP
        month_number := to_char((clock_timestamp() AT TIME ZONE 'UTC') + make_interval(months => ahead), 'YYYYMM');
        name := 'records_' || month_number;
        IF to_regclass(format('%I.%I', current_schema(), name)) IS NULL THEN
            -- Attaching locks out less than creating a partition in place.
            EXECUTE format('CREATE TABLE %I (LIKE records INCLUDING ALL)', name);
            EXECUTE format('ALTER TABLE records ATTACH PARTITION %I FOR VALUES IN (%s)', name, month_number);
        END IF;
    END LOOP;
END
$$;

-- Write the rows of accepted commits: new ones at once, others with the index entries that change. Of several writings
-- of one row the last counts.
CREATE FUNCTION write_rows(
    codes bigint[], w_commit bigint[], w_tenant text[], w_kind text[], w_key text[], w_sort bigint[], w_gone bigint[],
    w_terms bytea[], w_marks text[], w_body bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH w AS MATERIALIZED (
        SELECT DISTINCT ON (x.tenant, x.kind, x.key) x.*
        FROM unnest(w_commit, w_tenant, w_kind, w_key, w_sort, w_gone, w_terms, w_marks, w_body)
            WITH ORDINALITY x(commit, tenant, kind, key, sort, gone, terms, marks, body, n)
        WHERE codes[x.commit] = 0 ORDER BY x.tenant, x.kind, x.key, x.n DESC
    ), added AS (
        INSERT INTO rows (tenant, kind, key, sort, terms, marks, body)
        SELECT w.tenant, w.kind, w.key, w.sort, w.terms, w.marks::bigint[], w.body FROM w WHERE w.gone = 0
        ON CONFLICT DO NOTHING RETURNING tenant, sort, key, marks
    )
    INSERT INTO terms (term, sort, key, tenant)
    SELECT m.term, a.sort, a.key, a.tenant FROM added a CROSS JOIN LATERAL unnest(a.marks) m(term)
    ON CONFLICT DO NOTHING;

    WITH w AS MATERIALIZED (
        SELECT DISTINCT ON (x.tenant, x.kind, x.key) x.*
        FROM unnest(w_commit, w_tenant, w_kind, w_key, w_sort, w_gone, w_terms, w_marks, w_body)
            WITH ORDINALITY x(commit, tenant, kind, key, sort, gone, terms, marks, body, n)
        WHERE codes[x.commit] = 0 ORDER BY x.tenant, x.kind, x.key, x.n DESC
    ), c AS MATERIALIZED (
        SELECT w.tenant, w.kind, w.key, w.sort, w.gone, w.terms, w.marks::bigint[] AS marks, w.body,
               o.sort AS old_sort, o.marks AS old_marks,
               w.gone = 1 OR o.sort <> w.sort OR o.terms <> w.terms AS moved
        FROM w CROSS JOIN LATERAL (
            SELECT r.sort, r.marks, r.terms FROM rows r
            WHERE r.tenant = w.tenant AND r.kind = w.kind AND r.key = w.key
                AND (w.gone = 1 OR r.sort <> w.sort OR r.terms <> w.terms OR r.body <> w.body)
            FOR UPDATE
        ) o
    ), before AS (
        SELECT m.term, c.old_sort AS sort, c.key, c.tenant FROM c CROSS JOIN LATERAL unnest(c.old_marks) m(term)
        WHERE c.moved
    ), after AS (
        SELECT m.term, c.sort, c.key, c.tenant FROM c CROSS JOIN LATERAL unnest(c.marks) m(term)
        WHERE c.moved AND c.gone = 0
    ), left_out AS (
        DELETE FROM terms t USING (SELECT * FROM before EXCEPT SELECT * FROM after) d
        WHERE t.term = d.term AND t.sort = d.sort AND t.key = d.key
    ), entered AS (
        INSERT INTO terms (term, sort, key, tenant)
        SELECT i.term, i.sort, i.key, i.tenant FROM (SELECT * FROM after EXCEPT SELECT * FROM before) i
        ON CONFLICT DO NOTHING
    ), removed AS (
        DELETE FROM rows r USING c
        WHERE c.gone = 1 AND r.tenant = c.tenant AND r.kind = c.kind AND r.key = c.key
    )
    UPDATE rows r SET sort = c.sort, terms = c.terms, marks = c.marks, body = c.body FROM c
    WHERE c.gone = 0 AND r.tenant = c.tenant AND r.kind = c.kind AND r.key = c.key;
END
$$;

-- Hold the session for this transaction; a call of an earlier connection is refused.
CREATE FUNCTION hold_session(me bigint, my_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM sessions s WHERE s.id = me AND s.epoch = my_epoch FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the session is over' USING ERRCODE = 'TM001';
    END IF;
END
$$;

-- Apply commits on distinct streams, which come in the order of their names so that no two calls wait for each other.
-- c_*: commits. s_*: snapshots. l_*: leases that must be held. r_*: jobs to remove, `spare` 1: unless leased.
-- j_*: jobs to insert, those to keep first. w_*: rows. A number in *_commit is a place in c_*.
-- Answers [now, codes, versions before, lost leases, kept jobs, their tokens, whether a job with caps was removed];
-- codes: 0 committed, 1 leases lost, 2 version conflict.
CREATE FUNCTION apply_commits(
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
            SELECT true AS yes FROM jobs j
            WHERE j.stream = ids[l.commit] AND j.key = l.key AND j.token = l.token AND l.token <> 0 FOR UPDATE
        ) held ON true
        WHERE held.yes IS NULL;
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

-- The most frequent commit, without arrays: records on an existing stream that settle one lease and insert at most one
-- job. Answers like apply_commits; where that one would refuse it, null or an error, and nothing was written.
CREATE FUNCTION apply_hop(
    me bigint, my_epoch bigint, my_batch bigint, at_ms bigint,
    of_tenant text, of_kind text, of_key text, expected bigint, count bigint, new_body bytea,
    ack_key text, ack_token bigint, lease_ms bigint, by_owner text,
    job_key text, job_lane bigint, job_capped bigint, job_ready bigint, job_keep bigint, job_body bytea
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    now_ms bigint;
    found_id bigint;
    found_month integer;
    freed boolean;
    held boolean;
    given bigint;
    kept bigint[] := '{}';
    tokens bigint[] := '{}';
    reply text;
BEGIN
    UPDATE streams s SET version = expected + count
    WHERE s.kind = of_kind AND s.tenant = of_tenant AND s.key = of_key AND s.version = expected
    RETURNING s.id, s.month INTO found_id, found_month;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    now_ms := clock_ms(at_ms);
    DELETE FROM jobs j WHERE j.stream = found_id AND j.key = ack_key AND j.token = ack_token AND ack_token <> 0
    RETURNING j.capped INTO freed;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease is lost' USING ERRCODE = 'TM002';
    END IF;
    INSERT INTO records (month, stream, version, tenant, body)
    VALUES (found_month, found_id, expected + count, of_tenant, new_body);
    IF job_key IS NOT NULL THEN
        held := job_keep = 1 AND job_ready <= now_ms;
        IF held THEN
            given := nextval('tokens');
        END IF;
        INSERT INTO jobs (stream, key, tenant, lane, capped, ready_at_ms, place, state, due_ms, token, owner, session,
                          batch, body)
        VALUES (found_id, job_key, of_tenant, job_lane, job_capped = 1, greatest(job_ready, now_ms),
                nextval('places') << 20, CASE WHEN held THEN 2 ELSE 1 END,
                CASE WHEN held THEN now_ms + lease_ms ELSE 0 END, coalesce(given, 0),
                CASE WHEN held THEN by_owner ELSE '' END, me, my_batch, job_body)
        ON CONFLICT DO NOTHING;
        IF held AND FOUND THEN
            kept := ARRAY[0];
            tokens := ARRAY[given];
        END IF;
    END IF;
    reply := json_build_array(now_ms, ARRAY[0], ARRAY[expected], ARRAY[]::bigint[], kept, tokens, freed)::text;
    UPDATE sessions s SET batch = my_batch, answer = reply, seen = now() WHERE s.id = me AND s.epoch = my_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the session is over' USING ERRCODE = 'TM001';
    END IF;
    RETURN reply;
END
$$;

-- Remove a stream and write rows, unless its version is not the expected one (-1: any). Answers true or false.
CREATE FUNCTION forget_stream(
    me bigint, my_epoch bigint, my_batch bigint, of_tenant text, of_kind text, of_key text, expected bigint,
    w_commit bigint[], w_tenant text[], w_kind text[], w_key text[], w_sort bigint[], w_gone bigint[],
    w_terms bytea[], w_marks text[], w_body bytea[]
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found_id bigint;
    found_version bigint;
    found_month integer;
    reply text := 'true';
BEGIN
    SELECT s.id, s.version, s.month INTO found_id, found_version, found_month FROM streams s
    WHERE s.kind = of_kind AND s.tenant = of_tenant AND s.key = of_key FOR UPDATE;
    IF expected >= 0 AND expected <> coalesce(found_version, 0) THEN
        reply := 'false';
    ELSE
        DELETE FROM records r WHERE r.month = found_month AND r.stream = found_id;
        DELETE FROM snapshots s WHERE s.stream = found_id;
        DELETE FROM jobs j WHERE j.stream = found_id;
        DELETE FROM streams s WHERE s.id = found_id;
        PERFORM write_rows('{0}', w_commit, w_tenant, w_kind, w_key, w_sort, w_gone, w_terms, w_marks, w_body);
    END IF;
    UPDATE sessions s SET batch = my_batch, answer = reply, seen = now() WHERE s.id = me AND s.epoch = my_epoch;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the session is over' USING ERRCODE = 'TM001';
    END IF;
    RETURN reply;
END
$$;

-- The next lanes with jobs that are not leased.
CREATE FUNCTION lanes_in_line(after_lane bigint, most bigint) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY (
        WITH RECURSIVE line (lane) AS (
            (SELECT j.lane FROM jobs j WHERE j.state = 1 AND j.lane > after_lane ORDER BY j.lane LIMIT 1)
            UNION ALL
            SELECT n.lane FROM line CROSS JOIN LATERAL (
                SELECT j.lane FROM jobs j WHERE j.state = 1 AND j.lane > line.lane ORDER BY j.lane LIMIT 1
            ) n
        )
        SELECT line.lane FROM line LIMIT most
    );
END
$$;

-- The most live leases that a cap allows: as the claim says, or as the name itself says at its end; null is no bound.
CREATE FUNCTION cap_bound(cap text, cap_names text[], cap_bounds bigint[]) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(cap_bounds[array_position(cap_names, cap)], substring(cap FROM '.<=([0-9]{1,18})$')::bigint)
$$;

-- Jobs that can be claimed, in the order of choice: tenants in turn, the one served longest ago first; within a tenant
-- by priority, ready time and insertion. A lane offers no more jobs than its caps have room for.
CREATE FUNCTION next_jobs(
    now_ms bigint, queues text[], most bigint, cap_names text[], cap_bounds bigint[], tree text, among bigint[]
) RETURNS TABLE (job_stream bigint, job_key text, job_lane bigint, job_capped boolean) LANGUAGE plpgsql ROWS 100 AS $$
BEGIN
    -- Functions in PL/pgSQL keep their plans; those in SQL are planned at every call.
    RETURN QUERY
    WITH line AS (
        SELECT a.lane, n.ready_at_ms, n.place FROM unnest(among) a(lane) CROSS JOIN LATERAL (
            SELECT j.ready_at_ms, j.place FROM jobs j WHERE j.state = 1 AND j.lane = a.lane
            ORDER BY j.ready_at_ms, j.place LIMIT 1
        ) n
    ), live AS MATERIALIZED (
        SELECT c.cap, count(*) AS leases
        FROM jobs j JOIN lanes l ON l.id = j.lane CROSS JOIN LATERAL unnest(l.caps) c(cap)
        WHERE j.state = 2 AND j.due_ms > now_ms AND j.capped GROUP BY c.cap
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
        WHERE line.ready_at_ms <= now_ms AND (cardinality(queues) = 0 OR l.queue = ANY (queues))
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

-- Lease the first of these jobs that nobody else is about to take, in their order. Streams are named here: the statement
-- that calls this may have begun before they were created.
CREATE FUNCTION lease_jobs(
    me bigint, my_epoch bigint, my_batch bigint, now_ms bigint, c_stream bigint[], c_key text[], most bigint,
    lease_ms bigint, by_owner text
) RETURNS TABLE (
    key text, token bigint, body bytea, lane bigint, expired integer, ready_at_ms bigint, of_tenant text, of_kind text,
    of_key text
) LANGUAGE plpgsql ROWS 100 AS $$
BEGIN
    PERFORM hold_session(me, my_epoch);
    RETURN QUERY
    WITH locked AS MATERIALIZED (
        SELECT j.stream, j.key, c.n
        FROM unnest(c_stream, c_key) WITH ORDINALITY c(stream, key, n)
        JOIN jobs j ON j.stream = c.stream AND j.key = c.key
        WHERE j.state = 1 AND j.ready_at_ms <= now_ms
        ORDER BY c.n LIMIT most FOR UPDATE OF j SKIP LOCKED
    ), numbered AS MATERIALIZED (
        SELECT l.stream, l.key, nextval('tokens') AS token FROM (SELECT * FROM locked ORDER BY n) l
    ), leased AS (
        UPDATE jobs j SET state = 2, due_ms = now_ms + lease_ms, token = n.token, owner = by_owner, session = me,
            batch = my_batch, expired = j.expired + CASE WHEN j.token = 0 THEN 0 ELSE 1 END
        FROM numbered n WHERE j.stream = n.stream AND j.key = n.key
        RETURNING j.stream, j.key, j.token, j.body, j.lane, j.expired, j.ready_at_ms, j.tenant
    ), served AS (
        INSERT INTO tenants AS t (tenant, served)
        SELECT l.tenant, max(l.token) FROM leased l GROUP BY l.tenant ORDER BY l.tenant
        ON CONFLICT (tenant) DO UPDATE SET served = greatest(t.served, excluded.served)
    )
    SELECT l.key, l.token, l.body, l.lane, l.expired, l.ready_at_ms, s.tenant, s.kind, s.key
    FROM leased l JOIN streams s ON s.id = l.stream ORDER BY l.token;
END
$$;

-- Leases that have expired: their jobs may be claimed again, and keep their tokens until they are.
CREATE FUNCTION expire_leases(now_ms bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE jobs j SET state = 1
    FROM (
        SELECT d.stream, d.key FROM jobs d WHERE d.state = 2 AND d.due_ms <= now_ms
        ORDER BY d.due_ms LIMIT 1000 FOR UPDATE SKIP LOCKED
    ) due
    WHERE j.stream = due.stream AND j.key = due.key;
END
$$;

-- When a job of these queues becomes ready by time alone; null if none will.
CREATE FUNCTION next_due(now_ms bigint, queues text[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
    WITH RECURSIVE line (lane) AS (
        (SELECT j.lane FROM jobs j WHERE j.state = 1 ORDER BY j.lane LIMIT 1)
        UNION ALL
        SELECT (SELECT j.lane FROM jobs j WHERE j.state = 1 AND j.lane > line.lane ORDER BY j.lane LIMIT 1)
        FROM line WHERE line.lane IS NOT NULL
    )
    SELECT least(
        (SELECT j.due_ms FROM jobs j WHERE j.state = 2 ORDER BY j.due_ms LIMIT 1),
        (SELECT min(later.ready_at_ms) FROM line JOIN lanes l ON l.id = line.lane CROSS JOIN LATERAL (
            SELECT j.ready_at_ms FROM jobs j WHERE j.state = 1 AND j.lane = l.id AND j.ready_at_ms > now_ms
            ORDER BY j.ready_at_ms LIMIT 1
        ) later WHERE cardinality(queues) = 0 OR l.queue = ANY (queues))
    ));
END
$$;

-- Claim in one call, unless a job comes up whose caps are bounded. The last line has no key: its token is the clock,
-- its ready time the next moment at which there may be work, its lane the last one that was looked at if there may be
-- more, and `expired` is 1 if others were about to take what there was, 2 if caps must be counted first.
CREATE FUNCTION claim_jobs(
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
        due := next_due(now_ms, queues);
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
