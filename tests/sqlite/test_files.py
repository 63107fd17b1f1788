"""Which files the SQLite backend takes and makes, and what it says of the others."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest

from chatkeep import ChatMessage, StoreError, StoreUnavailableError, open_store
from chatkeep_sqlite import worker
from chatkeep_sqlite.files import OpenFile, Parting

HELLO = [ChatMessage.user("Hello")]


async def use(path: Path | str, **options: bool) -> None:
    async with open_store(f"sqlite:///{path}", **options) as store:
        await store.session("s").append(HELLO)


async def test_without_create_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    for url in (f"sqlite:///{path}?create=false", f"sqlite:///{tmp_path}/none/chat.db?create=false"):
        with pytest.raises(StoreUnavailableError, match=r"there is no file '.*chat\.db': check the path"):
            await open_store(url).open()
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240


async def test_without_create_a_file_that_is_there_is_used(tmp_path: Path) -> None:
    await use(tmp_path / "chat.db")
    await use(tmp_path / "chat.db", create=False)
    async with open_store("sqlite://", create=False) as store:
        assert not await store.session("s").exists()


async def test_a_file_that_is_moved_away_while_it_is_opened_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chat.db"
    await use(path)

    def moved(name: str, parting: Parting) -> OpenFile:
        found = OpenFile(name, parting)
        path.rename(tmp_path / "elsewhere.db")
        return found

    monkeypatch.setattr(worker, "OpenFile", moved)
    with pytest.raises(StoreUnavailableError, match="cannot be opened"):
        await use(path)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["elsewhere.db"]  # noqa: PTH208
    async with open_store(f"sqlite:///{tmp_path}/elsewhere.db") as store:
        assert await store.session("s").messages() == HELLO


@pytest.mark.parametrize(
    "name", ["a b.db", "a%20b.db", "a?b.db", "a#b.db", "a\nb.db", "ü😀.db", "file:x.db", "a&mode=ro.db"]
)
async def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        await use(f"{tmp_path}/{quote(name)}")
    assert os.listdir(tmp_path) == [name]  # noqa: PTH208


async def test_what_is_no_regular_file_is_refused_in_words(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/null"):
        for create in (True, False):
            with pytest.raises(StoreUnavailableError, match="is no regular file: name one"):
                await use(path, create=create)
    with pytest.raises(StoreUnavailableError, match="is a folder: name a file in it"):
        await use(tmp_path, create=False)
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailableError, match=r"cannot open '.*file/chat\.db': Not a directory"):
        await use(tmp_path / "file" / "chat.db")


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="this system has no /proc")
async def test_a_folder_that_cannot_hold_files_is_not_said_to_be_missing() -> None:
    with pytest.raises(
        StoreUnavailableError, match="no file can be made in the folder '/proc/self'; choose another one"
    ):
        await use("/proc/self/chat.db")


async def test_a_name_that_is_too_long_is_unavailable_too(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="File name too long"):
        await use(tmp_path / ("x" * 300))


async def test_a_damaged_file_is_said_to_be_damaged_with_the_mend(tmp_path: Path) -> None:
    path = tmp_path / "chat.db"
    await use(path)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged \(.*malformed.*restore a backup.*\.recover") as caught:
        await use(path)
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE chatkeep_sessions (a)",
        "CREATE TABLE chatkeep_records (pos INTEGER, id)",
        "CREATE TABLE chatkeep_format (a)",
        "CREATE VIEW chatkeep_sessions AS SELECT 1",
    ],
)
async def test_a_strangers_table_under_a_name_of_chatkeeps_is_named_as_such(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(
        StoreError, match=r"Another program has made or changed a table or view .*: choose another file"
    ):
        await use(path)
