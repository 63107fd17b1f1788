"""What the contract cannot know of: the file."""

# ruff: noqa: ASYNC240 - the tests look at small files of their own

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chatkeep import ChatMessage, OutcomeUnknownError, Store, StoreError, StoreUnavailableError, open_store
from chatkeep.errors import InvalidURLError, StoreFormatError

pytestmark = pytest.mark.asyncio

FORM_1 = (
    b'{"journal": "chatkeep-echo", "form": 1}\n'
    b'{"key": {"scope": {"tenant": "acme"}, "session": "s"}, "write": {"token": "AAECAwQFBgcICQoLDA0ODw==", '
    b'"append": [{"seq": 0, "id": null, "role": "user", "starts_turn": true, "format": "chat/1", "created_at": null, '
    b'"text": null, "payload": "eyJyb2xlIjoidXNlciIsImNvbnRlbnQiOiJ4In0="}]}, "now": 1700000000.5, "life": "a1"}\n'
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "chat.journal"


@pytest_asyncio.fixture
async def store(journal: Path) -> AsyncIterator[Store[ChatMessage]]:
    async with open_store(f"echo:///{journal}") as store:
        yield store


async def said(store: Store[ChatMessage], session: str = "s") -> list[str]:
    return [message.text for message in await store.session(session).messages()]


async def say(store: Store[ChatMessage], text: str) -> None:
    await store.session("s").append([ChatMessage.user(text)], batch_id=text)


async def test_a_journal_of_form_1_is_read(journal: Path) -> None:
    journal.write_bytes(FORM_1)
    async with open_store(f"echo:///{journal}") as store:
        info = await store.scoped(tenant="acme").session("s").info()
        assert info is not None
        assert info.created_at.timestamp() == 1700000000.5
        assert (await store.scoped(tenant="acme").session("s").messages()).end.life == "a1"


async def test_what_a_dead_writer_has_torn_is_never_read_and_is_cut_off_by_the_next(
    store: Store[ChatMessage], journal: Path
) -> None:
    spoken = ["one"]
    await say(store, "one")
    for torn in (b'{"key": {"torn', FORM_1.splitlines()[1]):  # a whole step without its newline is none
        journal.write_bytes(journal.read_bytes() + torn)
        assert await said(store) == spoken
        spoken.append(f"after {len(torn)}")
        await say(store, spoken[-1])
        assert torn not in journal.read_bytes()
    async with open_store(f"echo:///{journal}") as other:
        assert await said(other) == spoken


async def test_a_header_that_is_torn_is_written_anew(store: Store[ChatMessage], journal: Path) -> None:
    journal.write_bytes(FORM_1[:17])
    assert await said(store) == []
    await say(store, "one")
    assert journal.read_bytes().startswith(FORM_1.splitlines()[0] + b"\n{")


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"To do: bread", StoreError, "is no journal of chatkeep-echo: choose another file"),
        (FORM_1.replace(b'"form": 1', b'"form": 2'), StoreFormatError, "a newer chatkeep-echo: pip install --upgrade"),
        (FORM_1 + b'{"key": 1}\n', StoreError, r"""is damaged in the line '\{"key": 1\}'…: restore a backup"""),
    ],
)
async def test_a_file_that_is_no_journal_of_this_form_is_refused_and_left_as_it_is(
    journal: Path, content: bytes, error: type[Exception], words: str
) -> None:
    journal.write_bytes(content)
    store = open_store(f"echo:///{journal}")
    for call in (store.open(), say(store, "x"), said(store)):
        with pytest.raises(error, match=words):
            await call
    await store.close()
    assert journal.read_bytes() == content


async def test_a_file_that_stays_locked_is_unavailable_until_it_is_free(
    store: Store[ChatMessage], journal: Path
) -> None:
    await store.open()
    async with open_store(f"echo:///{journal}", timeout=2) as impatient:
        with journal.open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            answers = await asyncio.gather(say(impatient, "one"), said(impatient), return_exceptions=True)
    for answer in answers:
        assert type(answer) is StoreUnavailableError
        assert "stays locked by another program; nothing was written" in str(answer)
    await say(store, "two")
    assert await said(store) == ["two"]


async def test_a_write_that_finds_no_room_is_refused_whole(store: Store[ChatMessage], journal: Path) -> None:
    await say(store, "one")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(StoreUnavailableError, match="File too large; nothing was written"):
            await say(store, "two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.read_bytes().endswith(b"\n"), "half a line is left"
    assert await said(store) == ["one"]
    await say(store, "three")
    assert await said(store) == ["one", "three"]


async def test_a_write_that_the_disk_does_not_confirm_may_be_stored_and_is_stored_once(
    store: Store[ChatMessage], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fail)
        with pytest.raises(OutcomeUnknownError):
            await say(store, "one")
    await say(store, "one")
    assert await said(store) == ["one"]


async def test_a_file_in_the_place_of_which_there_is_another_is_read_anew(
    store: Store[ChatMessage], journal: Path, tmp_path: Path
) -> None:
    await say(store, "one")
    backup = tmp_path / "backup"
    backup.write_bytes(journal.read_bytes())
    await say(store, "two")
    backup.replace(journal)
    assert await said(store) == ["one"]
    await say(store, "three")
    assert await said(store) == ["one", "three"]
    journal.unlink()
    with pytest.raises(StoreUnavailableError, match="No such file or directory"):
        await say(store, "four")
    assert not journal.exists()


async def test_a_path_is_what_it_was_when_the_store_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_store("echo:///chat.journal") as store:
        monkeypatch.chdir("/")
        await say(store, "one")
    assert (tmp_path / "chat.journal").is_file()


@pytest.mark.parametrize("url", ["echo://", "echo:///", "echo://chat.journal"])
async def test_a_url_without_a_path_is_refused_with_the_right_form(url: str) -> None:
    with pytest.raises(InvalidURLError, match=r"as in echo:///chat\.journal"):
        open_store(url)
