-- Large values by content, for those who want everything in one file.
--
-- blobs        a digest once per tenant. `state` 0: active, 1: in grace, on its way out; since `since_ms`.
--              `kept` 1: never collected. An id is never given out again, so no reader takes one blob for another
-- blob_pieces  its bytes, in pieces that are small enough to be read and written one by one

CREATE TABLE blobs (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant    TEXT NOT NULL,
    digest    TEXT NOT NULL,
    size      INTEGER NOT NULL,
    state     INTEGER NOT NULL DEFAULT 0,
    since_ms  INTEGER NOT NULL,
    kept      INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, digest)
);

CREATE TABLE blob_pieces (
    blob    INTEGER NOT NULL REFERENCES blobs (id) ON DELETE CASCADE,
    number  INTEGER NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (blob, number)
);
