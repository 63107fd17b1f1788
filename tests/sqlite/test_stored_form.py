"""Stored format 1 of SQLite is pinned: a file written by the first version is read by every later one.

``golden/format-1.sql`` is a dump of what `write` stores. It is never made anew; a later format gets a file of its own.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from chatkeep import ChatMessage, OpenAIChatCodec, Scope, Store, open_store

GOLDEN = Path(__file__).parent / "golden" / "format-1.sql"
CALL = {"id": "call-1", "name": "find_bag", "arguments": '{"tag": "SK 123"}'}


async def write(store: Store[Any]) -> None:
    """What the golden file holds."""
    scope = store.scoped(tenant="acme", user="alice")
    session = scope.session("support-42")
    await session.append([ChatMessage.user("Where is my bag? 🧳", id="m-1")], batch_id="first")
    await session.append([ChatMessage.assistant(tool_calls=[CALL]), ChatMessage.tool("Oslo", tool_call_id="call-1")])
    await session.append([ChatMessage.assistant("In Oslo.")])
    await session.log("audit", codec=OpenAIChatCodec()).append([{"role": "user", "content": "lone \ud800 surrogate"}])
    await session.state.set("language", "no")
    await session.state.set("bag", {"weight": 23.5, "photo": b"\x00\xff"})
    await session.update(title="A bag", metadata={"topic": "bags"}, service_session_id={"task": "t-1"})
    await scope.state.set("plan", ["gold", 1])


async def test_a_file_of_format_1_is_read(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.executescript(GOLDEN.read_text(encoding="utf-8"))
    connection.close()
    async with open_store(f"sqlite:///{tmp_path}/old.db") as store:
        (info,) = await store.list_sessions(below=True)
        assert info.scope == Scope(None, "acme", "alice")
        assert (info.id, info.title, info.metadata) == ("support-42", "A bag", {"topic": "bags"})
        assert info.service_session_id == {"task": "t-1"}
        scope = store.scoped(tenant="acme", user="alice")
        session = scope.session("support-42")
        messages = await session.messages()
        assert messages == [
            ChatMessage.user("Where is my bag? 🧳", id="m-1"),
            ChatMessage.assistant(tool_calls=[CALL]),
            ChatMessage.tool("Oslo", tool_call_id="call-1"),
            ChatMessage.assistant("In Oslo."),
        ]
        assert messages.seqs == [1, 2, 3, 4]
        assert await session.log("audit", codec=OpenAIChatCodec()).messages() == [
            {"role": "user", "content": "lone \ud800 surrogate"}
        ]
        assert await session.state.items() == {"bag": {"weight": 23.5, "photo": b"\x00\xff"}, "language": "no"}
        assert await scope.state.get("plan") == ["gold", 1]
        assert (await session.append([ChatMessage.user("again")], batch_id="first")).added == 0
        assert (await session.append([ChatMessage.user("Where?", id="m-1")])).added == 0
        assert (await session.append([ChatMessage.user("And now?")])).seqs == (5,)


async def test_a_new_file_has_the_tables_of_the_pinned_one(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/new.db") as store:
        await write(store)
        info = await store.list_sessions(below=True)
        assert len(info) == 1
    old = sqlite3.connect(":memory:")
    old.executescript(GOLDEN.read_text(encoding="utf-8"))
    new = sqlite3.connect(tmp_path / "new.db")
    assert tables(new) == tables(old)
    assert rows(new) == rows(old)
    old.close()
    new.close()


def tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()


def rows(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Everything that is stored, but for what is different each time: times, lives and versions."""
    found = {}
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        kept = ", ".join(column for column in columns if column not in ("created", "updated", "life", "version"))
        found[table] = connection.execute(f"SELECT {kept or 'count(*)'} FROM {table}").fetchall()
    return found
