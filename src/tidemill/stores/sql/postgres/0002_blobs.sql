-- Large values by content, for those who want everything in one database.
--
-- blobs        a digest once per tenant. `state` 0: active, 1: in grace, on its way out; since `since_ms`.
--              `kept` 1: never collected. An id is never given out again, so no reader takes one blob for another
-- blob_pieces  its bytes, in pieces that are small enough to be read and written one by one

CREATE TABLE blobs (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant    text COLLATE "C" NOT NULL,
    digest    text COLLATE "C" NOT NULL,
    size      bigint NOT NULL,
    state     smallint NOT NULL DEFAULT 0,
    since_ms  bigint NOT NULL,
    kept      smallint NOT NULL DEFAULT 0,
    UNIQUE (tenant, digest)
);

CREATE TABLE blob_pieces (
    blob    bigint NOT NULL REFERENCES blobs (id) ON DELETE CASCADE,
    number  bigint NOT NULL,
    tenant  text COLLATE "C" NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (blob, number)
);
-- Most large values are compressed already, or are not worth the time.
ALTER TABLE blob_pieces ALTER COLUMN body SET STORAGE EXTERNAL;
