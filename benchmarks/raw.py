"""The yardsticks: the least that the raw drivers can do for the same rows.

The same columns as ours, a session row with its tail, a unique index over (session, seq), one transaction a turn; no
scopes, ids, expiry, trimming, conditions, lives or retries. Messages are plain dicts.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

import aiosqlite
from pydantic_core import from_json, to_json

from .turns import Turn

T = TypeVar("T")

TABLES = """
CREATE TABLE sessions (k INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, updated REAL NOT NULL, tail INTEGER NOT NULL);
CREATE TABLE records (
    k INTEGER NOT NULL, seq INTEGER NOT NULL, id TEXT, role TEXT NOT NULL, starts_turn INTEGER NOT NULL,
    format TEXT NOT NULL, created REAL NOT NULL, text TEXT, payload BLOB NOT NULL, UNIQUE (k, seq)
);
"""
WRITE_SESSION = """
INSERT INTO sessions (id, updated, tail) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET updated = excluded.updated, tail = tail + excluded.tail RETURNING k, tail
"""
WRITE_RECORD = "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
READ = "SELECT seq, payload FROM records WHERE k = (SELECT k FROM sessions WHERE id = ?) ORDER BY seq DESC LIMIT ?"

Rows = list[tuple[str, bytes, str]]


def encoded(turn: Turn) -> Rows:
    """Role, payload and text of each message."""
    question, answer = turn
    messages = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return [(message["role"], to_json(message), message["content"]) for message in messages]


def make_file(path: Path, synchronous: str) -> None:
    """An empty file with the tables, and a write-ahead log as ours has."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.executescript(TABLES)
    connection.close()


def write(connection: sqlite3.Connection, session: str, rows: Rows) -> None:
    """One transaction."""
    connection.execute("BEGIN IMMEDIATE")
    now = time.time()
    k, tail = connection.execute(WRITE_SESSION, (session, now, len(rows))).fetchone()
    first = tail - len(rows) + 1
    connection.executemany(
        WRITE_RECORD,
        [
            (k, seq, None, role, role == "user", "chat/1", now, text, payload)
            for seq, (role, payload, text) in enumerate(rows, first)
        ],
    )
    connection.execute("COMMIT")


def read(connection: sqlite3.Connection, session: str, limit: int) -> list[tuple[int, Any]]:
    """The newest messages, oldest first, decoded, each with its seq."""
    messages = [(seq, from_json(payload)) for seq, payload in connection.execute(READ, (session, limit))]
    messages.reverse()
    return messages


class InProcess:
    """sqlite3 on the caller's own thread."""

    def __init__(self, path: Path, *, synchronous: str) -> None:
        make_file(path, synchronous)
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute(f"PRAGMA synchronous = {synchronous}")

    def append(self, session: str, turn: Turn) -> None:
        write(self.connection, session, encoded(turn))

    def close(self) -> None:
        self.connection.close()


class OneHop:
    """aiosqlite with one hop to its thread per operation, which takes its private `_execute`."""

    def __init__(self, path: Path, *, synchronous: str) -> None:
        make_file(path, synchronous)
        self.synchronous = synchronous
        self.connection = aiosqlite.connect(path, isolation_level=None)

    async def __aenter__(self) -> Self:
        await self.connection
        await self.connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    async def hop(self, call: Callable[..., T], *args: Any) -> T:
        done: T = await self.connection._execute(call, self.connection._conn, *args)  # type: ignore[no-untyped-call]
        return done

    async def append(self, session: str, turn: Turn) -> None:
        await self.hop(write, session, encoded(turn))

    async def newest(self, session: str, limit: int) -> list[tuple[int, Any]]:
        return await self.hop(read, session, limit)
