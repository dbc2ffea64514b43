-- Answers of the container and the proposer, by the exact key of the call.
CREATE TABLE request_response_cache (
    namespace  TEXT    NOT NULL CHECK (namespace <> ''),
    cache_key  TEXT    NOT NULL CHECK (cache_key <> ''),
    -- The kind of the call. A failure that is stored for replay has the suffix `.failure`.
    boundary   TEXT    NOT NULL,
    -- Bytes of the response before compression.
    size       INTEGER NOT NULL CHECK (size >= 0),
    -- RFC 3339, UTC.
    created_at TEXT    NOT NULL,
    -- SHA-256 over namespace, key, boundary and response. It reveals a row that was copied or changed.
    checksum   BLOB    NOT NULL,
    -- zstd
    response   BLOB    NOT NULL,
    PRIMARY KEY (namespace, cache_key)
);
