"""Parts that are lost or damaged: they harm the messages in them alone, and nothing that is left is deleted unasked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.core.test_documents_contract import CRAMPED

from chatkeep import ChatMessage, Store, open_store, plugins
from chatkeep.backend import Backend, BackendSpec
from chatkeep.documents import DocumentBackend
from chatkeep.documents.inmemory import Documents, InMemoryDriver
from chatkeep.documents.packing import make_ref, unpack_refs
from chatkeep.errors import CorruptRecordError, StoreError
from chatkeep.options import StoreOptions
from chatkeep.records import LOST, Record, Span
from chatkeep.url import StoreURL

pytestmark = [pytest.mark.asyncio, pytest.mark.once]


class Damaged:
    """A database in memory, whose parts can be changed by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.documents = Documents()

        def open_backend(url: StoreURL, options: StoreOptions, client: Any) -> Backend:
            return DocumentBackend(InMemoryDriver(self.documents, limits=CRAMPED))

        monkeypatch.setitem(
            plugins._specs, "documents", BackendSpec("documents", ("documents",), StoreOptions, open_backend)
        )

    def store(self, **options: Any) -> Store[ChatMessage]:
        """A store that keeps nothing in mind of what was there before."""
        return open_store("documents://damaged", **options)

    def harm(self, name: bytes, change: Callable[[bytes], bytes] | None) -> None:
        """Change the first part of that content; None: it is lost."""
        (place,) = [place for place in self.documents.parts if place[1] == name + b"\0\0"]
        if change is None:
            del self.documents.parts[place]
        else:
            kept = self.documents.parts[place]
            self.documents.parts[place] = kept._replace(data=change(kept.data))

    def refs(self) -> list[Any]:
        (head,) = self.documents.heads.values()
        found = [make_ref(row) for row in head["logs"][0]["refs"]]
        for ref in found:
            if ref.level:
                (data,) = [part.data for (_, name), part in self.documents.parts.items() if name[:-2] == ref.name]
                found += unpack_refs(data)
        return found


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> Damaged:
    return Damaged(monkeypatch)


def cut(data: bytes) -> bytes:
    return data[:-3]


def changed(data: bytes) -> bytes:
    return data[:20] + b"\xff\xff" + data[22:]


def emptied(data: bytes) -> bytes:
    return b""


def other_rows(data: bytes) -> bytes:
    return b"\1\0\0\0\x07[1,2,3]"


HARMS = pytest.mark.parametrize("change", [None, cut, changed, emptied, other_rows])


@HARMS
@pytest.mark.parametrize("level", [0, 1])
async def test_messages_whose_part_is_lost_are_skipped_shown_and_repaired_and_all_others_are_read(
    damaged: Damaged, change: Callable[[bytes], bytes] | None, level: int
) -> None:
    texts = [f"message {number}" for number in range(1, 41)]
    async with damaged.store() as store:
        for number, text in enumerate(texts, 1):
            await store.session("s").append([ChatMessage.user(text, id=f"m{number}")])
    ref = next(ref for ref in damaged.refs() if ref.level == level)
    damaged.harm(ref.name, change)
    # Of a leaf that was cut at its end the last message alone is lost.
    first = ref.last if change is cut and level == 0 else ref.first
    lost = list(range(first, ref.last + 1))
    others = [text for number, text in enumerate(texts, 1) if number not in lost]

    async with damaged.store() as store:
        with pytest.raises(CorruptRecordError, match=f"message {first} of session 's'.*repair"):
            await store.session("s").messages()
        assert [each.text for each in await store.session("s").messages(last=2)] == texts[-2:]
    async with damaged.store(on_corrupt="raw") as store:
        raw = await store.session("s").messages()
        assert raw.seqs == list(range(1, 41))
        shown: list[object] = list(raw)
        assert [seq for seq, each in zip(raw.seqs, shown, strict=True) if isinstance(each, Record)] == lost
    async with damaged.store(on_corrupt="skip") as store:
        session = store.session("s")
        history = await session.messages()
        assert ([each.text for each in history], history.skipped) == (others, len(lost))
        assert [(found.seq, found.kind) for found in await session.verify()] == [(seq, "damaged") for seq in lost]
        await session.append([ChatMessage.user("one more", id="m41")])
        assert [found.seq for found in await session.repair()] == lost
        assert await session.verify() == []
        kept = b"".join(record.payload for record in (await session.records(Span())).records)
        if change is changed and level == 0:
            assert b"payload" in kept
            assert LOST.encode() in kept
        assert [each.text for each in await session.messages()] == [*others, "one more"]
        await session.truncate_after(2)
        await session.clear()
        await session.append([ChatMessage.user("anew")])
        assert [each.text for each in await session.messages()] == ["anew"]
    async with damaged.store() as store:
        await store.session("s").delete()
    assert not damaged.documents.parts


@pytest.mark.parametrize("change", [None, cut, emptied])
async def test_a_payload_elsewhere_that_is_lost_harms_its_message_alone(
    damaged: Damaged, change: Callable[[bytes], bytes] | None
) -> None:
    async with damaged.store() as store:
        await store.session("s").append([ChatMessage.user(text) for text in ("a", "b" * 2000, "c")])
        await store.session("s").state.set("large", "x" * 5000)
        await store.session("s").state.set("small", 1)
    for (_, name), part in list(damaged.documents.parts.items()):
        if b"b" * 2000 in part.data or b"x" * 5000 in part.data:
            damaged.harm(name[:-2], change)
    async with damaged.store(on_corrupt="skip") as store:
        session = store.session("s")
        history = await session.messages()
        assert ([each.text for each in history], history.skipped) == (["a", "c"], 1)
        assert [(found.seq, found.kind) for found in await session.repair()] == [(2, "damaged")]
        assert await session.state.get("small") == 1
        with pytest.raises(CorruptRecordError, match="large"):
            await session.state.get("large")
        await session.state.set("large", "anew")
        assert await session.state.get("large") == "anew"


async def test_a_damaged_leaf_that_is_given_up_keeps_no_later_write_from_being_made(damaged: Damaged) -> None:
    """What is given up is deleted many writes later, and a leaf with payloads elsewhere is looked at before."""
    async with damaged.store(max_messages=2) as store:
        session = store.session("s")
        await session.append([ChatMessage.user("large" * 200) for _ in range(6)])
    for (_, name), part in list(damaged.documents.parts.items()):
        if b"large" not in part.data:
            damaged.harm(name[:-2], other_rows)
    async with damaged.store(max_messages=2) as store:
        session = store.session("s")
        for number in range(60):
            await session.append([ChatMessage.user(f"{number}" + "x" * 1000)])
        assert [each.text[:2] for each in await session.messages()] == ["58", "59"]


@HARMS
async def test_state_whose_part_is_lost_is_an_error_that_names_the_session(
    damaged: Damaged, change: Callable[[bytes], bytes] | None
) -> None:
    """Which keys it held cannot be told: there is nothing to stand in for them."""
    async with damaged.store() as store:
        for number in range(20):
            await store.session("s").state.set(f"key {number}", "x" * 100)
    (head,) = damaged.documents.heads.values()
    damaged.harm(bytes.fromhex(head["state"]["directory"][0]), change)
    async with damaged.store() as store:
        state = store.session("s").state
        with pytest.raises(StoreError, match="'s' is damaged"):
            await state.get("key 1")
        with pytest.raises(StoreError, match="'s' is damaged"):
            await state.set("key 1", 2)
        await store.session("s").append([ChatMessage.user("a")])
        assert len(await store.session("s").messages()) == 1
