"""Stale writers, by hand: what the scheme "insert at tail + 1" loses."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from tests.core.documents.mutants import insert_at_the_tail, keep_no_longer

from chatkeep.documents import Document, DocumentBackend, attempts
from chatkeep.documents.inmemory import Documents, InMemoryDriver
from chatkeep.errors import CorruptRecordError, StoreFormatError
from chatkeep.records import LOST, Expiry, Key, Listing, Record, Replace, Scope, Span, Write

KEY = Key(Scope("shop"), "s")
NUMBERS = itertools.count(1)


def write(*payloads: bytes, **changes: object) -> Write:
    records = [Record(0, None, "user", True, "chat/1", None, None, payload) for payload in payloads]
    return Write(next(NUMBERS).to_bytes(16, "big"), append=records)._replace(**changes)  # type: ignore[arg-type]


async def stored(backend: DocumentBackend) -> list[tuple[int, bytes]]:
    return [(record.seq, record.payload) for record in (await backend.read(KEY, "", Span())).records]


async def trimmed_meanwhile(early: DocumentBackend, stale: DocumentBackend) -> None:
    """The tail is the same again, and what stands there is another message."""
    await early.commit(KEY, write(b"a", b"b"))
    await stale.read(KEY, "", Span())  # and keeps that head in mind
    await early.commit(KEY, write(b"c"))
    await early.commit(KEY, write(truncate_after=2))
    await early.commit(KEY, write(replace=Replace(2, [write(b"summary").append[0]])))
    outcome = await stale.commit(KEY, write(b"d"))
    assert list(outcome.seqs) == [4], "a seq was given twice"
    assert await stored(early) == [(2, b"summary"), (4, b"d")]


async def begun_anew_meanwhile(early: DocumentBackend, stale: DocumentBackend) -> None:
    """The tail is the same, in another life."""
    await early.commit(KEY, write(b"a", b"b"))
    former = (await stale.read(KEY, "", Span())).head
    await early.commit(KEY, write(delete=True, must_exist=True))
    await early.commit(KEY, write(b"c", b"d"))
    outcome = await stale.commit(KEY, write(b"e"))
    assert former is not None
    assert outcome.life != former.life, "what was deleted is there again"
    assert await stored(early) == [(1, b"c"), (2, b"d"), (3, b"e")]


@pytest.mark.parametrize("scene", [trimmed_meanwhile, begun_anew_meanwhile])
@pytest.mark.parametrize("inserts_at_the_tail", [False, True])
async def test_a_writer_with_a_stale_tail_or_a_former_life_writes_behind_what_is_there(
    scene: object, inserts_at_the_tail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = Documents()
    early, stale = DocumentBackend(InMemoryDriver(documents)), DocumentBackend(InMemoryDriver(documents))
    if not inserts_at_the_tail:
        await scene(early, stale)  # type: ignore[operator]
        return
    monkeypatch.setattr(InMemoryDriver, "_swap", insert_at_the_tail)
    with pytest.raises(AssertionError):
        await scene(early, stale)  # type: ignore[operator]


@pytest.mark.parametrize("keeps_no_longer", [False, True])
async def test_a_database_that_deletes_what_is_over_deletes_no_part_of_a_session_that_is_renewed(
    keeps_no_longer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, now, extended = Documents(), 0.0, 0
    driver = InMemoryDriver(documents)
    driver.clock = lambda: now
    backend = DocumentBackend(driver)
    if keeps_no_longer:
        monkeypatch.setattr(attempts.Attempt, "_prepare", keep_no_longer)

    async def count(*args: object) -> None:
        nonlocal extended
        extended += 1
        await InMemoryDriver.extend(driver, *args)  # type: ignore[arg-type]

    driver.extend = count  # type: ignore[method-assign]
    payloads = [b"%d" % number for number in range(500)]
    await backend.commit(KEY, write(*payloads, expiry=Expiry(1000.0)))
    assert documents.parts
    for _ in range(10):
        now += 700.0
        for name in [name for name, kept in documents.parts.items() if kept.until is not None and kept.until <= now]:
            del documents.parts[name]
        payloads.append(b"%f" % now)
        await backend.commit(KEY, write(payloads[-1], expiry=Expiry(1000.0)))
    if keeps_no_longer:
        (lost, *_) = (await DocumentBackend(driver).read(KEY, "", Span())).records
        assert lost.format == LOST
        return
    found = await DocumentBackend(driver).read(KEY, "", Span())
    assert [record.payload for record in found.records] == payloads
    assert 3 <= extended <= 7, "once per ttl"


async def test_a_writer_with_a_ttl_who_dies_shortens_no_session_that_lives_for_ever() -> None:
    documents, now = Documents(), 0.0
    drivers = [InMemoryDriver(documents) for _ in range(2)]
    for driver in drivers:
        driver.clock = lambda: now
    lasting, dying = map(DocumentBackend, drivers)

    async def die(*_: object) -> bool:
        raise KeyboardInterrupt

    payloads = [b"%d" % number for number in range(500)]
    await lasting.commit(KEY, write(*payloads))
    drivers[1].swap = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        await dying.commit(KEY, write(b"never", expiry=Expiry(2.0)))
    assert documents.parts
    assert {kept.until for kept in documents.parts.values()} == {None}
    del drivers[1].swap  # type: ignore[method-assign]

    await dying.commit(KEY, write(b"last", expiry=Expiry(2.0)))
    assert (await dying.sweep()).expired == 0
    found = await lasting.read(KEY, "", Span())
    assert [record.payload for record in found.records] == [*payloads, b"last"]
    (head,) = documents.heads.values()
    assert head["reap"] is None, "the database would delete the head, and its parts would stay for ever"
    now += 10.0
    assert await lasting.head(KEY) is None, "it has expired all the same"
    assert (await lasting.sweep()).expired == 1
    assert not documents.parts


async def test_parts_that_another_writer_keeps_for_longer_stay_so() -> None:
    documents = Documents()
    driver = InMemoryDriver(documents)
    driver.clock = lambda: 0.0
    await DocumentBackend(driver).commit(KEY, write(*[b"x"] * 500, expiry=Expiry(10_000.0)))
    (life,) = {kept.life for kept in documents.parts.values()}
    ((id, _), *_) = documents.parts
    before = dict(documents.parts)
    await driver.extend(id, life, 5.0)
    assert documents.parts == before
    await driver.extend(id, life, None)
    await driver.extend(id, life, 50_000.0)
    assert {kept.until for kept in documents.parts.values()} == {None}


def later_form(head: Document) -> None:
    head["form"] = 2


def without_reap(head: Document) -> None:
    del head["reap"]


def without_logs(head: Document) -> None:
    del head["logs"]


@pytest.mark.parametrize("harm", [later_form, without_reap, without_logs])
async def test_a_head_that_cannot_be_understood_harms_no_other_session(harm: Callable[[Document], None]) -> None:
    documents, now = Documents(), 0.0
    driver = InMemoryDriver(documents)
    driver.clock = lambda: now
    backend = DocumentBackend(driver)
    for name in ("a", "bad", "c"):
        await backend.commit(Key(Scope("shop"), name), write(*[b"x"] * 300, expiry=Expiry(10.0)))
    (bad,) = [head for head in documents.heads.values() if head["session"] == "bad"]
    harm(bad)
    backend = DocumentBackend(driver)
    later, key = harm is later_form, Key(Scope("shop"), "bad")
    expected = StoreFormatError if later else CorruptRecordError
    for call in (backend.read(key, "", Span()), backend.head(key), backend.commit(key, write(b"y"))):
        with pytest.raises(expected, match="'bad'"):
            await call

    listed = await backend.sessions(Scope("shop"), Listing())
    assert {head.key.session for head in listed.heads} == {"a", "c"}
    now = 20.0
    assert (await backend.sweep()).expired == 2
    assert [head["session"] for head in documents.heads.values() if head["life"]] == ["bad"], "nobody has asked for it"
    if not later:
        assert (await backend.remove(Scope("shop"), older_than=1.0)).sessions == 0
    await backend.commit(Key(Scope("shop"), "new"), write(b"x"))
    if later:
        for older_than in (1.0, None):
            with pytest.raises(StoreFormatError, match="'bad'"):
                await backend.remove(Scope("shop"), older_than=older_than)
        assert [head["session"] for head in documents.heads.values() if head["life"]] == ["bad"]
        return
    assert (await backend.remove(Scope("shop"))).sessions == 2
    assert not documents.parts
    assert not [head for head in documents.heads.values() if head["life"]]


async def test_a_damaged_session_can_be_deleted() -> None:
    documents = Documents()
    await DocumentBackend(InMemoryDriver(documents)).commit(KEY, write(*[b"x"] * 300))
    (head,) = documents.heads.values()
    without_logs(head)
    backend = DocumentBackend(InMemoryDriver(documents))
    assert (await backend.commit(KEY, write(delete=True, must_exist=True))).life
    assert not documents.parts
    assert await backend.head(KEY) is None
