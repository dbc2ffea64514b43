-- Answers of container and proposer, by the exact key of what was asked.
CREATE TABLE request_response_cache (
    namespace  TEXT    NOT NULL CHECK (namespace <> ''),
    cache_key  TEXT    NOT NULL CHECK (cache_key <> ''),
    -- Which call it was; a failure that is kept for replay has the suffix `.failure`.
    boundary   TEXT    NOT NULL,
    -- Bytes of the response before compression.
    size       INTEGER NOT NULL CHECK (size >= 0),
    -- RFC 3339, UTC.
    created_at TEXT    NOT NULL,
    -- SHA-256 over namespace, key, boundary and response: a row that was copied or changed is noticed.
    checksum   BLOB    NOT NULL,
    -- zstd
    response   BLOB    NOT NULL,
    PRIMARY KEY (namespace, cache_key)
);
