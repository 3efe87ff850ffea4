-- Streams with their records and snapshots, jobs, rows: what the store contract is made of.
--
-- counters   one row: the last number given out as a stream's id, a job's place in the line, a fence token; and a
--            checksum of the three, since a counter that fell back would give out a token twice
-- streams    a name, and the number of records behind it
-- records    what one commit appended to a stream, as one value; `version` is that of its last record
-- snapshots  the newest one of a stream
-- lanes      the queue, tenant, caps and priority that jobs have in common, so that a job holds a number
-- jobs       state 0: not ready yet, 1: may be claimed, 2: leased. `due_ms` is when state 0 or 2 ends by itself
-- tenants    the fence token of the last job that was claimed for a tenant: whose turn is next
-- rows       index entries; `terms` and `body` as they were given
-- terms      a place in the order of rows for each term of each row; `term` is a hash of tenant, kind and text
-- holders    processes that have the file open, each behind a lock of the operating system

CREATE TABLE counters (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    streams  INTEGER NOT NULL,
    places   INTEGER NOT NULL,
    tokens   INTEGER NOT NULL,
    seal     INTEGER NOT NULL
);
INSERT INTO counters VALUES (1, 0, 0, 0, 2415664546);

CREATE TABLE streams (
    id       INTEGER PRIMARY KEY,
    kind     TEXT NOT NULL,
    tenant   TEXT NOT NULL,
    key      TEXT NOT NULL,
    version  INTEGER NOT NULL,
    UNIQUE (kind, tenant, key)
);

CREATE TABLE records (
    id       INTEGER PRIMARY KEY,
    stream   INTEGER NOT NULL,
    version  INTEGER NOT NULL,
    body     BLOB NOT NULL
);
CREATE UNIQUE INDEX records_in_order ON records (stream, version);

CREATE TABLE snapshots (
    stream   INTEGER PRIMARY KEY,
    version  INTEGER NOT NULL,
    body     BLOB NOT NULL
);

CREATE TABLE lanes (
    id        INTEGER PRIMARY KEY,
    queue     TEXT NOT NULL,
    tenant    TEXT NOT NULL,
    caps      BLOB NOT NULL,
    priority  INTEGER NOT NULL,
    UNIQUE (queue, tenant, caps, priority)
);

CREATE TABLE jobs (
    stream       INTEGER NOT NULL,
    key          TEXT NOT NULL,
    lane         INTEGER NOT NULL,
    ready_at_ms  INTEGER NOT NULL,
    place        INTEGER NOT NULL,
    state        INTEGER NOT NULL,
    due_ms       INTEGER NOT NULL,
    token        INTEGER NOT NULL DEFAULT 0,
    expired      INTEGER NOT NULL DEFAULT 0,
    holder       INTEGER NOT NULL DEFAULT 0,
    owner        TEXT NOT NULL DEFAULT '',
    body         BLOB NOT NULL,
    PRIMARY KEY (stream, key)
) WITHOUT ROWID;
CREATE INDEX jobs_in_line ON jobs (lane, ready_at_ms, place) WHERE state = 1;
CREATE INDEX jobs_by_due ON jobs (state, due_ms) WHERE state <> 1;

CREATE TABLE tenants (
    tenant  TEXT PRIMARY KEY,
    served  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE rows (
    tenant  TEXT NOT NULL,
    kind    TEXT NOT NULL,
    key     TEXT NOT NULL,
    sort    INTEGER NOT NULL,
    terms   BLOB NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (tenant, kind, key)
) WITHOUT ROWID;

CREATE TABLE terms (
    term  INTEGER NOT NULL,
    sort  INTEGER NOT NULL,
    key   TEXT NOT NULL,
    PRIMARY KEY (term, sort, key)
) WITHOUT ROWID;

CREATE TABLE holders (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT NOT NULL,
    opened_ms  INTEGER NOT NULL
);
