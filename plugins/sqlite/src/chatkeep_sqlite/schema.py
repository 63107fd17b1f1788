"""The tables, and how a file becomes ready: safely from several processes that open it at the same instant."""

from __future__ import annotations

import logging
import random
import sqlite3
import time

from chatkeep.errors import StoreFormatError

logger = logging.getLogger("chatkeep.sqlite")

FORMAT = 1
"""The version of these tables. A file with a newer one is refused."""

MEMORY = ":memory:"
CACHE_KIB = 16 * 1024
"""The most memory that a connection's page cache may take: a history of some 10,000 messages lies in it."""
POLL = 100
"""Milliseconds for which SQLite waits by itself while a file is being opened."""

TABLES = """
CREATE TABLE IF NOT EXISTS chatkeep_sessions (  -- one life of a session each; with an empty id, a scope's own state
    k INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,                        -- Scope.address
    id TEXT NOT NULL,
    life TEXT NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,                      -- of the last write, but for those within a second of it
    expires REAL,
    ttl REAL,
    meta TEXT NOT NULL DEFAULT '{}',
    fence INTEGER NOT NULL DEFAULT 0,
    lease_owner TEXT,
    lease_until REAL,
    UNIQUE (scope, id)
) STRICT;
CREATE INDEX IF NOT EXISTS chatkeep_sessions_by_write ON chatkeep_sessions (scope, updated);
CREATE INDEX IF NOT EXISTS chatkeep_sessions_by_expiry ON chatkeep_sessions (expires) WHERE expires IS NOT NULL;
CREATE INDEX IF NOT EXISTS chatkeep_sessions_by_service ON chatkeep_sessions (scope, meta ->> '$.service')
    WHERE meta ->> '$.service' IS NOT NULL;

CREATE TABLE IF NOT EXISTS chatkeep_logs (
    l INTEGER PRIMARY KEY,
    k INTEGER NOT NULL,
    name TEXT NOT NULL,
    tail INTEGER NOT NULL DEFAULT 0,
    last INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL DEFAULT 0,
    rewrite INTEGER NOT NULL DEFAULT 0,
    looked INTEGER NOT NULL DEFAULT 0,          -- up to where trimming has looked: it need not look there again
    lead INTEGER NOT NULL DEFAULT 0,            -- how many records stand there
    turn INTEGER NOT NULL DEFAULT 0,            -- the first turn start behind the first record; 0: not up to there
    UNIQUE (k, name)
) STRICT;

CREATE TABLE IF NOT EXISTS chatkeep_records (
    pos INTEGER PRIMARY KEY,                    -- l << 32 | seq: a log's records lie side by side, in order
    id TEXT,
    role TEXT NOT NULL,
    starts_turn INTEGER NOT NULL,
    format TEXT NOT NULL,
    created REAL NOT NULL,
    text TEXT,
    payload BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS chatkeep_records_by_id ON chatkeep_records (pos >> 32, id) WHERE id IS NOT NULL;

CREATE TABLE IF NOT EXISTS chatkeep_trimmed (   -- ids of records that were trimmed lately
    pos INTEGER PRIMARY KEY,
    id TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS chatkeep_trimmed_by_id ON chatkeep_trimmed (pos >> 32, id);

CREATE TABLE IF NOT EXISTS chatkeep_batches (   -- appends with a batch id, in order of n
    n INTEGER PRIMARY KEY,
    l INTEGER NOT NULL,
    token BLOB NOT NULL,
    first INTEGER NOT NULL,
    final INTEGER NOT NULL,
    seqs TEXT NOT NULL,
    UNIQUE (l, token)
) STRICT;
CREATE INDEX IF NOT EXISTS chatkeep_batches_in_order ON chatkeep_batches (l, n);

CREATE TABLE IF NOT EXISTS chatkeep_state (
    k INTEGER NOT NULL,
    key BLOB NOT NULL,                          -- UTF-8, so that its order is the order of bytes
    version TEXT NOT NULL,
    format TEXT NOT NULL,
    value BLOB NOT NULL,
    UNIQUE (k, key)
) STRICT;
"""


def prepare(connection: sqlite3.Connection, path: str, *, synchronous: str, patience: float) -> None:
    """Bring a connection and its file into shape. Waits up to `patience` seconds for others who hold the file.

    Two connections that set WAL at once on a new file are told "locked" at once, whatever the busy timeout; and where
    the machine is busy, SQLite's own waiting takes several times as long as it was told. So this waits by the clock.
    """
    connection.execute(f"PRAGMA busy_timeout = {POLL}")
    deadline = time.monotonic() + patience
    while True:
        try:
            _prepare(connection, path, synchronous)
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311 - on the connection's own thread
        else:
            return


def _prepare(connection: sqlite3.Connection, path: str, synchronous: str) -> None:
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA secure_delete = ON")  # what was deleted, redacted or erased is overwritten
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    if path != MEMORY:
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            logger.warning("this file cannot have a write-ahead log (its journal mode is %s): slower", mode)
    _create_tables(connection, path)


def _create_tables(connection: sqlite3.Connection, path: str) -> None:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'chatkeep_format'").fetchone()
    if found is None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute("CREATE TABLE IF NOT EXISTS chatkeep_format (version INTEGER NOT NULL) STRICT")
            for statement in TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute(
                "INSERT INTO chatkeep_format SELECT ? WHERE NOT EXISTS (SELECT 1 FROM chatkeep_format)", (FORMAT,)
            )
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
    (version,) = connection.execute("SELECT max(version) FROM chatkeep_format").fetchone()
    if version is None:
        raise StoreFormatError(f"{path!r} does not say which stored format it has: it was damaged; restore a backup")
    if version > FORMAT:
        raise StoreFormatError(
            f"{path!r} has stored format {version}, and this version of chatkeep knows up to {FORMAT}: upgrade chatkeep"
        )
